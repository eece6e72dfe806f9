"""Programs that are stopped, overtaken and woken again do nothing twice.

With the dead-man timer a zombie is dead before it could run; without it, its writes are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_proofs.crash.jobs import Zombies, run_job
from holdfast_proofs.crash.subjects import CLASSES, ClassName

PER_CLASS = 4  # times seven classes, with and without the timer: 56 zombies
LEASE_S = 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_zombies_with_the_timer_are_dead(name: ClassName, shim: Path, measured: Callable[[str], None]) -> None:
    figures = run_job(Zombies(name=name, guarded=True, count=PER_CLASS), shim)

    measured(f"zombies, {name}: dead {figures.dead_after_s_max:.2f} s after the stop at the latest")
    assert figures.findings == []
    assert figures.green
    assert figures.killed == figures.points + figures.unreached == PER_CLASS
    assert figures.dead_after_s_max < 2 * LEASE_S


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_zombies_without_the_timer_are_refused(name: ClassName, shim: Path) -> None:
    figures = run_job(Zombies(name=name, guarded=False, count=PER_CLASS), shim)

    assert figures.findings == []
    assert figures.green
    assert figures.killed == 0
    assert figures.points + figures.unreached == PER_CLASS


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False], ids=["timer", "no timer"])
def test_zombies_at_the_default_timers(shim: Path, guarded: bool) -> None:
    talking = frozenset(("connect", "send", "recv"))
    job = Zombies(name="queryable", guarded=guarded, count=3, divide=1, lanes=3, only=talking)

    figures = run_job(job, shim)

    assert figures.findings == []
    assert figures.green
    assert figures.points == 3


@pytest.mark.slow
def test_a_worker_stopped_inside_a_commit_frees_the_journal(shim: Path) -> None:
    """The write lock falls with the process, also before its first lease and after its last."""
    job = Zombies(name="idempotent", guarded=True, count=40, only=frozenset(("fdatasync",)))

    figures = run_job(job, shim)

    assert figures.findings == []
    assert figures.killed == figures.points > 10


@pytest.mark.slow
def test_the_timer_is_what_saves_a_lookup(shim: Path) -> None:
    """Stopped between the last look at the lease and the first byte: only the timer helps."""
    with_timer = run_job(Zombies(name="queryable", guarded=True, brink=True, count=3), shim)
    assert with_timer.green, with_timer.findings

    without = run_job(Zombies(name="queryable", guarded=False, brink=True, count=3), shim)
    assert without.duplicates > 0
