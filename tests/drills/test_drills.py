"""Drills turn red with a planted fault; what cannot run says so in one line; a drill that is stopped leaves nothing.

All drills, clean and planted, are in `make drills`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.app.instances.roster_change import RosterChange
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.drills.catalogue import get_drill
from holdfast.drills.execute import run_drill
from holdfast.drills.own_folder import MARKER, clear, own_folder
from holdfast.drills.run import DrillKey, DrillRun
from holdfast.errors import BadInput, NotNow
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.vault import open_vault
from holdfast.surfaces.report import read_reports
from holdfast_proofs.drills import HARM, PLANTS, Example, judge, make_example

# With `HARM`, six planted faults that cost little.
CHEAP = ("hand-off", "test-restore", "place-lost", "keys-lost", "two-alive")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    return tmp_path / "root"


def enrolled(example: Example) -> Example:
    """The agent has a roster; what runs in a shadow is neither an instance nor a copy of one."""
    home = example.home
    assert home.vault is not None
    with open_vault(home.vault) as vault:
        clock, entropy = SystemClock(), SystemEntropy()
        RosterChange.at(home, vault, clock=clock, entropy=entropy, port=Sodium()).enrol_here("north")
    return example


@pytest.mark.parametrize("slug", CHEAP)
def test_a_planted_fault_turns_a_drill_red(slug: str, root: Path) -> None:
    example = enrolled(make_example(root))
    assert judge(slug, example.run(slug, PLANTS[slug]), PLANTS[slug]) == []


def test_a_lost_machine_comes_back_and_production_is_as_it_was(root: Path) -> None:
    """The quarterly five steps; the report says what was measured."""
    example = enrolled(make_example(root))
    report = example.run("host-loss").report
    assert report.verdict == "pass with findings", report.reason
    assert "on the disk of the agent's folder" in report.findings[0].description
    assert report.results.identity is not None
    assert report.results.identity.same
    assert report.results.effects is not None
    assert report.results.effects.duplicates == 0
    assert report.results.rpo.lost_items == {"journal records": 0, "files": 1, "tasks": 0}  # the roster is newer
    assert report.key_used == "words"
    names = [one.name for one in report.timeline]
    assert names == sorted(names, key=names.index)
    for name in ("fault_injected", "state_restored", "first_verified_step", "cleanup_done"):
        assert name in names
    assert example.words.split()[0] not in (example.home.folder / "drills" / f"{report.id}.json").read_text().split()


def test_a_change_of_production_fails_the_drill(root: Path) -> None:
    example = make_example(root, places=0)
    assert judge("hand-off", example.run("hand-off", HARM), HARM) == []


def run(example: Example, *words: str, typed: str = "", capture: pytest.CaptureFixture[str]) -> tuple[int, str]:
    reads, writes = os.pipe()
    os.write(writes, typed.encode())
    os.close(writes)
    more = ["--words-fd", str(reads)] if typed else []
    try:
        code = main(["drill", "run", *words, *more, "--home", str(example.home.folder)])
    finally:
        os.close(reads)
    return code, capture.readouterr().err


def test_what_cannot_run_says_so_in_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No place, no PostgreSQL, no words, wrong words, an unknown drill: nothing runs, nothing is green."""
    example = make_example(root, places=0)
    first, second, *rest = example.words.split()
    code, said = run(example, "host-loss", typed=" ".join((second, first, *rest)), capture=capsys)
    assert (code, "not applicable: the agent has no backup place" in said) == (5, True), said
    assert "corrected a wrong word: words 1 and 2 were swapped; check the sheet" in said
    code, said = run(example, "D03", capture=capsys)
    assert (code, "the journal is a file, not in PostgreSQL" in said) == (5, True), said
    code, said = run(example, "keys-stolen", capture=capsys)
    assert (code, "not proven: the recovery words were not given" in said) == (5, True), said
    code, said = run(example, "keys-stolen", typed="abandon " * 24, capture=capsys)
    assert (code, "the words are not those of this agent" in said) == (5, True), said
    assert run(example, "fire", capture=capsys)[0] == 2
    (root / "unlock").rename(root / "away")
    code, said = run(example, "hand-off", capture=capsys)
    assert (code, "the report could not be signed" in said) == (5, True), said
    (root / "away").rename(root / "unlock")
    assert [one.verdict for one in read_reports(example.home)] == ["not applicable", "not applicable", "not proven"]
    assert main(["drill", "findings", "--json", "--home", str(example.home.folder)]) == 0
    assert "not proven" in json.loads(capsys.readouterr().out)["findings"][0]["finding"]


def test_ctrl_c_leaves_nothing(root: Path) -> None:
    example = make_example(root, places=0)
    words = ["drill", "run", "hand-off", "--home", str(example.home.folder), "--folder", str(root / "drill")]
    process = subprocess.Popen([sys.executable, "-P", "-m", "holdfast", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    end = time.monotonic() + 60
    while not (root / "drill" / "world").is_dir() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not (root / "drill").exists()
    assert str(root / "drill") not in Path("/proc/self/mountinfo").read_text()
    assert read_reports(example.home) == ()


def test_the_next_run_clears_what_a_kill_left(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "drill"
    (folder / "world" / "work").mkdir(parents=True)
    (folder / "world" / "work").chmod(0)
    folder.chmod(0o700)
    (folder / MARKER).touch(0o600)
    (folder / MARKER).write_text('{"drill": "host-loss", "began": "2026-11-16", "pid": 1}')
    with own_folder(folder, drill="hand-off", tell=told.append):
        assert [one.name for one in folder.iterdir()] == [MARKER]
        with pytest.raises(NotNow), own_folder(folder, drill="hand-off", tell=told.append):
            pass
    assert not folder.exists()
    assert told == [f"the last drill was killed (host-loss, 2026-11-16): removing what it left in {folder}"]


def test_one_drill_of_an_agent_at_a_time(root: Path) -> None:
    """Also in another folder: the report of one would be a change for the other, and both would have one number."""
    example = make_example(root, places=0)
    refused: list[str] = []

    def second(_run: DrillRun, event: str) -> None:
        if event == "baseline_taken":
            with pytest.raises(NotNow) as found:
                run_drill(get_drill("two-alive"), replace(example.order("two-alive"), folder=root / "another"))
            refused.append(found.value.message)

    done = run_drill(get_drill("hand-off"), example.order("hand-off", observe=second))
    assert (done.report.verdict, refused) == ("pass", ["another drill of this agent runs"]), done.report.reason


def test_a_user_without_rights_can_clear_what_the_kernel_left(tmp_path: Path) -> None:
    """Layers of a shadow have folders without any right, which stop everyone but root."""
    folder = tmp_path / "drill"
    locked = folder / "world" / "work" / "work"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.chdir(tmp_path)
            os.chmod(locked, 0)
            if os.geteuid() == 0:
                for one in (tmp_path, *tmp_path.rglob("*")):
                    os.chown(one, 65534, 65534)
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            clear(Path(folder.name))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(folder.iterdir()) == []


def test_a_folder_of_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(BadInput), own_folder(tmp_path, drill="hand-off", tell=print):
        pass
    assert (tmp_path / "mine").exists()


def test_a_rescue_key_restores_on_a_fresh_root(root: Path) -> None:
    """No person and no vault: the report says that a rescue key was used, and proves no paper."""
    example = make_example(root)
    assert main(["rescue", "add", str(root / "rescue"), "--home", str(example.home.folder)]) == 0
    order = replace(example.order("test-restore"), key=DrillKey(kind="rescue key", file=root / "rescue"))
    report = run_drill(get_drill("test-restore"), order).report
    assert (report.verdict, report.key_used, report.infrastructure) == ("pass", "rescue key", "fresh root"), (
        report.reason
    )
