"""The journal's time: that of the database, carried by this host's clocks between two looks at it.

Hosts that share a journal may have clocks a day apart, so none of them is believed: each commit brings the database's
time along, and until the next one it is carried on by this host's own clocks. It never falls: not behind the newest
record, and not when the database's clock is set back or a promoted standby's is behind; from there the boot clock
carries it until the database's clock has caught up. A wall clock that jumps ahead by more than STEP_MS without the
boot clock is not believed either, until the database has said so.
"""

from __future__ import annotations

from holdfast.core.clock import Clock

STEP_MS = 60_000


class CarriedTime:
    """One process's reading of it."""

    __slots__ = ("_ahead_ms", "_clock", "_floor_boot_ms", "_floor_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = 0  # the database's clock against this host's
        self._floor_ms = 0
        self._floor_boot_ms = clock.boot_ms()

    def heard(self, database_ms: int, *, newest_ms: int = 0) -> None:
        """The database has just said its time; and when the newest record is from."""
        self._ahead_ms = database_ms - self._clock.wall_ms()
        self._raise(max(database_ms, newest_ms))

    @property
    def host_ahead_ms(self) -> int:
        """How far this host's clock was ahead of the database's when that was last heard."""
        return -self._ahead_ms

    def behind_ms(self) -> int:
        """How far the database's clock is behind the time that records have; 0 when it is not."""
        return max(0, self.now_ms() - self._clock.wall_ms() - self._ahead_ms)

    def now_ms(self) -> int:
        carried_ms = self._carried_ms(self._clock.boot_ms())
        told_ms = self._clock.wall_ms() + self._ahead_ms
        if carried_ms < told_ms <= carried_ms + STEP_MS:
            self._raise(told_ms)
            return told_ms
        return carried_ms

    def _carried_ms(self, boot_ms: int) -> int:
        # A clock of another boot (in tests): at least the time since then has passed.
        passed_ms = boot_ms - self._floor_boot_ms if boot_ms >= self._floor_boot_ms else boot_ms
        return self._floor_ms + passed_ms

    def _raise(self, to_ms: int) -> None:
        boot_ms = self._clock.boot_ms()
        self._floor_ms = max(to_ms, self._carried_ms(boot_ms))
        self._floor_boot_ms = boot_ms
