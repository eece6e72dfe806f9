"""Waiting for an event, for at most so long; for one's turn; and how often to look while nothing happens.

An agent that has a process to itself is looked at as each loop likes. Beside others, what is found in files is looked
for 40 times a second for all of them together. What is found in the journal is looked for after a change; each renewal
of the lease is a look for changes. Leases are renewed at the same ticks of the process's clock, a part at each.

An event is not waited for by `asyncio.wait_for`: on Python 3.11 it swallows a cancel that comes in the same moment as
the event, and the task that was to end runs for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass


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


async def lasting(
    work: Callable[[], Coroutine[object, object, None]], failed: Callable[[BaseException], None], *, again_s: float
) -> None:
    """Run it until it returns. What it raises is given to `failed`, and it begins again: for work that nobody would
    miss until it is needed."""
    while True:
        try:
            return await work()
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - one thread that cannot start, or a panic of a library, is no end
            failed(error)
        await asyncio.sleep(again_s)


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


LOOK_SHARE_S = 0.05
IDLE_S = 300.0  # a renewal of the lease sees what was committed; this is for what it missed
SELDOM_S = 50.0  # within a minute, a person hears that a standby is gone
TICKS_PER_RENEWAL = 6


@dataclass(frozen=True, slots=True)
class Pacing:
    agents: int = 1  # that this process serves

    def look_s(self, usual_s: float) -> float:
        """Between two looks at files."""
        return usual_s if self.agents == 1 else max(usual_s, self.agents * LOOK_SHARE_S)

    def idle_s(self, usual_s: float) -> float:
        """Between two looks at a journal that has not changed."""
        return usual_s if self.agents == 1 else IDLE_S

    def seldom_s(self, usual_s: float) -> float:
        """Between two looks at what changes without a commit."""
        return usual_s if self.agents == 1 else SELDOM_S

    def renew_in_s(self, every_s: float, *, now_s: float) -> float:
        """Until the next renewal of a lease; beside others one tick later, which is still twice within a lease."""
        if self.agents == 1:
            return every_s
        tick_s = every_s / TICKS_PER_RENEWAL
        return (now_s + every_s + tick_s) // tick_s * tick_s - now_s


ALONE = Pacing()
