"""Waiting awake for the answer to a lone task.

A process that sleeps for its answer is woken late, and then runs twice as long as without the sleep
(docs/decisions/0117). So the answer is looked for again and again, for `LOOK_S` at most, and between two looks the
processor is offered to everybody else who needs it, the server first of all. Where an answer does not come in this time,
the next ones are slept for: twice as many after each miss, half as many after each answer that was seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LOOK_S = 0.0006
SLEEPS_MAX = 256


class Awake:
    """Of one process: whether it pays to wait awake."""

    __slots__ = ("_now", "_sleeps", "_sleeps_next")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._sleeps = 0  # answers that are still slept for
        self._sleeps_next = 1

    def sees(self, poll: Callable[[int], object]) -> bool:
        """Whether the answer came while we looked. `poll` waits for so many milliseconds."""
        if self._sleeps:
            self._sleeps -= 1
            return False
        end = self._now() + LOOK_S
        while self._now() < end:
            os.sched_yield()
            if poll(0):
                self._sleeps_next = max(1, self._sleeps_next // 2)
                return True
        self._sleeps = self._sleeps_next
        self._sleeps_next = min(2 * self._sleeps_next, SLEEPS_MAX)
        return False
