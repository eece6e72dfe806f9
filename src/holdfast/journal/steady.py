"""The journal's time: the wall clock, but it neither falls behind a record nor stands still.

A clock that was set back an hour lies behind the newest record for an hour. Taking the newest
record's time instead keeps windows from reopening, but by itself it would also stop time: no
sleeping task would wake for that hour, or for ten years after a clock was wrong by ten. So from
the newest record on, time goes on with the boot clock until the wall clock has caught up.
"""

from __future__ import annotations

from holdfast.core.clock import Clock


class SteadyTime:
    """One process's reading of it."""

    __slots__ = ("_clock", "_floor_boot_ms", "_floor_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._floor_ms = 0
        self._floor_boot_ms = clock.boot_ms()

    def now_ms(self, newest_ms: int) -> int:
        """Now, given the time of the newest record."""
        boot_ms = self._clock.boot_ms()
        carried_ms = self._floor_ms + boot_ms - self._floor_boot_ms
        if newest_ms > carried_ms:
            self._floor_ms = carried_ms = newest_ms
            self._floor_boot_ms = boot_ms
        return max(self._clock.wall_ms(), carried_ms)
