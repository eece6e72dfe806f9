"""The machine's clocks in a simulated world: both run with virtual time until something happens."""

from __future__ import annotations

from holdfast_proofs.simulate.parts.loop import VirtualLoop

WALL_START_MS = 1_800_000_000_000
BOOT_START_S = 1_000.0


class SimClock:
    """One machine: a wall clock that may be set, a boot clock that only a restart resets.

    While the machine is frozen, as a paused virtual machine is, its boot clock stands still; the
    wall clock is set right when it runs again.
    """

    __slots__ = ("_boot_start_s", "_boots", "_frozen_s", "_loop", "_wall_start_ms")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._wall_start_ms = WALL_START_MS
        self._boot_start_s = -BOOT_START_S
        self._boots = 1
        self._frozen_s: float | None = None

    @property
    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def wall_ms(self) -> int:
        return self._wall_start_ms + int(self._loop.now_s * 1000)

    def boot_ms(self) -> int:
        now_s = self._loop.now_s if self._frozen_s is None else self._frozen_s
        return int((now_s - self._boot_start_s) * 1000)

    def set_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as a person or NTP does."""
        self._wall_start_ms += by_ms

    def reboot(self) -> None:
        self._boots += 1
        self._boot_start_s = self._loop.now_s
        self._frozen_s = None

    @property
    def frozen(self) -> bool:
        return self._frozen_s is not None

    def freeze(self) -> None:
        self._frozen_s = self._loop.now_s

    def thaw(self) -> None:
        if self._frozen_s is not None:
            self._boot_start_s += self._loop.now_s - self._frozen_s
            self._frozen_s = None
