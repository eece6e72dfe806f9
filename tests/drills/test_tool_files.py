"""The drill `tool-files` names every file that a tool leaves, whatever program wrote it; the register shows it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.downstream.process import start_blocking
from holdfast.drills.catalogue import get_drill
from holdfast.drills.execute import run_drill
from holdfast.drills.run import DrillRun
from holdfast.surfaces import report as out
from holdfast_proofs.drills import PLANTS, judge, make_example

OWN_APP = """
import multiprocessing, os, subprocess, tempfile, threading
from pathlib import Path
import holdfast

HERE = Path(__file__).parent
WORK = HERE.parent / "work"

def write(path):
    Path(path).write_text("x")

@holdfast.tool(effect=holdfast.Idempotent())
async def scatter(call: holdfast.Call) -> None:
    WORK.mkdir(exist_ok=True)
    os.chdir(WORK)
    (call.scratch / "fine.txt").write_text("x")
    (HERE / "covered.txt").write_text("x")
    write("work.txt")
    with tempfile.NamedTemporaryFile(dir=WORK) as gone:
        gone.write(b"x")
    thread = threading.Thread(target=write, args=(Path.home() / "by-thread.txt",))
    thread.start()
    thread.join()
    child = multiprocessing.get_context("fork").Process(target=write, args=(WORK / "by-child.txt",))
    child.start()
    child.join()
    temp = Path(os.environ.get("PROBE_TEMP", tempfile.gettempdir()))
    subprocess.run(["sh", "-c", 'echo x > "$1"', "sh", str(temp / f"by-program-{HERE.parent.name}.txt")], check=True)

@holdfast.tool(effect=holdfast.Idempotent())
def tidy(call: holdfast.Call, text: str) -> None:
    (call.scratch / "fine.txt").write_text(text)

@holdfast.tool(effect=holdfast.Idempotent())
def never_called() -> None: ...

KEYED = holdfast.Keyed(window_s=3_600, fingerprint="checked", refusals_stored=True)
SHOP = os.environ.get("PROBE_SHOP", "https://shop.example")

async def paid(cents: int) -> str:
    return "sandbox"

@holdfast.tool(effect=KEYED, http_only=True, sandbox=paid)
async def pay(call: holdfast.Call, cents: int) -> str:
    write(WORK / "receipt.txt")
    return (await call.http.post(f"{SHOP}/effects", json={"cents": cents})).json()["id"]

@holdfast.tool(effect=KEYED, http_only=True)
async def publish(call: holdfast.Call, text: str) -> str:
    made = (await call.http.post(f"{SHOP}/effects", json={"text": text})).json()["id"]
    write(WORK / "published.txt")
    write("loose.txt")
    write(os.fsdecode(b"other-\\xff.txt"))
    return made

@holdfast.task
async def work(run: holdfast.Run) -> None:
    run.scratch.path.exists()
    await run.call(scatter)
    await run.call(tidy, text="x")
    await run.call(pay, cents=5)
    await run.call(publish, text="x")

tasks = [work, never_called]
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    monkeypatch.setenv("PROBE_TEMP", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "root"


def test_each_path_is_named_with_its_tool(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a thread, a child and another program, into the work folder, home and temp."""
    with start_blocking("keyed") as shop:
        monkeypatch.setenv("PROBE_SHOP", shop.url)
        example = make_example(root, places=0, own_app=OWN_APP)
        done = example.run("tool-files")
        assert shop.ledger().count == 2, "a drill reached the real far end"
    report = done.report
    assert report.verdict == "pass with findings", report.reason
    assert isinstance(report.results.files, tuple)
    found = {one.tool: one for one in report.results.files}
    expected = (
        str(root / "by-thread.txt"),
        str(root / "work" / "by-child.txt"),
        str(root / "work" / "work.txt"),
        f"{tempfile.gettempdir()}/by-program-{root.name}.txt",
    )
    assert found["scatter"] == out.ToolFiles(
        tool="scatter", ran="function", ended="returned", files=tuple(sorted(expected))
    )
    assert found["tidy"] == out.ToolFiles(tool="tidy", ran="function", ended="returned", files=())
    assert (found["pay"].ran, found["pay"].ended, found["pay"].files) == ("sandbox", "returned", ())
    assert (found["publish"].ended, found["publish"].files) == (
        "returned",
        ("./loose.txt", "./other-\\xff.txt", str(root / "work" / "published.txt")),
    )
    assert found["never_called"].ran == "not run"
    assert "never_called" in report.deviations[0]
    (recorded,) = done.evidence["far-ends.jsonl"][1].splitlines()
    assert json.loads(recorded)["kind"] == "recording"
    page = (example.home.folder / "drills" / f"{report.id}.md").read_text()
    assert f"| scatter | function | returned | {', '.join(sorted(expected))} |" in page
    assert main(["surface", "list", "--json", "--home", str(example.home.folder)]) == 0
    rows = {one["id"]: one for one in json.loads(capsys.readouterr().out)["surfaces"]}
    assert rows["files/scatter"]["verdict"] == "uncovered"
    assert rows["files/scatter"]["where"] == ", ".join(sorted(expected))
    assert report.id in rows["files/scatter"]["evidence"]
    assert "files/tidy" not in rows


def test_an_app_whose_tools_were_never_called_proves_nothing(root: Path) -> None:
    example = make_example(root, places=0)
    app = example.home.folder / "own_app.py"
    app.write_text("import holdfast\n\n@holdfast.tool\ndef other(call): ...\n\ntasks = [other]\n")
    report = example.run("tool-files").report
    assert (report.verdict, "no call of a tool" in report.reason) == ("not proven", True), report.reason


def test_a_bug_in_a_drill_hides_no_report(root: Path) -> None:
    example = make_example(root, places=0)

    def break_it(_run: DrillRun, event: str) -> None:
        if event == "baseline_taken":
            raise KeyError("broken")

    done = run_drill(get_drill("tool-files"), example.order("tool-files", observe=break_it))
    assert (done.report.verdict, "KeyError: 'broken'" in done.report.reason) == ("not proven", True)
    assert b"break_it" in done.evidence["traceback.txt"][1]


def test_a_scan_that_sees_nothing_is_red(root: Path) -> None:
    example = make_example(root, places=0)
    assert judge("tool-files", example.run("tool-files"), None) == []
    assert judge("tool-files", example.run("tool-files", PLANTS["tool-files"]), PLANTS["tool-files"]) == []
