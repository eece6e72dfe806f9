"""A clock that a test turns by hand, and randomness that it can repeat: for `core.clock`'s two ports."""

from __future__ import annotations

import hashlib


class ManualClock:
    """A clock that moves when a test says so."""

    __slots__ = ("_boot_ms", "_wall_ms", "boot_id")

    def __init__(self, *, wall_ms: int = 1_800_000_000_000, boot_ms: int = 1_000, boot_id: str = "boot-1") -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms
        self.boot_id = boot_id

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def advance(self, milliseconds: int) -> None:
        """Let time pass on both clocks."""
        if milliseconds < 0:
            raise ValueError("time does not pass backwards; see set_wall_ms")
        self._wall_ms += milliseconds
        self._boot_ms += milliseconds

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, as a person or NTP does: the boot clock does not notice."""
        self._wall_ms = wall_ms

    def reboot(self, *, boot_id: str) -> None:
        self.boot_id = boot_id
        self._boot_ms = 0


class SeededEntropy:
    """The same bytes for the same seed, on every machine and Python version."""

    __slots__ = ("_drawn", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def bytes(self, count: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"holdfast {self._seed} {self._drawn}".encode()).digest(count)
