"""What goes wrong in one simulated world: drawn from its seed, no two worlds alike.

Every kind of fault is left out of most worlds and frequent in some, so that the faults do not
drown each other: a world in which everything fails finds less than many in which a few things
do. `Dice` is the world's only source of chance; with the same seed and code it falls the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

T = TypeVar("T")

LEASE_TTL_S = 4.0
DELAY_S = 2.0  # no request lands later than this after it was sent
TIMEOUT_S = 1.0  # of one attempt
WINDOW_S = 14.0  # how long a keyed far end remembers


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Rates of one world. Those named `_every_s` are mean times between, 0 for never."""

    workers: int = 2
    tasks: int = 2
    dead_man: bool = True
    scope: bool = False  # a foreign loop in the first worker's process
    # processes
    crash_point: float = 0.0
    pause_point: float = 0.0
    zombie: float = 0.0  # a pause beyond the lease between a start and its first byte
    crash_every_s: float = 0.0
    pause_every_s: float = 0.0
    stop_every_s: float = 0.0
    reboot_every_s: float = 0.0
    freeze_every_s: float = 0.0
    restore: bool = False  # the journal is lost once and restored from an older copy
    clock_every_s: float = 0.0
    # the way to the far end and back
    not_sent: float = 0.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    slow: float = 0.0
    # the far end
    refused: float = 0.0
    busy: float = 0.0
    error: float = 0.0
    unsure: float = 0.0
    # the journal
    full_every_s: float = 0.0
    commit_unknown: float = 0.0
    slow_commit: float = 0.0
    # people
    person: bool = False
    evidence: float = 0.0
    cancel: float = 0.0

    @property
    def crashes_only(self) -> bool:
        """Whether nothing but the death of processes goes wrong."""
        kept = {"workers", "tasks", "dead_man", "crash_point", "crash_every_s", "person"}
        return not any(getattr(self, one.name) for one in fields(self) if one.name not in kept)


class Dice:
    """Chance, from a seed; still once the faults are told to stop."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"holdfast simulation {seed}")
        self.stopped = False

    def hits(self, rate: float) -> bool:
        """Whether a fault of this rate strikes now."""
        return rate > 0.0 and not self.stopped and self._random.random() < rate

    def coin(self, rate: float = 0.5) -> bool:
        return self._random.random() < rate

    def seconds(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def interval(self, mean_s: float) -> float:
        return self._random.expovariate(1.0 / mean_s)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random.random() * len(choices))]

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self._random.random() * (high - low + 1))


def draw_profile(dice: Dice) -> Profile:
    """The rates of this seed's world."""

    def some(*rates: float, often: float = 0.35) -> float:
        return dice.pick(rates) if dice.coin(often) else 0.0

    workers, tasks = dice.number(1, 3), dice.number(1, 3)
    crash_point, crash_every_s = some(0.003, 0.01, 0.03, often=0.6), some(3.0, 8.0)
    if dice.coin(0.12):
        return Profile(
            workers=workers, tasks=tasks, crash_point=crash_point, crash_every_s=crash_every_s, person=dice.coin()
        )
    dead_man = dice.coin()
    # A wall clock set back while the machine stands still hides it from every clock inside.
    freeze_every_s = some(5.0, 12.0, often=0.15)
    clock_every_s = 0.0 if freeze_every_s else some(3.0, 10.0, often=0.25)
    return Profile(
        workers=workers,
        tasks=tasks,
        dead_man=dead_man,
        scope=not dead_man and dice.coin(0.25),
        crash_point=crash_point,
        crash_every_s=crash_every_s,
        pause_point=some(0.003, 0.01, 0.03, often=0.5),
        zombie=some(0.05, 0.2, 0.5, often=0.2),
        pause_every_s=some(3.0, 8.0),
        stop_every_s=some(4.0, 10.0, often=0.2),
        reboot_every_s=some(6.0, 15.0, often=0.15),
        freeze_every_s=freeze_every_s,
        restore=dice.coin(0.12),
        clock_every_s=clock_every_s,
        not_sent=some(0.05, 0.3, often=0.2),
        lost_request=some(0.05, 0.2, 0.5),
        lost_reply=some(0.05, 0.2, 0.5, often=0.5),
        slow=some(0.05, 0.2, 0.5, often=0.5),
        refused=some(0.05, 0.3, 0.9, often=0.4),
        busy=some(0.05, 0.3, often=0.25),
        error=some(0.05, 0.3, often=0.25),
        unsure=some(0.1, 0.5, 0.95, often=0.2),
        full_every_s=some(4.0, 10.0, often=0.15),
        commit_unknown=some(0.02, 0.2, often=0.25),
        slow_commit=some(0.02, 0.1, often=0.3),
        person=dice.coin(0.7),
        evidence=some(0.2, 0.8, often=0.3),
        cancel=some(0.3, often=0.15),
    )
