"""Waiting for an event, for at most so long; and for one's turn.

Not by `asyncio.wait_for`: on Python 3.11 it swallows a cancel that comes in the same moment as the
event, and the task that was to end runs for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager


async def wait_event(event: asyncio.Event, seconds: float) -> bool:
    """True where the event came within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


@asynccontextmanager
async def running_beside(work: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Run it while the block runs; with the block it is over, however it ends. Raises what the work itself raised."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()


def is_closed_from_outside(error: BaseException) -> bool:
    """Whether this is no outcome of the code: its coroutine is thrown away, and may await nothing. Code that raises
    GeneratorExit itself does so while its task runs."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is None
    except RuntimeError:  # no loop is running
        return True


class Turn:
    """A lock, given in the order it was asked for; taking a free one costs no await."""

    __slots__ = ("_waiting", "taken")

    def __init__(self) -> None:
        self.taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_take(self) -> bool:
        if self.taken:
            return False
        self.taken = True
        return True

    async def take(self) -> None:
        if self.try_take():
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self.give()  # it was given just before the cancel came
            raise

    def give(self) -> None:
        """Hand it to the next one that still waits; it is never free in between."""
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        self.taken = False
