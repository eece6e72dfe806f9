"""Killed at any call and resumed: every effect once, nothing lost, no doubt hidden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.crash.jobs import Pairs, Sweep, run_job
from holdfast.testing.crash.report import Figures
from holdfast.testing.crash.subjects import CLASSES, ClassName
from holdfast.testing.crash.sweep import MODES
from holdfast.testing.shim import Mode

CALLS_MIN = 150  # a life of three steps makes more; fewer means that the shim is blind

# What is left by a kill after one call is what a kill before the next one leaves, but for locks
# and memory: both sides for two classes here, for all of them in `make crash`.
BOTH_SIDES = ("keyed", "unrepeatable")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_killed_at_every_call(name: ClassName, shim: Path, measured: Callable[[str], None]) -> None:
    """A task of three steps, killed at each call it makes to the system."""
    modes = MODES if name in BOTH_SIDES else (Mode.KILL_AFTER,)

    figures = run_job(Sweep(name=name, modes=modes), shim)

    measured(
        f"crash sweep, {name}: {figures.points} kills at {figures.distinct} points, "
        f"{figures.parked} parked, {figures.per_core:.0f} per second and core"
    )
    assert figures.findings == []
    assert (figures.duplicates, figures.lost, figures.silent, figures.breaches) == (0, 0, 0, 0)
    assert figures.points > len(modes) * CALLS_MIN
    assert figures.distinct > 0.9 * figures.points
    assert figures.unreached > len(modes), "a sweep ends when lives pass unreached"
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["queryable", "unrepeatable"])
def test_the_resumer_is_killed_too(name: ClassName, shim: Path) -> None:
    figures = run_job(Pairs(name=name, count=25), shim)

    assert figures.findings == []
    assert figures.green
    assert figures.points == 25
