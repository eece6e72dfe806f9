"""Blocking tools: threads where a repeat does no harm, a child that can be killed elsewhere."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import ResultNotKept, TaskFailed
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, program, wait_state, wait_step

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0)
QUERYABLE = holdfast.Queryable(max_delay_s=0)
ONCE = holdfast.Unrepeatable(max_delay_s=0)

# Tools at the top level: a child process finds them by this file.


def pid() -> int:
    """As the worker sees it: a tool may have a namespace of its own."""
    return int(os.readlink("/proc/self"))


@holdfast.tool(effect=ONCE)
def where(call: holdfast.Call) -> list[Any]:
    return [os.getpid(), call.effect_key, call.ordinal, call.attempt]


@holdfast.tool(effect=QUERYABLE)
def asked_where() -> int:
    return os.getpid()


@asked_where.find
async def find_where(call: holdfast.Call) -> holdfast.Absent:
    return holdfast.Absent()


@holdfast.tool(effect=ONCE, timeout_s=0.5)
def stuck(folder: str) -> None:
    Path(folder, f"{pid()}.pid").touch()
    time.sleep(60)


@holdfast.tool(effect=QUERYABLE, timeout_s=0.5)
def stuck_then_done(folder: str) -> str:
    if not list(Path(folder).glob("*.pid")):
        Path(folder, f"{pid()}.pid").touch()
        time.sleep(60)
    return "sent"


@stuck_then_done.find
async def find_stuck(call: holdfast.Call, folder: str) -> holdfast.Absent:
    return holdfast.Absent()


@holdfast.tool(effect=ONCE)
def dies() -> None:
    os._exit(7)


@holdfast.tool(effect=ONCE)
def refuses() -> None:
    raise holdfast.Refused({"reason": b"raw"})


@holdfast.tool(effect=ONCE)
def not_sent(folder: str) -> str:
    marks = Path(folder)
    count = len(list(marks.iterdir()))
    (marks / str(count)).touch()
    if count == 0:
        raise holdfast.NotSent("no network")
    return "sent"


@holdfast.tool(effect=ONCE)
def raw() -> bytes:
    return b"raw"


@holdfast.tool(effect=ONCE)
def raises() -> None:
    raise RuntimeError("no idea")


def passed_through(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(n: int) -> Any:
        return function(n)

    wrapper.__qualname__, wrapper.__module__ = function.__qualname__, function.__module__
    return wrapper


@holdfast.tool(effect=ONCE, name="wrapped")
@passed_through
async def wrapped(n: int) -> list[int]:
    return [n, os.getpid()]


@holdfast.tool(effect=KEYED, name="disguised")
@hidden
async def disguised(n: int) -> int:
    return n + 1


async def outcome(lab: Lab, tool: holdfast.Tool[..., Any], **args: Any) -> tuple[StepState, Any]:
    """Run one step: its state, and what the code got."""

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool, **args)
        except holdfast.StepFailed as error:
            return [error.code, str(error)]

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)
        view = await handle.view()
        return view.steps["1"].state, view.outcome.get("result")


@pytest.mark.parametrize(
    "effect",
    [holdfast.Read(), KEYED, holdfast.Idempotent(), holdfast.Fenced(), holdfast.Transactional()],
    ids=lambda effect: effect.name,
)
async def test_tools_that_may_be_repeated_run_in_threads(lab: Lab, effect: Any) -> None:
    def work(call: holdfast.Call) -> Any:
        found = [os.getpid(), threading.current_thread() is threading.main_thread()]
        return holdfast.Apply([], found) if effect.letter == "T" else found

    state, found = await outcome(lab, holdfast.tool(effect=effect)(work))
    assert (state, found) == (StepState.SUCCEEDED, [os.getpid(), False])


async def test_tools_that_may_not_be_repeated_run_in_a_child(lab: Lab) -> None:
    state, found = await outcome(lab, where)
    assert state is StepState.SUCCEEDED
    assert found[0] != os.getpid()
    assert found[2:] == ["1", 1]
    assert len(found[1]) == 36
    state, pid = await outcome(Lab(lab.folder / "q"), asked_where)
    assert state is StepState.SUCCEEDED
    assert pid != os.getpid()


async def test_a_timeout_kills_the_child_and_leaves_a_doubt(lab: Lab, tmp_path: Path) -> None:
    """Nothing of the attempt runs on in the background."""
    (tmp_path / "pids").mkdir()
    state, _ = await outcome(lab, stuck, folder=str(tmp_path / "pids"))
    assert state is StepState.PARKED
    assert not _alive(tmp_path / "pids")


async def test_a_timed_out_child_that_can_be_looked_up_is_sent_again(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    state, found = await outcome(lab, stuck_then_done, folder=str(tmp_path / "pids"))
    assert (state, found) == (StepState.SUCCEEDED, "sent")
    assert not _alive(tmp_path / "pids")


def _alive(folder: Path) -> list[int]:
    pids = [int(path.stem) for path in folder.glob("*.pid")]
    assert pids
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_a_stop_kills_the_child_and_leaves_a_doubt(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    slow = holdfast.tool(effect=ONCE, name="stuck", timeout_s=60)(stuck.function)
    slow._target = stuck.target

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(slow, folder=str(tmp_path / "pids"))

    async with lab.open(one, grace_s=0) as hf:
        handle = await hf.submit(one)
        while not list((tmp_path / "pids").iterdir()):
            await hf.journal.wait_change(timeout_s=0.02)
    assert not _alive(tmp_path / "pids")
    async with lab.open(serve=False) as hf:
        assert (await hf.task(handle.id).view()).steps["1"].state is StepState.UNKNOWN


async def test_a_child_that_dies_leaves_a_doubt(lab: Lab) -> None:
    assert (await outcome(lab, dies))[0] is StepState.PARKED


async def test_what_a_child_says_counts(lab: Lab, tmp_path: Path) -> None:
    state, found = await outcome(lab, refuses)
    assert (state, found[0]) == (StepState.FAILED, "refused")
    (tmp_path / "marks").mkdir()
    sent = await outcome(Lab(lab.folder / "n"), not_sent, folder=str(tmp_path / "marks"))
    assert sent == (StepState.SUCCEEDED, "sent")
    assert (await outcome(Lab(lab.folder / "r"), raises))[0] is StepState.PARKED


async def test_a_childs_result_that_cannot_be_kept_does_not_undo_its_effect(lab: Lab) -> None:
    state, found = await outcome(lab, raw)
    assert (state, found[0]) == (StepState.SUCCEEDED, ResultNotKept.code)


async def test_a_tool_that_no_child_can_find_is_refused_before_it_is_planned(lab: Lab) -> None:
    @holdfast.tool(effect=ONCE)
    def inside() -> None: ...

    @holdfast.task
    async def one(run: holdfast.Run) -> None:
        await run.call(inside)

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        with pytest.raises(TaskFailed, match="ToolNotImportable") as failed:
            await handle.result(10)
        assert "defined inside a function" in failed.value.text
        assert (await handle.view()).steps == {}


async def test_a_plain_wrapper_around_an_async_tool_is_no_blocking_tool(lab: Lab) -> None:
    """What it returns has not happened yet: it is awaited, not recorded as done."""
    assert not wrapped.blocking
    assert await outcome(lab, wrapped, n=4) == (StepState.SUCCEEDED, [4, os.getpid()])
    assert disguised.blocking
    assert await outcome(Lab(lab.folder / "k"), disguised, n=4) == (StepState.SUCCEEDED, 5)


async def test_a_tool_of_the_script_itself_runs_in_a_child(lab: Lab, script: Callable[[str], Path]) -> None:
    async with program(script("blocking_main"), lab.journal) as process:
        parent, child = (await process.hear("pids ")).split()
        assert parent != child
        assert await process.wait_end() == 0
    assert process.said.count("main runs") == 1


async def test_threads_that_hang_do_not_keep_the_program_from_ending(lab: Lab) -> None:
    release = threading.Event()

    @holdfast.tool(effect=KEYED)
    def hangs() -> None:
        release.wait(60)

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(hangs)

    async with lab.open(one, grace_s=0) as hf:
        handle = await hf.submit(one)
        await wait_step(handle, "1", StepState.STARTED)
        began = time.monotonic()
    release.set()
    assert time.monotonic() - began < 5
