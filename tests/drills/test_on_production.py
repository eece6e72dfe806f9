"""`--production`: a person types the agent's name, the real worker is killed, and its own next step is measured."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.downstream.process import BlockingFarEnd, start_blocking
from holdfast.drills.probe import APP, TASK, variable
from holdfast.surfaces.report import read_report, read_reports
from holdfast_proofs.drills import Example, make_example

HOLDFAST = [sys.executable, "-P", "-m", "holdfast"]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    return make_example(tmp_path / "root", places=0)


@contextmanager
def working(example: Example, end: BlockingFarEnd) -> Generator[None]:
    """Production's own worker, with a long task."""
    environment = {**os.environ, variable("keyed"): end.url}
    home = ["--home", str(example.home.folder)]
    args = json.dumps({"steps": ["keyed"] * 400, "pause_s": 0.1})
    submit = [*HOLDFAST, "submit", APP, args, "--task", TASK, "--no-follow", *home]
    worker = subprocess.Popen(
        [*HOLDFAST, "worker", APP, *home], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        subprocess.run(submit, env=environment, check=True, capture_output=True)
        end.wait_effects(2)
        yield
    finally:
        worker.terminate()
        worker.wait()


def drill(example: Example, *words: str, typed: str) -> tuple[int, str]:
    """At a terminal at which this is typed."""
    ours, theirs = pty.openpty()
    command = [*HOLDFAST, "drill", "run", *words, "--production", "--home", str(example.home.folder)]
    try:
        os.write(ours, f"{typed}\n".encode())
        done = subprocess.run(
            [*command, "--folder", str(example.root / "drill")],
            stdin=theirs,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stderr


def test_the_real_worker_is_killed_and_its_own_next_step_is_measured(example: Example) -> None:
    with start_blocking("keyed") as end:
        with working(example, end):
            code, said = drill(example, "process-kill", "hand-off", typed="eve")
            assert (code, "not confirmed" in said) == (2, True), said
            code, said = drill(example, "process-kill", "hand-off", typed="ada")
        effects = end.ledger().effects
    reports = {one.slug: read_report(Path(one.path)).report for one in read_reports(example.home)}
    assert code in (0, 9), said  # a busy machine may miss the target of one second
    kill, handoff = reports["process-kill"], reports["hand-off"]
    assert (kill.environment, kill.infrastructure) == ("production", "this machine")
    assert kill.results.rto.actual_s is not None, kill.reason
    assert kill.safety.production_impact_s == kill.results.rto.actual_s
    assert kill.safety.production_unchanged
    assert all(one.passed for one in kill.results.invariants)
    assert handoff.verdict == "pass", handoff.reason
    assert len({one.base for one in effects}) == len(effects)


def test_what_may_not_run_on_production_is_refused(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(example.home.folder)]
    for slug, text in (("keys-lost", "runs in a shadow alone"), ("process-kill", "stdin is not a terminal")):
        assert main(["drill", "run", slug, "--production", *home]) == 2
        assert text in capsys.readouterr().err
    code, said = drill(example, "process-kill", typed="ada")
    assert (code, "no worker of the agent runs on this machine" in said) == (5, True), said
