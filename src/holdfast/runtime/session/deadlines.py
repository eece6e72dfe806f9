"""Deadlines of attempts: one timer for all of them, because most attempts end long before.

A timer per attempt costs more than the rest of its bookkeeping. Here an attempt notes when it
must end; one tick every TICK_S looks for those that are over and cancels them. Short deadlines
get a timer of their own, where TICK_S would be felt.

A tool that will not be cancelled keeps its attempt open: it has not ended. It is
reported once it is STUCK_S late, so that it is not taken for work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

TICK_S = 0.05
EXACT_BELOW_S = 2.0
STUCK_S = 5.0


class Deadline(msgspec.Struct, eq=False, gc=False):  # no cycle outlives its attempt
    """One attempt and when it must end."""

    task: asyncio.Task[Any]
    ends: float
    names: tuple[str, ...]
    exact: bool  # cancelled by a timer of its own
    cancels: int  # of its task, before
    expired: bool = False
    stuck: bool = False

    def is_late(self) -> bool:
        """Whether the cancel that was just met is this deadline's; it is then taken back."""
        return self.expired and self.task.uncancel() <= self.cancels


class Deadlines:
    """Runs awaitables with a deadline."""

    __slots__ = ("_entries", "_loop", "_on_stuck", "_tick")

    def __init__(self, on_stuck: Callable[[str], None]) -> None:
        self._on_stuck = on_stuck
        self._entries: dict[Deadline, None] = {}  # in order: the same run expires them alike
        self._tick: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this worker; asked for once: each time costs a system call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    async def run(self, start: Callable[[], Awaitable[object]], timeout_s: float, *names: str) -> object:
        """What it gives, or TimeoutError once it was cancelled for being late and has ended. `names`, joined by a
        slash, say what it is where it is stuck."""
        entry = self.begin(timeout_s, names)
        try:
            if entry.exact:
                async with asyncio.timeout(timeout_s):
                    return await start()
            return await start()
        except asyncio.CancelledError:
            if entry.is_late():
                raise TimeoutError from None
            raise
        finally:
            self.end(entry)

    def begin(self, timeout_s: float, names: tuple[str, ...]) -> Deadline:
        """The same without a coroutine of its own: give it to `end` in any case, and ask `is_late` at a cancel."""
        loop = self._loop or self.loop
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a deadline needs a running asyncio task")
        entry = Deadline(task, loop.time() + timeout_s, names, timeout_s < EXACT_BELOW_S, task.cancelling())
        self._entries[entry] = None
        if self._tick is None:
            self._tick = loop.call_later(TICK_S, self._look, loop)
        return entry

    def end(self, entry: Deadline) -> None:
        self._entries.pop(entry, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for entry in self._entries:
            if entry.ends <= now and not (entry.expired or entry.exact):
                entry.expired = True
                entry.task.cancel()
            if entry.ends + STUCK_S <= now and not entry.stuck:
                entry.stuck = True
                self._on_stuck("/".join(entry.names))
        self._tick = loop.call_later(TICK_S, self._look, loop) if self._entries else None
