"""The session's own view of its lease: may this process still act?

The deadline runs on the boot clock from the moment the last renewal was *asked for*, with a
margin, so that it ends before the journal's (effects 1.6). It is checked before a step starts
and again right before the first byte; in a worker process a kernel timer kills a process that sleeps
past it. Safety does not rest on any of this: every write is checked against the epoch.

Where the journal belongs to an agent with an arbiter, the agent's own lease bounds the session's:
`BoundLease` compares with both. What holds that lease is not this room's matter; a `Right` says
until when. An agent without one pays nothing for it.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.errors import RunFenced
from holdfast.journal.contract import Session

START_MARGIN_MS = 50  # a step begins only with this much lease left


class SessionLease:
    __slots__ = ("_clock", "_margin_ms", "_offset_ms", "lost", "session")

    def __init__(self, session: Session, clock: Clock) -> None:
        self.session = session
        self.lost = False
        self._clock = clock
        self._margin_ms = min(START_MARGIN_MS, session.ttl_ms // 20)
        self._offset_ms = clock.wall_ms() - clock.boot_ms()

    def ok(self) -> bool:
        """Whether a step may begin."""
        return not self.lost and self.left_ms() > self._margin_ms

    @property
    def deadline_boot_ms(self) -> int:
        """When this process stops acting."""
        return self.session.deadline_boot_ms

    def left_ms(self) -> int:
        return self.session.deadline_boot_ms - self._clock.boot_ms()

    def check(self) -> None:
        """Raise RunFenced where this process may not act any more. A machine that was paused as a whole still has its
        lease, but time passed for its key windows."""
        boot_ms, session = self._clock.boot_ms(), self.session
        if self.lost or boot_ms >= session.deadline_boot_ms or self._jump_ms(boot_ms) > session.ttl_ms:
            self.lost = True
            raise RunFenced

    def was_frozen(self) -> bool:
        """Whether the wall clock ran on while our own clocks stood still (a paused machine)."""
        jump_ms = self._jump_ms(self._clock.boot_ms())
        self._offset_ms += jump_ms
        return jump_ms > self.session.ttl_ms

    def _jump_ms(self, boot_ms: int) -> int:
        """How far the wall clock has run ahead of the boot clock since it was last looked at."""
        return self._clock.wall_ms() - boot_ms - self._offset_ms


class Right(Protocol):
    """Until when this process may act as the agent, on the boot clock. Moves while it is read."""

    @property
    def until_boot_ms(self) -> int: ...

    @property
    def look_every_s(self) -> float: ...  # how often it may have moved


class BoundLease(SessionLease):
    """A session's lease that ends with the agent's, where that ends first."""

    __slots__ = ("_right",)

    def __init__(self, session: Session, clock: Clock, right: Right) -> None:
        super().__init__(session, clock)
        self._right = right

    @property
    def deadline_boot_ms(self) -> int:
        return min(self.session.deadline_boot_ms, self._right.until_boot_ms)

    def left_ms(self) -> int:
        return self.deadline_boot_ms - self._clock.boot_ms()

    def check(self) -> None:
        if self._clock.boot_ms() >= self._right.until_boot_ms:
            self.lost = True
            raise RunFenced
        super().check()
