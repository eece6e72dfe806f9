"""Over a journal in PostgreSQL, resumed by another host: a sample of `make crash ARGS="--journal postgres"`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_proofs.crash.jobs import Races, Sweep, Zombies, run_job
from holdfast_proofs.crash.sweep import CUTS
from holdfast_proofs.shim import Mode

POINTS = 8


@pytest.mark.slow
def test_killed_at_sampled_calls(shim: Path, database: str) -> None:
    job = Sweep(name="unrepeatable", steps=1, points=POINTS, modes=(Mode.KILL_AFTER,), lanes=8)
    figures = run_job(job, shim, database=database)

    assert figures.findings == []
    assert figures.green
    assert figures.points > 0.8 * POINTS


@pytest.mark.slow
def test_cut_off_at_sampled_commits(shim: Path, database: str) -> None:
    figures = run_job(Sweep(name="keyed", steps=1, points=6, modes=CUTS, lanes=8), shim, database=database)

    assert figures.findings == []
    assert figures.green
    assert figures.points > 3


@pytest.mark.slow
def test_stopped_overtaken_by_another_host_and_woken(shim: Path, database: str) -> None:
    figures = run_job(Zombies(name="keyed", guarded=True, count=3, divide=4), shim, database=database)

    assert figures.findings == []
    assert figures.green
    assert figures.points > 0


@pytest.mark.slow
def test_many_resumers_of_one_orphan(shim: Path, database: str) -> None:
    figures = run_job(Races(name="keyed", count=2), shim, database=database)

    assert figures.findings == []
    assert figures.green
