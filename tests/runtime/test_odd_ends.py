"""Ends that nobody plans: a deleted journal, exceptions that cannot be shown, empty ids."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.core.rest import Parked, Suspended
from holdfast.core.step import StepState
from holdfast.errors import BadInput, Cancelled, JournalGone, RunFenced, TaskCancelled, TaskFailed, TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted

FAST = holdfast.Settings(pace=0.01)


class Unshowable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


@holdfast.tool
async def explode(call: holdfast.Call) -> None:
    raise Unshowable


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01))
async def doubtful(call: holdfast.Call) -> None:
    raise ConnectionResetError("gone")


@holdfast.task
async def exploding(run: holdfast.Run) -> None:
    await run.call(explode)


@holdfast.task
async def interrupted(run: holdfast.Run) -> None:
    raise KeyboardInterrupt


@holdfast.task
async def doubting(run: holdfast.Run) -> None:
    await run.call(doubtful)


@holdfast.task
async def plain(run: holdfast.Run) -> str:
    return "fine"


TASKS = [exploding, interrupted, doubting, plain]


async def test_a_journal_that_is_gone_is_not_silently_replaced(tmp_path: Path) -> None:
    """Its effects have happened: a new journal would do them again."""
    journal = tmp_path / "journal.db"
    async with holdfast.open(journal, tasks=TASKS) as hf:
        await (await hf.submit(plain, request_id="1")).result(10)
    journal.unlink()
    with pytest.raises(JournalGone) as refused:
        async with holdfast.open(journal, tasks=TASKS):
            pass
    assert "--begin-anew" in refused.value.hint
    assert not journal.exists()
    with pytest.raises(JournalGone):
        async with holdfast.open(tmp_path / "other.db", tasks=TASKS):
            pass
    async with holdfast.open(tmp_path / "other.db", tasks=TASKS, new_journal=True) as hf:
        assert await (await hf.submit(plain)).result(10) == "fine"


async def test_an_exception_without_a_text_harms_only_its_own_step(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST) as hf:
        with pytest.raises(TaskParked):
            await (await hf.submit(exploding)).result(10)
        assert await (await hf.submit(plain)).result(10) == "fine"


async def test_a_task_that_raises_keyboard_interrupt_has_failed(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS) as hf:
        with pytest.raises(TaskFailed, match="KeyboardInterrupt"):
            await (await hf.submit(interrupted)).result(10)
        assert await (await hf.submit(plain)).result(10) == "fine"


@pytest.mark.parametrize("request_id", ["", "  "])
async def test_an_empty_request_id_is_refused(tmp_path: Path, request_id: str) -> None:
    """A script whose variable is not set must not charge twice."""
    async with holdfast.open(tmp_path / "journal.db", serve=False) as hf:
        with pytest.raises(BadInput):
            await hf.submit(plain, request_id=request_id)


async def test_a_cancelled_task_whose_doubt_is_skipped_is_cancelled(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST) as hf:
        handle = await hf.submit(doubting)
        with pytest.raises(TaskParked):
            await handle.result(10)
        await handle.cancel()
        await asyncio.sleep(0.05)
        await hf.settle(handle.id, "1", "skip")
        async for _ in handle.watch():
            pass  # until it has ended
        with pytest.raises(TaskCancelled):
            await handle.result(10)


async def test_evidence_against_a_closed_record_is_told(tmp_path: Path) -> None:
    """The record stays; that the world says otherwise is not silent."""
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST) as hf:
        handle = await hf.submit(doubting)
        with pytest.raises(TaskParked):
            await handle.result(10)
        await asyncio.sleep(0.05)
        await hf.settle(handle.id, "1", "skip")
        async for _ in handle.watch():
            pass  # until it has ended
        assert await handle.state() is TaskState.FAILED
        await hf.evidence(task_id=handle.id, ordinal="1", result=7, source="bank")
        told = await hf.journal.pending_notices(limit=20)
        assert [one.kind for one in told if one.kind == "contradiction"] == ["contradiction"]


class Abort(BaseException):
    """What no library should raise, and some do."""


@pytest.mark.parametrize("error", [Abort("stop"), GeneratorExit(), SystemExit(3)])
@pytest.mark.parametrize("where", ["task", "branch"])
async def test_whatever_code_raises_is_its_own_outcome(lab: Lab, error: BaseException, where: str) -> None:
    """The engine lives on, and so do its other tasks."""

    async def breaks(run: holdfast.Run) -> None:
        raise error

    @holdfast.task
    async def bad(run: holdfast.Run) -> None:
        await (run.gather(breaks, breaks) if where == "branch" else breaks(run))

    @holdfast.task
    async def good(run: holdfast.Run) -> str:
        return "done"

    async with lab.open(bad, good) as hf:
        broken = await hf.submit(bad)
        with pytest.raises(holdfast.TaskFailed, match=type(error).__name__):
            await broken.result(10)
        assert await (await hf.submit(good)).result(10) == "done"


@pytest.mark.parametrize("signal", [Suspended(Parked()), Cancelled(), RunFenced()])
async def test_a_signal_that_a_tool_raises_is_an_error_like_any_other(lab: Lab, signal: BaseException) -> None:
    once = Scripted(holdfast.Unrepeatable(max_delay_s=0), signal, name="once")

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        await run.call(once.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskParked, match="was it done"):
            await handle.result(10)
        assert (await handle.view()).steps["1"].state is StepState.PARKED
    assert len(once.calls) == 1
