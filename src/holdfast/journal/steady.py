"""The journal's time: the wall clock, but it neither falls behind a record nor stops.

A clock that was set back an hour is behind the newest record for an hour. Taking the newest record's time instead keeps
windows from reopening, but by itself it would also stop time: no sleeping task would wake for that hour, or for ten
years after a clock was wrong by ten. So from the newest record on, time goes on with the boot clock until the wall
clock has caught up. Every process of this boot reckons from the same record and so comes to the same time: a task that
one of them wakes now is due for all.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.clock import Clock


class Moment(NamedTuple):
    """When the newest record was written, on both clocks."""

    at_ms: int
    boot_ms: int


class SteadyTime:
    """One process's reading of it."""

    __slots__ = ("_clock", "_floor_boot_ms", "_floor_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._floor_ms = 0
        self._floor_boot_ms = clock.boot_ms()

    def now_ms(self, newest: Moment) -> int:
        """Now, given the newest record."""
        boot_ms = self._clock.boot_ms()
        # A record of an earlier boot: at least the time since the machine started has passed.
        passed_ms = boot_ms - newest.boot_ms if boot_ms >= newest.boot_ms else boot_ms
        carried_ms = self._floor_ms + boot_ms - self._floor_boot_ms
        if newest.at_ms and newest.at_ms + passed_ms > carried_ms:
            self._floor_ms = carried_ms = newest.at_ms + passed_ms
            self._floor_boot_ms = boot_ms
        return max(self._clock.wall_ms(), carried_ms)
