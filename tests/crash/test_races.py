"""Many resumers of one orphaned task: one owner for each epoch, nothing done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_proofs.crash.jobs import Races, run_job
from holdfast_proofs.crash.subjects import CLASSES, ClassName

PER_CLASS = 5  # times seven classes: 35 races of two to six; each fourth orphan is stopped


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_one_owner_for_each_epoch(name: ClassName, shim: Path, measured: Callable[[str], None]) -> None:
    figures = run_job(Races(name=name, count=PER_CLASS), shim)

    measured(f"races, {name}: {figures.points} with {figures.racers} racers")
    assert figures.findings == []
    assert figures.green
    assert figures.points == PER_CLASS


@pytest.mark.slow
def test_races_at_the_default_timers(shim: Path) -> None:
    # Three are killed; the fourth is stopped, and its lease has to lapse.
    figures = run_job(Races(name="queryable", count=4, divide=1, lanes=4), shim)

    assert figures.findings == []
    assert figures.green
