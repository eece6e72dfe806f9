"""Running schedules, also in processes of their own."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast_proofs.merges.faults import FAULTS
from holdfast_proofs.merges.world import World

SELF_TEST_SCHEDULES = 3_000


def find_breach(seed: int) -> str:
    """What is wrong at the end of this schedule; empty where nothing is."""
    try:
        return World(seed).run()
    except HoldfastError as error:
        return f"{error.code}: {error}"


def find_first(name: str, schedules: int = SELF_TEST_SCHEDULES) -> tuple[int, str] | None:
    """The first schedule that shows this trap."""
    with FAULTS[name]():
        return next(((seed, why) for seed in range(schedules) if (why := find_breach(seed))), None)


def breaches_of(seeds: range) -> list[tuple[int, str]]:
    return [(seed, why) for seed in seeds if (why := find_breach(seed))]
