"""What an attempt of an `async def` tool has started: does any of it still run when the attempt is given up?

A timeout cancels the tool's coroutine. It does not end a thread (`asyncio.to_thread`), a task of its own (`shield`), a
process. Such code may send after the attempt has been given up, so no quiet time may begin, and no lookup may be
believed, before it has ended. Nothing here ends it: a task or a thread may serve more than this attempt. A step whose
attempt left something running is parked with that reason.

A context variable names the attempt; asyncio hands it on to tasks and to `to_thread`. Recorded are, in that context:

* tasks: by a task factory of the event loop; one that is there already is used by it;
* threads, and work for a thread pool, the loop's own too: by wrappers around `Thread.start` and
  `ThreadPoolExecutor.submit`. Not the look-up of a host name, in which a slow name server can hold a thread for long:
  it sends nothing;
* processes: by an audit hook. A process is noted in the session's page before it starts, because it may outlive a
  worker that is killed (keeper.py says more).

All of it is installed with the first such attempt, and do nothing outside of one. Not seen: work
that is handed by a queue to a thread or task that was started elsewhere, and threads and processes that C code starts.

Only tools whose repetition would do harm are watched, and not those that use `call.http` alone, which is closed when an
attempt fails. Watching costs about a microsecond per attempt; looking is done only where the outcome is in doubt.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.thread import _worker as _pool_thread  # pyright: ignore[reportPrivateUsage]
from contextvars import ContextVar
from typing import Any

from holdfast.host.hardening import own_children
from holdfast.runtime.tool.keeper import STARTS_A_PROCESS

A_PROCESS = "a process"
GRACE_S = 5.0  # for what was started to end by itself after a timeout, before a person is asked
_LOOK_EVERY_S = 0.02
_HARMLESS = frozenset((socket.getaddrinfo, socket.getnameinfo))

# Any in this file: results of other code's tasks and futures, never read here.
_Running = asyncio.Task[Any] | Future[Any] | threading.Thread


class Started:
    """What one attempt has started so far; recorded while its block runs."""

    __slots__ = ("_before", "_before_process", "_is_over", "_running", "_token")

    def __init__(self, before_process: Callable[[], None]) -> None:
        self._before_process = before_process
        self._is_over = False
        self._running: list[_Running] = []
        self._before: frozenset[int] | None = None  # children of ours when it started its first process

    def __enter__(self) -> None:
        _install(asyncio.get_running_loop())
        self._token = _current.set(self)

    def __exit__(self, *_error: object) -> None:
        _current.reset(self._token)

    def add(self, one: _Running) -> None:
        if not self._is_over:
            self._running.append(one)

    def add_process(self) -> None:
        """Raises OSError where it cannot be noted: then it does not start."""
        if self._before is None and not self._is_over:
            self._before_process()
            self._before = frozenset(own_children() or ())

    def close(self) -> None:
        """The attempt is over: what its code starts from now on belongs to no attempt."""
        self._is_over = True
        self._running.clear()

    def left(self) -> str:
        """What of it still runs, in words; empty where nothing does."""
        if self._has_process():  # first: asyncio waits for its end in a thread
            return A_PROCESS
        for one in self._running:
            if isinstance(one, threading.Thread):
                if one.is_alive():
                    return f"the thread {one.name}"
            elif not one.done():
                return f"the task {one.get_name()}" if isinstance(one, asyncio.Task) else "a call in a thread"
        return ""

    async def left_in_the_end(self) -> str:
        """The same, once it had GRACE_S to end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GRACE_S
        while (left := self.left()) and loop.time() < until:  # noqa: ASYNC110 - a thread sets no event when it ends
            await asyncio.sleep(_LOOK_EVERY_S)
        return left

    def _has_process(self) -> bool:
        if self._before is None:
            return False
        now = own_children()
        return now is None or any(_is_alive(pid) for pid in now if pid not in self._before and pid not in KEEPERS)


KEEPERS: set[int] = set()  # children of ours that belong to no attempt, or are ended with it
_current: ContextVar[Started | None] = ContextVar("holdfast_started", default=None)
_installed = False


def _install(loop: asyncio.AbstractEventLoop) -> None:
    global _installed  # noqa: PLW0603 - once per process
    factory = loop.get_task_factory()
    if not isinstance(factory, _Factory):
        loop.set_task_factory(_Factory(factory))
    if not _installed:
        _installed = True
        _wrap_threads()
        sys.addaudithook(_audit)


class _Factory:
    """A task factory that records tasks of attempts; all else is left to the one that was there before."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Callable[..., Any] | None) -> None:
        self._inner = inner

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **rest: Any) -> Any:
        inner = self._inner
        task: Any = asyncio.Task(coro, loop=loop, **rest) if inner is None else inner(loop, coro, **rest)
        if (started := _current.get()) is not None:
            started.add(task)
        return task


def _wrap_threads() -> None:
    submit, start = ThreadPoolExecutor.submit, threading.Thread.start

    @functools.wraps(submit)
    def recorded(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = submit(self, fn, *args, **kwargs)
        if (started := _current.get()) is not None and fn not in _HARMLESS:
            started.add(future)
        return future

    @functools.wraps(start)
    def recorded_start(self: threading.Thread) -> None:
        # A thread of a pool goes on for ever; the work that it is given is recorded by itself.
        if (started := _current.get()) is not None and getattr(self, "_target", None) is not _pool_thread:
            started.add(self)
        start(self)

    ThreadPoolExecutor.submit, threading.Thread.start = recorded, recorded_start


def _audit(event: str, _args: tuple[Any, ...]) -> None:
    if event in STARTS_A_PROCESS and (started := _current.get()) is not None:
        started.add_process()


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
