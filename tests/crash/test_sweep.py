"""Killed at any call and resumed: every effect once, nothing lost, no doubt hidden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.crash.jobs import Sweep, run_job
from holdfast.testing.crash.report import Figures
from holdfast.testing.crash.subjects import CLASSES, ClassName
from holdfast.testing.shim import Mode

CALLS_MIN = 150  # a life of three steps makes more; fewer means that the shim is blind


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_killed_at_every_call(name: ClassName, shim: Path, measured: Callable[[str], None]) -> None:
    """A task of three steps, killed before and after each call it makes to the system."""
    figures = run_job(Sweep(name=name), shim)

    measured(
        f"crash sweep, {name}: {figures.points} kills at {figures.distinct} points, "
        f"{figures.parked} parked, {figures.points / figures.seconds:.0f} per second"
    )
    assert figures.findings == []
    assert (figures.duplicates, figures.lost, figures.silent, figures.breaches) == (0, 0, 0, 0)
    assert figures.points > 2 * CALLS_MIN
    assert figures.distinct > 0.9 * figures.points
    assert figures.unreached >= 2, "the sweep ends when a life passes unreached, in both modes"
    check_parks(figures)


def check_parks(figures: Figures) -> None:
    """A person is asked exactly where a send had begun and no result was recorded."""
    assert figures.needless_parks == 0
    if figures.name == "unrepeatable":
        assert figures.parked == figures.in_doubt > 0
    else:
        assert figures.parked == 0


def test_sample_is_spread_over_the_whole_life(shim: Path) -> None:
    figures = run_job(Sweep(name="keyed", points=10, modes=(Mode.KILL_AFTER,)), shim)

    assert figures.green
    assert 8 <= figures.points <= 12
