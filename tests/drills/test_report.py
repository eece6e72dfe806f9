"""A drill's report is the agent's own, unchanged, in its place of the chain; anyone with the key log can tell."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.cli.main import main
from holdfast.drills.document.build import find_disorder
from holdfast.drills.document.export import html, markdown
from holdfast.drills.document.signoff import sign_report
from holdfast.drills.host_loss import compare_state, measure_loss
from holdfast.drills.probe import APP
from holdfast.drills.production import Mark, Production, compare_files, hash_file
from holdfast.drills.run import DrillRun
from holdfast.errors import HoldfastError
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.layout.covering import CoveredKind
from holdfast.surfaces import register
from holdfast.surfaces.report import (
    Event,
    ReportFile,
    Results,
    check_report,
    parse_report,
    read_folder,
    read_report,
    read_reports,
)
from holdfast.surfaces.report_marks import MarkedReport, note_report
from holdfast_proofs.drill_reports import recompute, violations
from holdfast_proofs.drills import Example, make_example

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "drill-report.schema.json"
SOURCES = sorted((Path(__file__).parents[2] / "src" / "holdfast" / "drills").glob("*.py"))
FLIPS = 300


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """An agent with three reports: two that do not apply, and a real one."""
    root = tmp_path_factory.mktemp("reports") / "root"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root))
        patch.delenv("HOLDFAST_HOME", raising=False)
        made = make_example(root, places=0)
        for slug in ("region-loss", "hand-off", "store-failover"):
            made.run(slug)
        yield made


@pytest.fixture
def copied(example: Example, tmp_path: Path) -> list[Path]:
    """The reports and the key log, away from the agent."""
    shutil.copy(example.home.log_file, tmp_path)
    shutil.copy(example.home.receipts_file, tmp_path)
    return [Path(shutil.copy(one, tmp_path)) for one in paths(example)]


def paths(example: Example) -> list[Path]:
    found = (example.home.folder / "drills").glob("*.json")
    return sorted(found, key=lambda one: int(one.stem.rpartition("-")[2]))


def test_a_drill_leaves_a_report_that_counts(example: Example) -> None:
    found = read_reports(example.home)
    assert [(one.slug, one.verdict) for one in found] == [
        ("region-loss", "not applicable"),
        ("hand-off", "pass"),
        ("store-failover", "not applicable"),
    ]
    assert (example.home.folder / "drills").stat().st_mode & 0o077 == 0


def test_evidence_that_was_removed_is_missed_where_the_agent_is(
    example: Example, copied: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    evidence, away = paths(example)[1].with_suffix(""), example.root / "away"
    evidence.rename(away)
    try:
        assert main(["drill", "verify", "--home", str(example.home.folder)]) == 2
        assert "commands.jsonl: No such file" in capsys.readouterr().err
        log = str(copied[0].with_name("kel.jsonl"))
        assert main(["drill", "verify", str(copied[1]), "--log", log]) == 0, "an auditor may have the report alone"
    finally:
        away.rename(evidence)


def test_every_changed_byte_is_found(example: Example) -> None:
    path = paths(example)[1]
    raw, log, rng = path.read_bytes(), read_own_log(example.home.folder, Sodium()), random.Random(7)
    for at in rng.sample(range(len(raw)), FLIPS):
        changed = bytearray(raw)
        changed[at] ^= 1 << rng.randrange(7)
        with pytest.raises(HoldfastError):
            check_report(parse_report(bytes(changed), path), log, port=Sodium())


def test_a_dropped_or_exchanged_report_breaks_the_chain(example: Example, copied: list[Path]) -> None:
    good, faults = read_folder(example.home)
    assert (len(good), faults) == (3, [])
    log = ["--log", str(copied[0].with_name("kel.jsonl"))]
    assert main(["drill", "verify", *map(str, copied), *log]) == 0
    assert main(["drill", "verify", str(copied[0]), str(copied[2]), *log]) == 2
    kept = paths(example)[1].read_bytes()
    paths(example)[1].unlink()
    try:
        assert [one.slug for one in read_reports(example.home)] == ["region-loss"]
        assert main(["drill", "verify", "--home", str(example.home.folder)]) == 2
    finally:
        copied[1].with_suffix(".json").rename(example.home.folder / "drills" / copied[1].name)
    assert kept == paths(example)[1].read_bytes()
    os.chmod(paths(example)[1], 0o600)


def test_the_newest_report_cannot_be_dropped_in_silence(
    example: Example, copied: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Removed, and still after a later drill; copied files alone cannot show it, and the command says so."""
    verify = ["drill", "verify", "--home", str(example.home.folder)]
    last, marks = paths(example)[-1], example.home.instance / "drills.json"
    kept = marks.read_bytes()
    last.unlink()
    try:
        assert main(verify) == 2
        assert "report 3" in capsys.readouterr().err
        fourth = example.run("store-failover").path
        assert main(verify) == 2
        assert "is missing" in capsys.readouterr().err
        fourth.unlink()
    finally:
        shutil.copy(copied[-1], last)
        os.chmod(last, 0o600)
        marks.write_bytes(kept)
    assert main(verify) == 0
    capsys.readouterr()
    assert main(["drill", "verify", str(copied[0]), "--log", str(copied[0].with_name("kel.jsonl"))]) == 0
    assert "cannot be seen from these files" in capsys.readouterr().err


def test_a_red_report_that_was_removed_does_not_bring_the_proof_back(example: Example, copied: list[Path]) -> None:
    """hand-off has passed; a later one that failed is removed."""
    marks = example.home.instance / "drills.json"
    kept = marks.read_bytes()
    passed = next(one for one in read_reports(example.home) if one.slug == "hand-off")
    red = MarkedReport(id="x", n=9, digest="gone", drill="hand-off", verdict="fail", ended_ms=passed.ended_ms - 1)
    note_report(example.home, red, there=[])
    try:
        facts = [one for one in register._drills(example.home).facts if one.about == "hand-off" and one.name == "drill"]
        assert [one.value for one in facts] == [False]
    finally:
        marks.write_bytes(kept)


def test_another_agents_log_does_not_verify_it(
    copied: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    other = make_example(tmp_path / "other", name="eve", places=0)
    assert main(["drill", "verify", *map(str, copied), "--log", str(other.home.log_file)]) == 2


def test_a_stranger_recomputes_the_recovery_time(copied: list[Path]) -> None:
    found, told = recompute(copied[1])
    assert found == told
    assert found["rto_s"]


def event(name: str, at_s: float) -> Event:
    return Event(name=name, at="", at_s=at_s, actor="drill", evidence="")


def test_a_timeline_that_is_not_in_order_gives_no_figures() -> None:
    good = [event("fault_injected", 1.0), event("detected", 1.2), event("recovery_started", 1.2)]
    assert find_disorder([*good, event("first_verified_step", 2.0)]) == ""
    assert "recovery_started at 1.2 s" in find_disorder([good[0], event("detected", 1.3), good[2]])
    assert "detected before fault_injected" in find_disorder([event("detected", 1.0), *good])


def test_without_a_journal_the_loss_is_the_time_of_the_newest_file_that_the_snapshot_lacks() -> None:
    home = SimpleNamespace(state=Path("/a"), folder=Path("/a"))
    ages = {"old": 10, "new": 170, "newest": 190}
    marks = {f"/a/{name}": Mark(1, at * 10**9, 0, 0, "now") for name, at in ages.items()}
    production = cast("Production", SimpleNamespace(home=home, marks=marks, journal=None))
    covered = tuple((name, CoveredKind.FILE) for name in ages)
    for restored, seconds, lost in (
        ({**dict.fromkeys(ages, "now"), "new": "then"}, 70.0, 1),
        ({"old": "now"}, 90.0, 2),
    ):
        more: dict[str, Any] = {"checks": [], "check": print, "lost_ms": 0, "began_ms": 200_000}
        run = cast("DrillRun", SimpleNamespace(production=production, **more))
        compare_state(run, restored, snapshot_s=100, covered=covered)
        measure_loss(run, {"journal_sequence": None, "at": 100}, tasks=None)
        assert run.rpo is not None
        assert (run.rpo.actual_s, run.rpo.actual_items) == (seconds, lost)


def test_a_file_that_keeps_an_old_time_is_lost_and_not_damaged() -> None:
    """`cp -p`, and most programs that unpack something, put an old time on a new file."""
    home = SimpleNamespace(state=Path("/a"), folder=Path("/a"))
    production = cast(
        "Production", SimpleNamespace(home=home, marks={"/a/put": Mark(1, 10 * 10**9, 150 * 10**9, 0, "now")})
    )
    found = compare_files(production, {}, snapshot_s=100, covered=(("put", CoveredKind.FILE),))
    assert (found.differing, found.lost, found.moved, found.lost_ms) == ((), ("put",), ("put",), 150_000)
    found = compare_files(production, {}, snapshot_s=151, covered=(("put", CoveredKind.FILE),))
    assert (found.differing, found.lost) == (("put",), ())


def test_a_database_must_be_there_and_counts_as_lost_if_it_was_written_since() -> None:
    """The bytes of a copy that SQLite made may differ. The agent's own journal is counted by its records."""
    home = SimpleNamespace(state=Path("/a"), folder=Path("/a"))
    names = ("talk.db", "journal.db")
    covered = tuple((name, CoveredKind.DATABASE) for name in names)
    for written, wal, restored, differing, lost in (
        (50, 0, {"talk.db": "copy"}, (), ()),
        (50, 0, {}, ("talk.db",), ()),
        (150, 0, {"talk.db": "copy"}, (), ("talk.db",)),
        (50, 150, {"talk.db": "copy"}, (), ("talk.db",)),
    ):
        marks = {f"/a/{name}": Mark(1, written * 10**9, 10**9, 0, "now") for name in names}
        marks["/a/talk.db-wal"] = Mark(1, wal * 10**9, 10**9, 0, "now")
        production = cast("Production", SimpleNamespace(home=home, marks=marks))
        found = compare_files(production, restored, snapshot_s=100, covered=covered)
        assert (found.differing, found.lost, found.moved) == (differing, lost, ())


def test_a_large_file_is_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.drills.production.HASHED_BYTES_MAX", 4)
    (tmp_path / "large").write_text("large\n")
    home = SimpleNamespace(state=tmp_path, folder=tmp_path)
    marks = {str(tmp_path / "large"): Mark(6, 0, 0, 0, "")}
    production = cast("Production", SimpleNamespace(home=home, marks=marks))
    for digest, equal in ((hash_file(tmp_path / "large"), True), ("other", False)):
        covered = (("large", CoveredKind.FILE),)
        found = compare_files(production, {"large": digest}, snapshot_s=2**31, covered=covered)
        assert (found.compared, found.differing == ()) == (1, equal)


def test_a_command_that_prints_other_bytes_than_utf_8() -> None:
    """An agent's own check is any program."""
    run = SimpleNamespace(get_shadow=lambda: SimpleNamespace(start=start), _note=print)
    done = DrillRun.run(cast("DrillRun", run), ["printf", "caf\\351"])
    assert (done.code, done.out) == (0, "caf\ufffd")


def start(words: Sequence[str], **_: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_published_schema_is_the_reports(copied: list[Path]) -> None:
    """`python tests/drills/test_report.py` writes the file again."""
    assert json.loads(SCHEMA.read_text()) == schema()
    for path in copied:
        problems = list(violations(json.loads(path.read_text()), schema(), schema()["$defs"]))
        assert problems == []
    broken = json.loads(copied[1].read_text())
    del broken["report"]["results"]["rto"]["actual_s"]
    broken["report"]["verdict"] = "fine"
    assert len(list(violations(broken, schema(), schema()["$defs"]))) == 2


def schema() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(msgspec.json.encode(msgspec.json.schema(ReportFile))))


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_persons_signature_is_part_of_the_file(
    copied: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, log = tmp_path / "key", ["--log", str(tmp_path / "kel.jsonl")]
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    path = copied[0]
    words = ["drill", "sign", str(path), "--key", str(key), "--name", "Ada Byron", "--role", "approver"]
    assert main(words) == 0
    allowed = tmp_path / "allowed"
    allowed.write_text(f'"Ada Byron" {key.with_suffix(".pub").read_text()}')
    (tmp_path / "nobody").write_text("")
    found = read_report(path)
    key_id = found.file.signoff[0].key_id
    assert key_id in markdown(found)
    capsys.readouterr()
    assert main(["drill", "verify", str(path), *log]) == 0
    assert f"Ada Byron ({key_id})" in capsys.readouterr().err
    assert main(["drill", "verify", str(path), *log, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["reports"][0]["people"]
    assert shown == [{"role": "approver", "name": "Ada Byron", "key_id": key_id}]
    for name, code in (("allowed", 0), ("nobody", 2)):
        assert main(["drill", "verify", str(path), *log, "--allowed-signers", str(tmp_path / name)]) == code
    path.write_bytes(path.read_bytes().replace(b"Ada Byron", b"Eve Byron"))
    assert main(["drill", "verify", str(path), *log]) == 2


def test_two_people_may_sign_at_the_same_time(copied: list[Path], tmp_path: Path) -> None:
    """One types a passphrase for minutes; the other signs meanwhile."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    early = read_report(copied[0])
    for name in ("Ada Byron", "Eve Byron"):
        sign_report(early, key=key, name=name, role="lead", time="2026-11-17T00:00:00Z")
    assert [one.name for one in read_report(copied[0]).file.signoff] == ["Ada Byron", "Eve Byron"]


def test_the_page_needs_no_script_and_no_other_file(copied: list[Path]) -> None:
    page = html(read_report(copied[1]))
    assert "<svg" in page
    for word in ("<script", "http://", "https://", "url(", "src=", "href="):
        assert word not in page.replace("http://127.0.0.1", "")


def test_a_report_without_a_field_that_came_later_stays_as_it_is(copied: list[Path]) -> None:
    """Its bytes are what was signed: reading it adds nothing."""
    old = {**msgspec.to_builtins(read_report(copied[1]).report.results)}
    del old["files"]
    assert msgspec.to_builtins(msgspec.convert(old, Results)) == old


def test_text_from_outside_stays_text(copied: list[Path]) -> None:
    found = read_report(copied[1])
    report = msgspec.structs.replace(found.report, reason="<b>bold</b>")
    changed = replace(found, file=msgspec.structs.replace(found.file, report=report))
    assert "<b>" not in html(changed)


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n")


def printed_runbook(example: Example, *words: str, capture: pytest.CaptureFixture[str]) -> str:
    capture.readouterr()
    assert main(["runbook", "print", "--app", APP, *words, "--home", str(example.home.folder)]) == 0
    return capture.readouterr().out


def test_what_a_drill_followed_is_in_the_runbook(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    """The same commands, the same digest, and the time that it took."""
    report = read_report(next(one for one in paths(example) if "hand-off" in one.name)).report
    found = json.loads(printed_runbook(example, "--json", capture=capsys))
    section = next(one for one in found["sections"] if one["slug"] == "hand-off")
    commands = {step["command"] for one in found["sections"] for step in one["steps"]}
    assert report.runbook.steps_followed
    assert set(report.runbook.steps_followed) <= commands
    assert report.runbook.digest == section["digest"]
    assert section["last_drill"]["rto_s"] == report.results.rto.actual_s
    assert f"{report.results.rto.actual_s:g} s until the first verified step" in printed_runbook(
        example, capture=capsys
    )
    never = next(one for one in found["sections"] if one["slug"] == "region-loss")
    assert never["last_drill"] is None, "one that did not apply measured nothing"


def test_a_report_shows_the_run_before_it(example: Example) -> None:
    """Here it is its own predecessor; without that file the column is empty."""
    found = read_report(next(one for one in paths(example) if "hand-off" in one.name))
    time = f"{found.report.results.rto.actual_s:g} s"
    assert f"| {time} |  | met |" in markdown(found)
    for name, shown in ((found.report.id, time), ("gone", "")):
        report = msgspec.structs.replace(found.report, previous_drill=name)
        later = replace(found, file=msgspec.structs.replace(found.file, report=report))
        assert f"| {time} | {shown} | met |" in markdown(later)


def test_the_page_explains_every_field_event_and_check() -> None:
    page = (SCHEMA.parent / "drills.md").read_text()
    parts: dict[str, Any] = json.loads(SCHEMA.read_text())["$defs"]
    names = {field for part in parts.values() for field in part.get("properties", {})} - {"results"}
    source = "".join(one.read_text() for one in SOURCES)
    names |= set(re.findall(r'\bevent\(\s*"([a-z_]+)"', source))
    names |= {
        one for one in re.findall(r'\.(?:check|require)\(\s*"([^"]+)"', source) if not re.fullmatch("[IL][0-9]+", one)
    }
    assert {"baseline_taken", "fresh root", "rto_s"} <= names
    assert [one for one in sorted(names) if not re.search(rf"`([a-z]+\.)?{re.escape(one)}`", page)] == []


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (1280, 390)
# Is a page wider than its window? A page that holds it in frames looks, after the last one is there.
FRAMES = """<!doctype html><body style="margin:0"><script>
const pages = {pages}, widths = {widths}, found = [];
for (const page of pages) for (const width of widths) {{
  const frame = document.createElement("iframe");
  frame.style = `border:0;display:block;height:900px;width:${{width}}px`;
  frame.onload = () => {{
    const root = frame.contentDocument.documentElement;
    const out = [...root.querySelectorAll("*")].filter(one => one.getBoundingClientRect().right > width + 0.5);
    found.push([width, root.scrollWidth, out.map(one => one.outerHTML.slice(0, 80))]);
    if (found.length == pages.length * widths.length) document.title = JSON.stringify(found);
  }};
  frame.srcdoc = page;
  document.body.append(frame);
}}
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_no_page_is_wider_than_its_window(example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runbook and report, on a screen and on a telephone."""
    assert BROWSER is not None
    printed_runbook(example, "--html", str(tmp_path / "runbook.html"), capture=capsys)
    report = next(one for one in paths(example) if "hand-off" in one.name).with_suffix(".html")
    pages = [one.read_text() for one in (tmp_path / "runbook.html", report)]
    frames = tmp_path / "frames.html"
    frames.write_text(FRAMES.format(widths=list(WIDTHS), pages=json.dumps(pages).replace("</", "<\\/")))
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", frames.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(\[.*?\])</title>", done.stdout, re.DOTALL)
    assert title is not None, done.stderr[-500:]
    measured: list[tuple[int, int, list[str]]] = json.loads(unescape(title[1]))
    assert len(measured) == len(pages) * len(WIDTHS)
    for width, scroll, out in measured:
        assert (scroll <= width, out) == (True, []), f"{scroll} at {width}"
