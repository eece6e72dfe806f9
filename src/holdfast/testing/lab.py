"""A place to try tasks in: a journal that is opened again and again, tools that do as told.

For tests of the runtime, and of tasks written for it. Times are divided, so that a quiet time of
a minute takes a second; processes are real where their death matters.

    lab = Lab(folder)
    pay = Scripted(holdfast.Keyed(...), holdfast.Busy(1), {"id": "ch_1"})
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.SUCCEEDED)
    assert [call.attempt for call in pay.calls] == [1, 2]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from holdfast.app.handle import TaskHandle
from holdfast.app.holdfast import Holdfast
from holdfast.app.open import open as open_holdfast
from holdfast.core.clock import Clock, SystemClock
from holdfast.core.effect import Effect
from holdfast.core.mail import Post
from holdfast.core.step import StepState
from holdfast.journal.contract import TaskRow
from holdfast.journal.records import StepView, TaskState
from holdfast.journal.sqlite.verbs.sessions import SqliteSession
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.task.task import TaskType
from holdfast.runtime.tool.tool import Call, FindAnswer, Tool, tool

PACE = 0.02
PATIENCE_S = 30.0  # for a loaded machine; what is waited for comes in milliseconds

# Any in this file: arguments and results are whatever JSON the test chose.


def fast(**changes: Any) -> Settings:
    """Settings with divided times; leases are as long as ever, unless a test is about them."""
    values: dict[str, Any] = {"pace": PACE, "sweep_every_s": 0.05, **changes}
    return Settings(**values)


class Lab:
    """One journal in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.journal = folder / "journal.db"

    def open(
        self,
        *tasks: TaskType,
        tools: Iterable[Tool[..., Any]] = (),
        clock: Clock | None = None,
        serve: bool = True,
        post: Post | None = None,
        **settings: Any,
    ) -> AbstractAsyncContextManager[Holdfast]:
        """Open the journal as a program would; leaving is an orderly stop."""
        return open_holdfast(
            self.journal, tasks=tasks, tools=tools, settings=fast(**settings), serve=serve, clock=clock, post=post
        )


# Waiting


async def wait_until(met: Callable[[], Awaitable[bool]], *, timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await met():  # noqa: ASYNC110 - what is looked at gives no sign of its own
            await asyncio.sleep(0.005)


async def wait_state(handle: TaskHandle, *states: TaskState, timeout_s: float = PATIENCE_S) -> TaskRow:
    """The task's row, once it is in one of these states."""
    try:
        async with asyncio.timeout(timeout_s):
            async for row in handle.watch():
                if row.state in states:
                    return row
    except TimeoutError:
        pass
    row = await handle.row()
    raise AssertionError(f"task {handle.id} is {row.state}, not {', '.join(states)}")


async def wait_step(handle: TaskHandle, ordinal: str, *states: StepState, timeout_s: float = PATIENCE_S) -> StepView:
    """The step, once it is in one of these states."""

    async def met() -> bool:
        step = (await handle.view()).steps.get(ordinal)
        return step is not None and step.state in states

    await wait_until(met, timeout_s=timeout_s)
    return (await handle.view()).steps[ordinal]


# Tools that do as told


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How a tool was called."""

    task_id: str
    ordinal: str
    effect_key: str
    fence: int
    attempt: int
    args: dict[str, Any]


Act = Any  # raised where it is an exception, awaited where it is a function, else returned


class Scripted:
    """A tool that acts by a script, one act per call; the last one is repeated."""

    def __init__(self, effect: Effect, *acts: Act, name: str = "act", **options: Any) -> None:
        self.calls: list[Seen] = []
        self.lookups: list[Seen] = []
        self.entered = asyncio.Event()
        self._acts = list(acts)

        async def act(call: Call, **args: Any) -> Any:
            self.calls.append(_seen(call, args))
            self.entered.set()
            return await _play(self._acts, call)

        self.tool: Tool[..., Any] = tool(effect=effect, name=name, **options)(act)

    def finds(self, *answers: Act) -> Scripted:
        """Give the tool a lookup that answers by a script."""
        script = list(answers)

        async def find(call: Call, **args: Any) -> FindAnswer:
            self.lookups.append(_seen(call, args))
            return await _play(script, call)

        self.tool.find(find)
        return self

    @property
    def keys(self) -> list[str]:
        return [call.effect_key for call in self.calls]

    @property
    def attempts(self) -> list[int]:
        return [call.attempt for call in self.calls]


async def hang(_call: Call) -> None:
    """Never end by itself."""
    await asyncio.Event().wait()


def after(event: asyncio.Event, act: Act = None) -> Callable[[Call], Awaitable[Any]]:
    """An act that waits for an event first."""

    async def wait(call: Call) -> Any:
        await event.wait()
        return await _play([act], call)

    return wait


async def _play(script: list[Act], call: Call) -> Any:
    act: Any = script.pop(0) if len(script) > 1 else script[0] if script else None
    if isinstance(act, BaseException):
        raise act
    if not callable(act):
        return act
    acting: Any = act(call)
    return await acting


def _seen(call: Call, args: dict[str, Any]) -> Seen:
    return Seen(
        task_id=call.task_id,
        ordinal=call.ordinal,
        effect_key=call.effect_key,
        fence=call.fence,
        attempt=call.attempt,
        args=args,
    )


# Accidents


def look_dead(hf: Holdfast) -> None:
    """Release the lock of the session: to others its process is gone, and yet it lives.
    What a lease that ran out looks like, without the wait."""
    assert hf.engine is not None
    assert hf.engine.lease is not None
    cast(SqliteSession, hf.engine.lease.session).page.close(delete=False)


# Clocks


class SkewedClock(SystemClock):
    """The machine's clocks, with a wall clock that a person can set."""

    __slots__ = ("skew_ms",)

    def __init__(self, skew_ms: int = 0) -> None:
        super().__init__()
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.skew_ms


# Processes


class Program:
    """A script in a process of its own; what it prints, line by line, is heard here."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.said: list[str] = []

    async def hear(self, start: str, *, timeout_s: float = PATIENCE_S) -> str:
        """The rest of the next line that begins so."""
        assert self._process.stdout is not None
        async with asyncio.timeout(timeout_s):
            while line := (await self._process.stdout.readline()).decode().rstrip("\n"):
                self.said.append(line)
                if line.startswith(start):
                    return line[len(start) :].strip()
        raise AssertionError(f"it ended without saying {start!r}: {self.said}")

    async def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def wait_end(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code, or minus the signal; what it still says is heard."""
        assert self._process.stdout is not None
        async with asyncio.timeout(timeout_s):
            rest = await self._process.stdout.read()
            self.said += rest.decode().splitlines()
            return await self._process.wait()


@contextlib.asynccontextmanager
async def program(script: Path, *words: str | Path) -> AsyncGenerator[Program]:
    """Start a script; it does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        *map(str, words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    running = Program(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        await running.kill()
