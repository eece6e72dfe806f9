"""How blocking tools run: in killable child processes, or in threads where a repeat does no harm.

Tools of class Queryable and Unrepeatable run in children. The promise of `ChildPool.run`: when it returns or raises, in
whatever way, the attempt has ended. Either the tool's function returned or refused by contract, or its child
has been killed and reaped, with every process that the tool started (keeper.py). Nothing of the attempt runs on in the
background, so the quiet time may start to count. Where that cannot be proven (no Linux; no namespace and a keeper that
was killed), a byte in the session's page says so, at `left_at`.

What is proven about the send:

* before `go` is written to the child (no room, no child, import failed or hung, child died):
  NotSent or ToolNotImportable. The function was not entered.
* afterwards: the child's word, or unknown (ChildDied, AttemptTimedOut, ToolRaised, cancel).
  `before_send` is called between the two, and if it raises, nothing was sent.

A child that gave its word is kept for the next call; one whose tool raised is not, because a
thread it left behind might still be sending. Children hold the session's lock and die with this
process (child.py).

A thread cannot be killed: the thread of a cancelled call runs on, and counts against the limit until it ends. Threads
are daemons, so a tool that hangs does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.errors import AttemptTimedOut, ChildDied, Misuse, NotSent, ToolNotImportable
from holdfast.host.hardening import IS_LINUX
from holdfast.runtime.tool.child import (
    CALL_FIELDS,
    RAISED,
    Message,
    Target,
    frame,
    in_child,
    opened,
    outcome_of,
    read_message,
)
from holdfast.runtime.tool.file_watch import FileWatch
from holdfast.runtime.tool.keeper import END, SIGNAL_EXIT
from holdfast.runtime.tool.started import KEEPERS

PROGRAM = "holdfast.runtime.tool.child"
CHILDREN_MAX = 4
IDLE_S = 30.0
READY_S = 30.0  # to start a child and import the tool's module
_READ_AHEAD_BYTES = 1 << 20
_ENDED_POLL_S = 0.001
_LAST_WORDS_S = 0.05  # for an answer that is already in the socket when the child has ended


class ChildPool:
    """Runs one call per child, at most `children_max` at a time; keeps idle children warm."""

    def __init__(
        self,
        lock_fd: int | None = None,
        *,
        children_max: int = CHILDREN_MAX,
        idle_s: float = IDLE_S,
        ready_s: float = READY_S,
        watch: FileWatch | None = None,
    ) -> None:
        if in_child():
            raise Misuse(
                "this is the process of a blocking tool: it may not open a journal",
                hint='put the code that starts your program under `if __name__ == "__main__":`',
            )
        self._lock_fd = lock_fd
        self._idle_s = idle_s
        self._ready_s = ready_s
        self._watch = watch
        self._room = asyncio.Semaphore(children_max)
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._closed = False

    async def run(
        self,
        target: Target,
        call_fields: Mapping[str, object],
        args: Mapping[str, object],
        timeout_s: float | None,
        *,
        before_send: Callable[[], None] | None = None,
        left_at: int | None = None,
        name: str = "",
    ) -> object:
        """Run the tool once in a child and return its value.

        `call_fields` holds task_id, ordinal, effect_key, fence, attempt. `left_at`: where in the lock's file a byte
        says that a process which the tool started may live on. The time counts from the moment the function
        is entered: a child that is slow to start, or no room for it, says nothing about the tool.

        Raises:
            Refused, NotSent, Busy, KeyReused: the tool said so.
            ToolRaised: it raised something else; unknown.
            Unkept: it returned what cannot be kept; the effect took place.
            AttemptTimedOut: no outcome in time; the child is dead; unknown.
            ChildDied: the child died in the call; unknown.
            NotSent: also where no child was ready in time.
            ToolNotImportable, TooLarge: the function was not entered.
        """
        call = {name: call_fields[name] for name in CALL_FIELDS}
        call["folder"] = call_fields.get("folder", "")
        request: Message = {
            "target": asdict(target),
            "call": call,
            "args": dict(args),
            "left_at": left_at,
            "tool": name,
        }
        attempt = _Attempt(target, frame(request, what="arguments"), before_send, timeout_s)
        async with self._room:
            try:
                async with asyncio.timeout(self._ready_s) as limit:
                    attempt.limit = limit
                    outcome = await self._attempt(attempt)
            except TimeoutError:
                if not attempt.sent:
                    raise NotSent(f"{target.name}: no child process was ready within {self._ready_s:g} s") from None
                raise AttemptTimedOut(tool=target.name, timeout_s=timeout_s or 0.0) from None
        return opened(outcome, tool=target.name)

    async def close(self) -> None:
        """Kill and reap every child, also one in a call; no call starts after. Safe to repeat."""
        self._closed = True
        for child in list(self._all):
            await self._end(child)

    async def _attempt(self, attempt: _Attempt) -> Message:
        child = await self._ready_child()
        was_idle = child.is_greeted
        outcome: Message | None = None
        try:
            outcome = await attempt.on(child)
            return outcome
        except (EOFError, ConnectionError) as error:
            status = await self._end(child)
            if attempt.sent:
                raise ChildDied(f"{attempt.target.name}: its process {status} during the call") from error
            if not was_idle:
                raise NotSent(f"{attempt.target.name}: its process {status} before the call") from error
        finally:
            if outcome is not None and outcome["kind"] != RAISED:
                child.rest(self._idle_s)
                self._idle.append(child)
            else:
                await self._end(child)
        return await self._attempt(attempt)  # it died while it was idle: take another one

    async def _ready_child(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            child.wake()
            if child.is_running:
                return child
            await self._end(child)
        if self._closed:
            raise NotSent("the session is ending: it starts no more child processes for tools")
        try:
            child = await _Child.start(self._lock_fd, self._watch)
        except OSError as error:
            raise NotSent(f"cannot start a process for the tool: {error}") from error
        self._all.add(child)
        KEEPERS.add(child.pid)
        return child

    async def _end(self, child: _Child) -> str:
        """Kill the child and wait until it has ended; a cancel waits too. Says how it ended."""
        if child in self._idle:
            self._idle.remove(child)
        self._all.discard(child)
        try:
            return await child.end()
        finally:
            KEEPERS.discard(child.pid)


@dataclass(slots=True)
class _Attempt:
    """One call on its way: what is asked, and whether it was sent."""

    target: Target
    request: bytes
    before_send: Callable[[], None] | None
    timeout_s: float | None
    sent: bool = False
    limit: asyncio.Timeout | None = None

    async def on(self, child: _Child) -> Message:
        answer = await child.ask(self.request)
        if "unfit" in answer:
            raise ToolNotImportable(f"{self.target}: {answer['unfit']}")
        if self.before_send is not None:
            self.before_send()
        self.sent = True
        if self.limit is not None:
            ends = asyncio.get_running_loop().time() + (self.timeout_s or 0.0)
            self.limit.reschedule(None if self.timeout_s is None else ends)
        return outcome_of(await child.ask(frame({"go": True}, what="call")))


class _Child:
    """One child process and the socket to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._resting: asyncio.TimerHandle | None = None
        self._watch: int | None = None
        self.is_greeted = False
        self._first: int | None = None  # a descriptor of the first process of its namespace
        self._watch_end()

    @classmethod
    async def start(cls, lock_fd: int | None, watch: FileWatch | None) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours, limit=_READ_AHEAD_BYTES)
            try:
                process = _spawned(theirs, lock_fd)  # last: nothing is awaited that could be left
            except BaseException:  # no process, an interrupt: whatever it is, the socket must not stay open
                writer.transport.abort()
                raise
        path = [os.getcwd() if entry == "" else entry for entry in sys.path]
        hello: Message = {"parent": os.getpid(), "path": path, "lock": lock_fd}
        hello |= {"pythonpath": os.environ.get("PYTHONPATH")}
        hello |= {"watch": None if watch is None else [str(watch.file), *watch.kept]}
        writer.write(frame(hello, what="hello"))
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    async def ask(self, request: bytes) -> Message:
        self._writer.write(request)
        await self._writer.drain()
        if not self.is_greeted:
            greeting = await read_message(self._reader)
            self.is_greeted = True
            if greeting.get("enclosed"):
                with suppress(ProcessLookupError):  # it has ended already
                    self._first = os.pidfd_open(greeting["first"])
        return await read_message(self._reader)

    def rest(self, idle_s: float) -> None:
        """Idle for so long, it is let go; the next call, or `close`, reaps it."""
        self._resting = asyncio.get_running_loop().call_later(idle_s, self.kill)

    def wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def kill(self) -> None:
        """End the child and what it started. Only before it is reaped: its number is ours till then."""
        if self._process.poll() is not None:
            return
        if IS_LINUX:
            for number in (END, signal.SIGCONT):
                os.kill(self._process.pid, number)
        else:
            with suppress(ProcessLookupError, PermissionError):  # macOS: all of it is dead already
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> str:
        self.wake()
        self.kill()
        cancelled: asyncio.CancelledError | None = None
        while self._process.poll() is None or self._is_enclosed_alive():
            try:
                await asyncio.sleep(_ENDED_POLL_S)
            except asyncio.CancelledError as error:
                cancelled = error  # the attempt has to have ended first
        self._unwatch_end()
        self._writer.transport.abort()
        if cancelled is not None:
            raise cancelled
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        return _status(self._process.returncode)

    def _is_enclosed_alive(self) -> bool:
        """Whether its namespace still has processes: the keeper waits for them, but it may have been killed itself."""
        if self._first is None:
            return False
        look = select.poll()
        look.register(self._first, select.POLLIN)
        if not look.poll(0):
            return True
        os.close(self._first)
        self._first = None
        return False

    def _watch_end(self) -> None:
        """Notice the child's end even where a process it forked keeps the socket open."""
        if not IS_LINUX:
            return
        loop = asyncio.get_running_loop()
        self._watch = os.pidfd_open(self._process.pid)
        loop.add_reader(self._watch, self._ended)

    def _ended(self) -> None:
        self._unwatch_end()
        self._process.poll()
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._writer.transport.abort)

    def _unwatch_end(self) -> None:
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            os.close(self._watch)
            self._watch = None


def _spawned(channel: socket.socket, lock_fd: int | None) -> subprocess.Popen[bytes]:
    source = str(Path(__file__).parents[3])  # where this Holdfast is imported from
    path = os.environ.get("PYTHONPATH")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", PROGRAM],
        stdin=channel.fileno(),
        stdout=_standard_error(),
        pass_fds=() if lock_fd is None else (lock_fd,),
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source},
    )


def _standard_error() -> int:
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def _status(code: int | None) -> str:
    if code is not None and (code < 0 or code > SIGNAL_EXIT):
        number = -code if code < 0 else code - SIGNAL_EXIT
        return f"was killed by signal {number} ({signal.strsignal(number)})"
    return f"ended with exit code {code}"


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
                return  # the loop is closed: no code waits any more

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
