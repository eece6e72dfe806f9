"""Running schedules, also in processes of their own."""

from __future__ import annotations

from collections import Counter

from holdfast.errors import HoldfastError
from holdfast_proofs.merges.faults import FAULTS
from holdfast_proofs.merges.ledger import Why
from holdfast_proofs.merges.world import World

SELF_TEST_SCHEDULES = 3_000


def judge(seed: int, without: Why | None = None) -> tuple[str, Counter[Why]]:
    """What is wrong at the end of this schedule, empty where nothing is; and how many lines were excused, and why."""
    world = World(seed, without=without)
    try:
        return world.run(), world.ledger.excused
    except HoldfastError as error:
        return f"{error.code}: {error}", world.ledger.excused


def find_breach(seed: int) -> str:
    return judge(seed)[0]


def find_first(name: str, schedules: int = SELF_TEST_SCHEDULES) -> tuple[int, str] | None:
    """The first schedule that shows this trap."""
    with FAULTS[name]():
        return next(((seed, why) for seed in range(schedules) if (why := find_breach(seed))), None)


def judge_all(seeds: range, without: Why | None = None) -> tuple[list[tuple[int, str]], Counter[Why]]:
    """The schedules that broke a promise, and the excuses of all."""
    broken, excused = list[tuple[int, str]](), Counter[Why]()
    for seed in seeds:
        wrong, used = judge(seed, without)
        broken += [(seed, wrong)] if wrong else []
        excused += used
    return broken, excused
