"""Killed at any call and resumed: every effect once, nothing lost, no doubt hidden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_proofs.crash.jobs import Pairs, Sweep, run_job
from holdfast_proofs.crash.report import Figures
from holdfast_proofs.crash.subjects import CLASSES, ClassName
from holdfast_proofs.crash.sweep import MODES
from holdfast_proofs.shim import Mode

STEP_CALLS_MIN = 40  # a life of one step makes more after its submission
CALLS_MIN = 100  # a life of three steps makes more; fewer means that the shim is blind

# What a kill after one call leaves is what a kill before the next one leaves, but for locks and
# memory; and a journal is made in one way whatever its tasks are. Here a task of one step is killed
# after every call from the submission on, and each class at a sample of the calls of three steps:
# one class on both sides of them and from the very first on. `make crash` leaves nothing out.
WHOLE = ("keyed",)
SAMPLE = 24


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_killed_at_every_call(name: ClassName, shim: Path, measured: Callable[[str], None]) -> None:
    """A task of one step, killed at each call it makes to the system."""
    figures = run_job(Sweep(name=name, steps=1, modes=(Mode.KILL_AFTER,), making=False), shim)

    measured(
        f"crash sweep, {name}: {figures.points} kills at {figures.distinct} points, "
        f"{figures.parked} parked, {figures.per_core:.0f} per second and core"
    )
    assert figures.findings == []
    assert (figures.duplicates, figures.lost, figures.silent, figures.breaches) == (0, 0, 0, 0)
    assert figures.points > STEP_CALLS_MIN
    assert figures.distinct > 0.9 * figures.points
    assert figures.unreached > 1, "a sweep ends when lives pass unreached"
    check_parks(figures)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_killed_at_sampled_calls(name: ClassName, shim: Path) -> None:
    modes, points = (MODES, 2 * SAMPLE) if name in WHOLE else ((Mode.KILL_AFTER,), SAMPLE)
    points *= 2 if name == "unrepeatable" else 1  # enough to meet a send whose outcome is unknown
    figures = run_job(Sweep(name=name, modes=modes, points=points), shim)

    assert figures.findings == []
    assert (figures.duplicates, figures.lost, figures.silent, figures.breaches) == (0, 0, 0, 0)
    assert figures.points > 0.8 * points
    assert figures.distinct > 0.9 * figures.points
    check_parks(figures)


def check_parks(figures: Figures) -> None:
    """A person is asked exactly where a send had begun and no result was recorded."""
    assert figures.needless_parks == 0
    if figures.name == "unrepeatable":
        assert figures.parked == figures.in_doubt > 0
    else:
        assert figures.parked == 0


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 10])
def test_tasks_of_other_lengths(steps: int, shim: Path) -> None:
    """A sample of the matrix; `make crash` runs it whole."""
    figures = run_job(Sweep(name="unrepeatable", steps=steps, points=20), shim)

    assert figures.findings == []
    assert figures.green
    assert figures.steps == steps
    assert 16 <= figures.distinct == figures.points <= 24


def test_one_kill_alone(shim: Path) -> None:
    """The command that a finding names runs its trial and no other."""
    figures = run_job(Sweep(name="keyed", steps=1, at=(120,), modes=(Mode.KILL_AFTER,)), shim)

    assert figures.green
    assert (figures.points, figures.distinct, figures.unreached) == (1, 1, 1)


def test_sample_is_spread_over_the_whole_life(shim: Path) -> None:
    figures = run_job(Sweep(name="keyed", points=10, modes=(Mode.KILL_AFTER,)), shim)

    assert figures.green
    assert 8 <= figures.points <= 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["queryable", "unrepeatable"])
def test_the_resumer_is_killed_too(name: ClassName, shim: Path) -> None:
    figures = run_job(Pairs(name=name, firsts=10, seconds=2), shim)

    assert figures.findings == []
    assert figures.green
    assert 16 <= figures.distinct <= figures.points <= 24
    assert figures.product > figures.points * CALLS_MIN
    check_parks(figures)
