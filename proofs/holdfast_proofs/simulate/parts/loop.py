"""An event loop in virtual time, shared by several simulated processes.

`time()` is a number that jumps to the next timer when nothing is ready, so an hour of leases
passes in milliseconds and nothing depends on the machine. There is no selector, no thread and no
socket: whatever would wait for the real world waits for ever, and `advance` says so.

Each callback belongs to the process whose context it carries (`OWNER`). A dead process gets no
turn again, not even for a `finally`: its callbacks are dropped and its coroutines are kept, never
closed, until the world ends, because closing one would run code that a killed process never runs.
A paused process's callbacks and expired timers wait in order, as for a process that is stopped.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

TURNS_MAX = 200_000  # callbacks at one instant: more is a loop that never waits
CLOSES_MAX = 20  # a `finally` may wait several times while its coroutine is put away

Turn = tuple[asyncio.Handle, Context, Callable[..., object], tuple[Any, ...]]


class Owner:
    """Whether the callbacks of one process get turns."""

    __slots__ = ("alive", "held", "paused")

    def __init__(self) -> None:
        self.alive = True
        self.paused = False
        self.held: deque[Turn] = deque()


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class Stuck(Exception):
    """The simulated world spins without time passing, or waits for something outside it."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order they became ready, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.world = Context()  # belongs to no process
        self.turns = 0
        self.complaints: list[str] = []
        self._soon: deque[Turn] = deque()
        self._timers: list[tuple[float, int, Turn]] = []
        self._timer_number = 0
        self._made: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue((handle, context, callback, args))
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, (handle, context, callback, args)))
        return handle

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride] - adds nothing to it
        self, coro: Coroutine[Any, Any, Any], **more: Any
    ) -> asyncio.Task[Any]:
        task = super().create_task(coro, **more)
        self._made.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Remember what nobody has looked at; a process that died took its answers with it."""
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def start(self, coro: Coroutine[Any, Any, Any], owner: Owner | None) -> asyncio.Task[Any]:
        """Begin a coroutine as part of a process, or of the world around them."""
        context = self.world.copy()
        context.run(OWNER.set, owner)
        return self.create_task(coro, context=context)

    def at(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Call back in the world, that long from now, whatever becomes of the processes."""
        return self.call_at(self.now_s + seconds, callback, *args, context=self.world)

    def resume(self, owner: Owner) -> None:
        """Give a paused process all the turns it has missed, in order."""
        owner.paused = False
        self._soon.extend(owner.held)
        owner.held.clear()

    def advance(self, until: Callable[[], bool], *, end_s: float) -> bool:
        """Let the world go on until the condition holds; False where `end_s` came first."""
        asyncio.events._set_running_loop(self)
        try:
            while not until():
                if not self._soon and not self._step_time(end_s):
                    return False
                self._take_turns()
        finally:
            asyncio.events._set_running_loop(None)
        return True

    def end(self) -> None:
        """Put every coroutine away; nothing that still runs then counts."""
        asyncio.events._set_running_loop(self)
        try:
            for task in self._made:
                _put_away(task)
        finally:
            asyncio.events._set_running_loop(None)
        self._made.clear()
        self._soon.clear()
        self._timers.clear()
        self.close()

    def _step_time(self, end_s: float) -> bool:
        timers = self._timers
        while timers and timers[0][2][0].cancelled():
            heapq.heappop(timers)
        if not timers or timers[0][0] > end_s:
            self.now_s = max(self.now_s, end_s)
            return False
        self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            self._enqueue(heapq.heappop(timers)[2])
        return True

    def _take_turns(self) -> None:
        spent = 0
        soon = self._soon
        while soon:
            handle, context, callback, args = turn = soon.popleft()
            owner = context.get(OWNER)
            if handle.cancelled() or (owner is not None and not owner.alive):
                continue
            if owner is not None and owner.paused:
                owner.held.append(turn)
                continue
            context.run(callback, *args)
            spent += 1
            if spent > TURNS_MAX:
                raise Stuck(f"{spent} turns at {self.now_s:.3f} s: {callback!r}")
        self.turns += spent

    def _enqueue(self, turn: Turn) -> None:
        owner = turn[1].get(OWNER)
        if owner is None or not (owner.paused or not owner.alive):
            self._soon.append(turn)
        elif owner.alive:
            owner.held.append(turn)


def _put_away(task: asyncio.Task[Any]) -> None:
    if task.done():
        if not task.cancelled():
            task.exception()
        return
    coro = cast("Coroutine[Any, Any, Any]", task.get_coro())
    for _ in range(CLOSES_MAX):
        with suppress(BaseException):
            coro.close()
            return
