"""The command line's own decisions: what is printed, and what a defect looks like."""

from __future__ import annotations

import json

import pytest

import holdfast
from holdfast.app.health import METRICS, render
from holdfast.app.worker import Order, parse_order
from holdfast.cli import doctor
from holdfast.cli.command import COMMANDS
from holdfast.cli.main import main
from holdfast.cli.screen.screen import ago, clock_time, one_line, print_json, print_result, shown
from holdfast.cli.screen.wrapping import wrapped
from holdfast.core.clock import LAST_MS, iso
from holdfast.errors import BadInput
from holdfast.host.log import Log, Readable
from holdfast.views.tasks import epoch_text


def broken(_: object) -> int:
    raise ZeroDivisionError("a defect\x1b[2J")


def test_a_defect_is_one_line_and_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "run", broken)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: internal: ZeroDivisionError: a defect\\x1b[2J"
    assert lines[1].startswith("hint: this is a bug in Holdfast")
    assert len(lines) == 2
    monkeypatch.setenv("HOLDFAST_TRACE", "1")
    assert main(["doctor"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    monkeypatch.delenv("HOLDFAST_TRACE")
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "internal"


def test_nothing_drives_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Results, names and messages come from outside."""
    wild = "a\x1b[31m\x07\x9b2J\u202eb\r\nc\td"
    assert shown(wild) == "a\\x1b[31m\\x07\\x9b2J\\x202eb\\x0d\nc\td"
    assert one_line(wild).count("\n") == 0
    print_json({"value": wild})
    out = capsys.readouterr().out
    assert json.loads(out) == {"value": wild}
    assert not any(char in out for char in "\x1b\x07\x9b\r")


def test_lines_are_cut_where_they_are_long() -> None:
    assert one_line("x" * 300) == "x" * 97 + "..."
    assert one_line(" a \n\n b ") == "a b"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0 ms"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_900, "59.9 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h 0 min"),
        (90_000_000, "25 h 0 min"),
        (864_000_000, "10 days"),
    ],
)
def test_lengths_of_time(ms: int, text: str) -> None:
    assert ago(ms) == text


def test_moments() -> None:
    assert iso(1_800_000_000_123) == "2027-01-15T08:00:00.123+00:00"
    assert (iso(0), clock_time(0)) == ("", "-")
    assert (iso(-(10**15)), iso(10**15), iso(LAST_MS)) == ("", iso(LAST_MS), "9999-12-31T23:59:59.000+00:00")


def test_epochs_as_people_read_them() -> None:
    assert epoch_text((3 << 32) | 7) == "3.7"
    assert epoch_text(0) == "-"


def test_an_order_survives_the_way_to_the_worker_process() -> None:
    fields = {"app": "a:b", "journal": "/j", "overrides": {"concurrency": 3}, "health_port": 0}
    assert parse_order(json.dumps(fields)) == Order(
        app="a:b", journal="/j", overrides={"concurrency": 3}, health_port=0
    )
    for wrong in ("", "[]", "{}", '{"app": "a:b", "journal": "/j", "secret": 1}'):
        with pytest.raises(BadInput):
            parse_order(wrong)


def test_metrics_are_in_prometheus_text_form() -> None:
    text = render({"tasks": [({"state": "queued"}, 3.0)], "up": [({}, 1.0)]})
    assert text == (
        f"# HELP holdfast_up {METRICS['up'][1]}\n# TYPE holdfast_up gauge\nholdfast_up 1\n"
        f"# HELP holdfast_tasks {METRICS['tasks'][1]}\n# TYPE holdfast_tasks gauge\n"
        'holdfast_tasks{state="queued"} 3\n'
    )


def test_events_on_a_terminal_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    Log(Readable(sys.stdout)).event("run-ended", state="parked", text="two words\x1b", number=3)
    line = capsys.readouterr().out
    assert line[8:] == ' run-ended state=parked text="two words\\u001b" number=3\n'


def test_the_package_knows_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {holdfast.__version__}\n"
    assert holdfast.__version__[0].isdigit()


def test_older_names_of_verbs_still_work(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["place", "mend-key", "--help"], ["place", "fix-key", "--help"]):
        assert main(words) == 0
        assert "usage: holdfast place fix-key" in capsys.readouterr().out


def test_the_name_alone_shows_the_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == said
    assert [line for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")][:6] == [
        "start here:",
        "run tasks:",
        "the agent:",
        "backups:",
        "prove it:",
        "identity:",
    ]
    for name, entry in COMMANDS.items():
        assert f"\n  {name:<{max(map(len, COMMANDS))}}  {entry.summary}\n" in said


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_helps_fit_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only examples, which a person copies, may be longer."""
    monkeypatch.setenv("COLUMNS", columns)
    for words in ([], ["recover"], ["init"], ["task", "show"], ["backup", "list"]):
        assert main([*words, "--help"]) == 0
        text = capsys.readouterr().out.partition("examples:")[0]
        assert max(len(line) for line in text.splitlines()) <= min(int(columns), 100)


def test_wrapped_lines_continue_in_their_column() -> None:
    assert (
        wrapped("  state  queued or running or parked", 24)
        == "  state  queued or\n         running or\n         parked"
    )
    assert wrapped("hint: one two three four", 16) == "hint: one two\n      three four"
    assert wrapped("x" * 30 + " y", 20) == "x" * 30 + "\ny"
    begin = "step 1 raised at  "
    assert wrapped(f"{begin}one two three four five", 40) == f"{begin}one two three four\n{' ' * 18}five"


def test_a_text_after_two_names_continues_below_itself_unless_a_word_is_too_long() -> None:
    begin = "ok       vault       "
    assert wrapped(f"{begin}one two three four five six", 44) == f"{begin}one two three four five\n{' ' * 21}six"
    long = "x" * 30
    assert wrapped(f"{begin}{long} one", 44) == f"ok       vault\n{' ' * 9}{long} one"


@pytest.mark.parametrize(("words", "option"), [(["--frob"], "--frob"), (["submit", "--frob=1"], "--frob")])
def test_an_unknown_option_is_named_before_what_is_missing(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"error: unknown option {option}\n" in capsys.readouterr().err
    assert main(["submit"]) == 2
    assert "required: APP, REQUEST" in capsys.readouterr().err


def test_a_result_is_shown_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_result({"places_left": ["disk", "far"], "shared": False, "untold": {}, "at": {"r1": "down"}, "suspect": 0})
    assert capsys.readouterr().out.split("\n") == [
        "places left  disk, far",
        "shared       no",
        "untold       -",
        "at           r1: down",
        "suspect      0",
        "",
    ]
