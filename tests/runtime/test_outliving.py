"""Code of an async tool that runs on after its attempt was given up: no lookup, no repeat, a person is asked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import NotNow
from holdfast.journal.records import StepView, TaskState
from holdfast.runtime.tool import started
from holdfast.testing.lab import Lab, Scripted, look_dead, wait_state, wait_step

QUERYABLE = holdfast.Queryable(max_delay_s=0)
ONCE = holdfast.Unrepeatable(max_delay_s=0)
LATE = "import sys; sys.stdin.read()"

Slow = Callable[["Stage"], Awaitable[Any]]


class Stage:
    """A far end with a counter, and the moment at which slow code may go on to send."""

    def __init__(self) -> None:
        self.sent = 0
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.vendor: asyncio.subprocess.Process | None = None

    def post(self) -> str:
        self.inside.set()
        self.go_on.wait(60)
        self.sent += 1
        return "sent"


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """It ends in the test's event loop, whose own end waits for the threads that it has."""
    monkeypatch.setattr(started, "GRACE_S", 0.1)
    made = Stage()
    yield made
    made.go_on.set()


async def to_thread(stage: Stage) -> None:
    await asyncio.to_thread(stage.post)


async def plain_executor(stage: Stage) -> None:
    await asyncio.get_running_loop().run_in_executor(None, stage.post)


async def own_pool(stage: Stage) -> None:
    await asyncio.wrap_future(ThreadPoolExecutor(1).submit(stage.post))


async def own_thread(stage: Stage) -> None:
    threading.Thread(target=stage.post, name="vendor", daemon=True).start()
    await asyncio.sleep(60)


async def _post(stage: Stage) -> None:
    while not stage.go_on.is_set():  # noqa: ASYNC110 - the event is a thread's
        await asyncio.sleep(0.01)
    stage.sent += 1


async def shielded(stage: Stage) -> None:
    await asyncio.shield(asyncio.ensure_future(_post(stage)))


async def nested(stage: Stage) -> None:
    """Started by a task of the tool's, in a context of its own."""

    async def inner() -> None:
        await asyncio.shield(asyncio.get_running_loop().create_task(_post(stage), name="deep"))

    await asyncio.create_task(inner())


async def process(stage: Stage) -> None:
    stage.vendor = await asyncio.create_subprocess_exec(sys.executable, "-c", LATE, stdin=subprocess.PIPE)
    await stage.vendor.wait()


def scripted(
    effect: holdfast.Queryable | holdfast.Unrepeatable, stage: Stage, slow: Slow, timeout_s: float = 0.3
) -> Scripted:
    """Its first attempt does what `slow` does; every other one sends at once."""

    async def at_once(_call: holdfast.Call) -> str:
        stage.sent += 1
        return "sent"

    async def find(_call: holdfast.Call) -> holdfast.Found | holdfast.Absent:
        return holdfast.Found("sent") if stage.sent else holdfast.Absent()

    async def first(_call: holdfast.Call) -> Any:
        return await slow(stage)

    made = Scripted(effect, first, at_once, timeout_s=timeout_s)
    return made if isinstance(effect, holdfast.Unrepeatable) else made.finds(find)


def calling(tool: Scripted) -> Any:
    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    return one


async def parked(lab: Lab, tool: Scripted) -> StepView:
    one = calling(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED, TaskState.SUCCEEDED)
        return (await handle.view()).steps["1"]


@pytest.mark.parametrize(
    ("slow", "what"),
    [
        (to_thread, "a call in a thread"),
        (plain_executor, "a call in a thread"),
        (own_pool, "a call in a thread"),
        (own_thread, "the thread vendor"),
        (shielded, "the task "),
        (nested, "the task deep"),
        (process, "a process"),
    ],
)
async def test_what_still_runs_after_the_timeout_is_neither_asked_about_nor_repeated(
    lab: Lab, stage: Stage, slow: Slow, what: str
) -> None:
    tool = scripted(QUERYABLE, stage, slow)
    step = await parked(lab, tool)
    assert step.question.startswith("has it ended, and was it done?")
    assert f"may still run and send: {what}" in step.question
    assert step.failure.left.startswith(what)
    assert (len(tool.calls), len(tool.lookups), stage.sent) == (1, 0, 0)
    if stage.vendor is not None:
        stage.vendor.kill()
        await stage.vendor.wait()


async def test_it_is_not_run_again_while_its_worker_may_still_send(lab: Lab, stage: Stage) -> None:
    """The quiet time is over, and the thread still lives: two letters, if a person believes that none was sent."""
    tool = scripted(ONCE, stage, to_thread)
    one = calling(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        async with lab.open(serve=False) as other:
            with pytest.raises(NotNow, match=r"a call in a thread of the worker .* may still send") as caught:
                await other.settle(handle.id, "1", "run")
            assert "stop the worker" in caught.value.hint
            await other.check_settle(handle.id, "1", "done", result="sent")
            await other.check_settle(handle.id, "1", "skip")
    stage.go_on.set()
    async with lab.open(one) as hf:  # the worker that had the thread has ended
        await hf.settle(handle.id, "1", "run")
        assert await hf.task(handle.id).result(10) == "sent"
    assert len(tool.calls) == 2


async def test_an_unrepeatable_step_says_why_too(lab: Lab, stage: Stage) -> None:
    step = await parked(lab, scripted(ONCE, stage, to_thread))
    assert "may still run and send: a call in a thread" in step.question


async def test_what_ends_in_time_is_asked_about_as_ever(
    lab: Lab, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(started, "GRACE_S", 30.0)

    async def soon(stage: Stage) -> None:
        asyncio.get_running_loop().call_later(0.6, stage.go_on.set)
        await asyncio.to_thread(stage.post)

    tool = scripted(QUERYABLE, stage, soon)
    one = calling(tool)
    async with lab.open(one) as hf:
        assert await (await hf.submit(one)).result(60) == "sent"
    assert (len(tool.calls), stage.sent) == (1, 1)


async def _ended(stage: Stage) -> None:
    """Threads, tasks and processes that all have ended when the attempt is given up; and one that sends nothing."""
    await asyncio.to_thread(time.sleep, 0)
    await asyncio.gather(asyncio.sleep(0), asyncio.create_task(asyncio.sleep(0)))
    await (await asyncio.create_subprocess_exec(sys.executable, "-c", "")).wait()
    await asyncio.get_running_loop().run_in_executor(None, socket.getaddrinfo, "slow.example", 443)


async def test_ended_code_and_the_look_up_of_a_name_are_no_reason_to_park(
    lab: Lab, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_name_server(*_args: object) -> bool:
        return stage.go_on.wait(60)

    monkeypatch.setattr(socket, "getaddrinfo", slow_name_server)
    monkeypatch.setattr(started, "_HARMLESS", frozenset((slow_name_server,)))
    tool = scripted(QUERYABLE, stage, _ended, timeout_s=5)
    one = calling(tool)
    async with lab.open(one) as hf:
        assert await (await hf.submit(one)).result(60) == "sent"
        stage.go_on.set()
    assert (len(tool.calls), len(tool.lookups), stage.sent) == (2, 1, 1)


async def test_what_others_started_meanwhile_is_not_counted(lab: Lab, stage: Stage) -> None:
    async def long(_stage: Stage) -> None:
        await asyncio.sleep(60)

    tool = scripted(QUERYABLE, stage, long)
    one = calling(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
        other = asyncio.create_task(asyncio.to_thread(stage.go_on.wait, 60))
        assert await handle.result(60) == "sent"
        stage.go_on.set()
        await other


async def test_a_call_that_a_stopping_worker_breaks_off_is_not_asked_about_either(lab: Lab, stage: Stage) -> None:
    tool = scripted(QUERYABLE, stage, to_thread, timeout_s=60)
    one = calling(tool)
    async with lab.open(one, grace_s=0) as hf:
        handle = await hf.submit(one)
        await wait_step(handle, "1", StepState.STARTED)
        while not stage.inside.is_set():  # noqa: ASYNC110 - said in a thread. Before, the call would never run
            await asyncio.sleep(0.01)
    async with lab.open(one) as hf:
        await wait_state(hf.task(handle.id), TaskState.PARKED)
    assert (len(tool.calls), len(tool.lookups)) == (1, 0)


async def test_a_process_that_a_dead_worker_left_is_neither_asked_about_nor_repeated(lab: Lab, stage: Stage) -> None:
    """No record says what became of the attempt; the page of the dead session says that it had started a process."""
    tool = scripted(QUERYABLE, stage, process, timeout_s=60)
    one = calling(tool)
    async with lab.open(one, grace_s=0) as dead:
        handle = await dead.submit(one)
        while stage.vendor is None:  # noqa: ASYNC110 - set by the tool
            await asyncio.sleep(0.01)
        async with lab.open(one) as heir:
            look_dead(dead)
            theirs = heir.task(handle.task_id)
            await wait_state(theirs, TaskState.PARKED, TaskState.SUCCEEDED)
            step = (await theirs.view()).steps["1"]
    stage.vendor.kill()
    await stage.vendor.wait()
    assert "may still run and send: a process" in step.question
    assert (len(tool.calls), len(tool.lookups)) == (1, 0)


async def test_a_late_thread_can_no_longer_say_that_it_sends(lab: Lab, stage: Stage) -> None:
    """A tool that marks its sending, and was given up before: nothing was sent, and nothing will be."""
    refused: list[str] = []

    async def marks_late(call: holdfast.Call) -> None:
        def late() -> None:
            stage.go_on.wait(60)
            with contextlib.suppress(holdfast.NotSent):
                call.sending()
                return
            refused.append("refused")

        await asyncio.to_thread(late)

    tool = Scripted(ONCE, marks_late, "sent", timeout_s=0.2, marks_sending=True)
    one = calling(tool)
    async with lab.open(one) as hf:
        assert await (await hf.submit(one)).result(60) == "sent"
        stage.go_on.set()
        while not refused:  # noqa: ASYNC110 - said in a thread
            await asyncio.sleep(0.01)
    assert len(tool.calls) == 2


def test_which_tools_are_watched() -> None:
    async def send(call: holdfast.Call) -> None: ...

    def made(effect: Any, **options: Any) -> bool:
        return holdfast.tool(effect=effect, **options)(send).watched

    assert made(QUERYABLE)
    assert made(ONCE)
    assert not made(QUERYABLE, http_only=True)
    assert not made(holdfast.Read())
    assert not made(holdfast.Idempotent())
