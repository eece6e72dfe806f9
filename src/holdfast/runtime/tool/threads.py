"""Threads for blocking tools whose repeats do no harm.

A thread cannot be killed, so a cancelled call's thread runs on; that is why Queryable and
Unrepeatable tools do not run here (blocking.py). A thread that was given up still counts against
the limit until it ends. Threads are daemons: a tool that hangs does not keep the process from
ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

THREADS_MAX = 32

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Runs plain functions beside the event loop, at most `threads_max` at a time."""

    __slots__ = ("_room",)

    def __init__(self, *, threads_max: int = THREADS_MAX) -> None:
        self._room = asyncio.Semaphore(threads_max)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's value, or what it raised; context variables are those of the caller."""
        await self._room.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            error: BaseException | None = None
            value: T | None = None
            try:
                value = context.run(function, *args, **kwargs)
            except BaseException as raised:  # noqa: BLE001 - handed to the caller
                error = raised
            try:
                loop.call_soon_threadsafe(self._finish, done, value, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        try:
            threading.Thread(target=work, name="holdfast-tool", daemon=True).start()
        except RuntimeError:
            self._room.release()
            raise
        return await done

    def _finish(self, done: asyncio.Future[T], value: T | None, error: BaseException | None) -> None:
        self._room.release()
        if done.cancelled():
            return
        if isinstance(error, StopIteration):
            done.set_exception(RuntimeError(f"the tool raised {error!r}"))  # a future refuses it
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # pyright: ignore[reportArgumentType] - T may be None itself
