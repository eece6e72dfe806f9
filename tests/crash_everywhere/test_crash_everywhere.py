"""`holdfast.testing.crash_everywhere`: what a kill of a task does at its far end is found, at the right point."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

import holdfast
from holdfast.downstream.process import BlockingFarEnd, Kind, start_blocking
from holdfast.errors import BadInput, Misuse
from holdfast.testing import CrashReport, crash_everywhere, crash_everywhere_async
from holdfast.testing.crash_counts import compare
from holdfast.testing.model_server.process import start_blocking as start_model
from holdfast.testing.model_server.script import parse_script

APP = Path(__file__).with_name("shop.py")
DONE_NOT_RECORDED = "commit-4-before"


@pytest.fixture(scope="module")
def banks() -> Iterator[dict[Kind, BlockingFarEnd]]:
    with start_blocking("unrepeatable") as plain, start_blocking("keyed") as with_keys:
        yield {"unrepeatable": plain, "keyed": with_keys}


def crash(task: str, bank: BlockingFarEnd, *points: str, **more: str) -> CrashReport:
    env = {"BANK_URL": bank.url, **more}
    return crash_everywhere(f"{APP}:{task}", bank, args={"cents": 5}, env=env, points=points)


def test_a_double_charge_is_found_where_it_happens(banks: dict[Kind, BlockingFarEnd]) -> None:
    """A tool that promises a key and sends none charges twice if it dies between the effect and its record."""
    report = crash("naive", banks["unrepeatable"])
    assert not report.ok
    assert DONE_NOT_RECORDED in [one.point for one in report.duplicates]
    assert all(sum(one.duplicates.values()) == 1 for one in report.duplicates)
    assert {one.point for one in report.trials} >= {
        *("commit-1-before", "commit-1-after", "commit-2-after", "commit-3-before", "commit-3-after"),
        *("byte-1-before", "byte-1-after", "commit-4-before", "commit-4-after"),
    }
    # A busy machine makes a call look long, and then its middle is after the end of the next run.
    assert all(one.reached for one in report.trials if not one.point.endswith("-during"))
    with pytest.raises(AssertionError, match=f"DUPLICATE at {DONE_NOT_RECORDED}"):
        report.check()


def test_a_tool_that_sends_its_key_survives_every_kill(banks: dict[Kind, BlockingFarEnd]) -> None:
    report = crash("keyed", banks["keyed"])
    report.check()
    assert report.ok
    assert len(report.trials) > 8
    assert report.counted == {"step 1": 1}


def test_a_tool_without_key_and_lookup_parks(banks: dict[Kind, BlockingFarEnd]) -> None:
    """A kill that leaves a doubt is a question for a person: neither a repeat nor a loss."""
    report = crash("letter", banks["unrepeatable"], "byte-1-before", "byte-1-after", DONE_NOT_RECORDED)
    assert [one.verdict for one in report.trials] == ["ok", "parked", "parked"]
    assert "was it done" in report.parked[0].text
    report.check(parks=True)
    with pytest.raises(AssertionError, match="PARKED"):
        report.check()


def test_what_was_only_in_memory_is_found_as_lost(banks: dict[Kind, BlockingFarEnd]) -> None:
    report = crash("forgetful", banks["keyed"], "commit-4-after", "byte-1-before")
    assert [one.verdict for one in report.trials] == ["lost", "ok"]
    assert report.lost[0].lost == {"step 2": 1}
    assert "1 missing" in str(report)


def test_a_program_with_threads_is_started_afresh_each_time(banks: dict[Kind, BlockingFarEnd]) -> None:
    report = crash("naive", banks["unrepeatable"], DONE_NOT_RECORDED, SHOP_THREAD="1")
    assert [one.verdict for one in report.trials] == ["duplicate"]


def test_model_calls_are_boundaries(banks: dict[Kind, BlockingFarEnd]) -> None:
    script = parse_script(b'{"keys": ["sk-offline-0001"], "answers": [{"text": "yes"}]}')
    with start_model(script) as model:
        report = crash_everywhere(
            f"{APP}:talking",
            banks["keyed"],
            args={"url": model.url},
            env={"BANK_URL": banks["keyed"].url},
            secrets={"provider": "sk-offline-0001"},
            points=["model-1-after", "commit-4-before"],
        )
    report.check()
    assert report.trials[0].what == "a model is asked at step 1"


def test_other_far_ends_count_too(banks: dict[Kind, BlockingFarEnd]) -> None:
    """A function, an async one, a URL: whatever says how often each thing was done."""
    bank = banks["unrepeatable"]

    def by_amount() -> dict[str, int]:
        return {"5 cents": bank.ledger().count}

    class Counts(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(by_amount()).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Counts)
    Thread(target=server.serve_forever, daemon=True).start()

    async def later() -> dict[str, int]:
        return await asyncio.to_thread(by_amount)

    try:
        report = crash_everywhere(
            f"{APP}:naive",
            [later, f"http://127.0.0.1:{server.server_port}/"],
            args={"cents": 5},
            env={"BANK_URL": bank.url},
            points=[DONE_NOT_RECORDED],
        )
    finally:
        server.shutdown()
        server.server_close()
    assert report.counted == {"far end 1: 5 cents": 1, "far end 2: 5 cents": 1}
    assert report.duplicates[0].duplicates == report.counted


def test_what_could_find_nothing_is_refused(banks: dict[Kind, BlockingFarEnd]) -> None:
    bank = banks["keyed"]

    @holdfast.task
    async def nested(run: holdfast.Run) -> None: ...

    with pytest.raises(Misuse, match="another process cannot load it"):
        crash_everywhere(nested, bank)
    with pytest.raises(BadInput, match="counts nothing"):
        crash_everywhere(f"{APP}:keyed", dict, args={"cents": 5}, env={"BANK_URL": bank.url})
    with pytest.raises(BadInput, match="no card"):
        crash_everywhere(f"{APP}:failing", bank)
    with pytest.raises(BadInput, match="how often"):
        crash_everywhere(f"{APP}:keyed", lambda: {"a": "b"}, args={"cents": 5})  # type: ignore[dict-item,return-value]
    with pytest.raises(BadInput, match="no point 'commit-99-after'"):
        crash("keyed", bank, "commit-99-after")


def test_a_script_that_calls_it_when_it_is_loaded_does_not_start_itself_without_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import holdfast\nfrom holdfast.testing import crash_everywhere\n"
        "@holdfast.task\nasync def pay(run): ...\n"
        "crash_everywhere(pay, lambda: {}, patience_s=2)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the file of the task is loaded: put the call below `if __name__" in done.stderr


async def test_in_an_event_loop_the_async_one_is_named(banks: dict[Kind, BlockingFarEnd]) -> None:
    with pytest.raises(Misuse, match="event loop"):
        crash("keyed", banks["keyed"])
    bank = banks["keyed"]
    report = await crash_everywhere_async(
        f"{APP}:keyed", bank, args={"cents": 5}, env={"BANK_URL": bank.url}, points=["byte-1-after"]
    )
    report.check()


@pytest.mark.parametrize(
    ("expected", "found", "duplicates", "lost"),
    [
        ({"a": 1}, {"a": 1}, {}, {}),
        ({"a": 1}, {"a": 2}, {"a": 1}, {}),
        ({"a": 2}, {"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {}, {}, {"a": 1}),
        ({"key 1": 1}, {"key 2": 1}, {}, {}),
        ({"key 1": 1}, {"key 2": 1, "key 3": 1}, {"key 3": 1}, {}),
        ({"key 1": 1, "key 2": 1}, {"key 3": 2}, {"key 3": 1}, {"key 2": 1}),
        ({"a": 1, "key 1": 1}, {"a": 1, "key 2": 2, "b": 0}, {"key 2": 1}, {}),
    ],
)
def test_names_that_change_from_run_to_run_are_compared_by_their_counts(
    expected: dict[str, int], found: dict[str, int], duplicates: dict[str, int], lost: dict[str, int]
) -> None:
    assert compare(expected, found) == (duplicates, lost)


PLUGIN_TEST = """
import shop
from holdfast.downstream.process import start_blocking

def crash(crash_everywhere, kind, task):
    with start_blocking(kind) as bank:
        return crash_everywhere(task, bank, args={"cents": 5}, env={"BANK_URL": bank.url})

def test_naive(crash_everywhere):
    crash(crash_everywhere, "unrepeatable", shop.naive)

def test_keyed(crash_everywhere):
    assert len(crash(crash_everywhere, "keyed", shop.keyed).trials) == 1
"""


def test_the_plugin_fails_a_test_and_repeats_one_point(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_bytes(APP.read_bytes())
    (tmp_path / "test_shop.py").write_text(PLUGIN_TEST)
    plugins = ("-p", "no:holdfast", "-p", "holdfast.testing.pytest_plugin", "-p", "no:cacheprovider")
    words = (sys.executable, "-m", "pytest", "-q", *plugins, "--crash-point", DONE_NOT_RECORDED, "test_shop.py")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert f"DUPLICATE at {DONE_NOT_RECORDED}" in done.stdout
    assert f"--crash-point {DONE_NOT_RECORDED}" in done.stdout


def test_the_plugin_loads_nothing_that_a_test_does_not_use() -> None:
    program = (
        "import sys, holdfast.testing.pytest_plugin\n"
        "print([one for one in sys.modules if one.startswith('holdfast.') and 'testing' not in one])\n"
        "print('holdfast.testing.crash' in sys.modules)"
    )
    said = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.split("\n")[:2] == ["[]", "False"]
