"""A person's decision on a parked step: done, run or skip; in quiet, once, for this question."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import BadInput, BadValue, NotNow, NotSettleable, StepNotFound, TaskNotFound
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, wait_state, wait_step, wait_until

ONCE = holdfast.Unrepeatable(max_delay_s=0)


def one_step(tool: Scripted) -> holdfast.TaskType:
    @holdfast.task(name="one")
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool.tool)
        except holdfast.StepSkipped:
            return "skipped"

    return one


@pytest.mark.parametrize(
    ("decision", "result", "calls", "state"),
    [
        ("done", "seen in the ledger", 1, StepState.SUCCEEDED),
        ("run", "sent", 2, StepState.SUCCEEDED),
        ("skip", "skipped", 1, StepState.SKIPPED),
    ],
)
async def test_a_decision_is_carried_out(lab: Lab, decision: Any, result: str, calls: int, state: StepState) -> None:
    tool = Scripted(ONCE, ConnectionError("reset"), "sent")
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        given = result if decision == "done" else None
        await hf.settle(handle.id, "1", decision, result=given, by="ada", note="checked")
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result() == result
        assert (await handle.view()).steps["1"].state is state
    assert len(tool.calls) == calls


async def test_a_decision_waits_for_the_next_worker(lab: Lab) -> None:
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
    async with lab.open(serve=False) as hf:
        await hf.settle(handle.id, "1", "done", result=7)
        with pytest.raises(NotSettleable, match="already has a decision"):
            await hf.settle(handle.id, "1", "run")
    async with lab.open(one) as hf:
        assert await hf.task(handle.id).result(10) == 7
    assert len(tool.calls) == 1


async def test_a_decision_that_comes_first_is_seen_in_the_commit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people look at the same moment and find it undecided; one is recorded, the other refused. So is one who
    decides what a worker has closed meanwhile."""
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
    async with lab.open(serve=False) as hf, lab.open(serve=False) as late:
        monkeypatch.setattr(late.journal, "inbox_of", AsyncMock(return_value=[]))
        monkeypatch.setattr(late.journal, "read_task", AsyncMock(return_value=await hf.journal.read_task(handle.id)))
        await hf.settle(handle.id, "1", "done", result=7, by="ada")
        with pytest.raises(NotSettleable, match="already has a decision: done by ada"):
            await late.settle(handle.id, "1", "skip", by="bob")
        async with lab.open(one) as worker:
            assert await worker.task(handle.id).result(10) == 7
        with pytest.raises(NotSettleable, match="is succeeded, not parked"):
            await late.settle(handle.id, "1", "skip", by="bob")
        assert len(await hf.journal.inbox_of(handle.id)) == 1


async def test_a_decision_about_an_earlier_park_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was run again and parked again while a person made up their mind; what they saw is another attempt."""
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf, lab.open(serve=False) as late:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        seen = await handle.view()
        await hf.settle(handle.id, "1", "run")
        await wait_until(lambda: _parked_again(handle))
        monkeypatch.setattr(late.journal, "read_task", AsyncMock(return_value=seen))
        with pytest.raises(NotSettleable, match="was decided and then parked again: look once more"):
            await late.settle(handle.id, "1", "done", result=7)


async def _parked_again(handle: holdfast.TaskHandle) -> bool:
    row, step = await handle.row(), (await handle.view()).steps["1"]
    return row.state is TaskState.PARKED and len(step.earlier + step.attempts) > 1


async def test_evidence_that_waits_is_not_overruled_by_a_decision(lab: Lab) -> None:
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
    async with lab.open(serve=False) as hf:
        await hf.evidence(task_id=handle.id, ordinal="1", result="from the ledger")
        with pytest.raises(NotSettleable, match="already has evidence"):
            await hf.settle(handle.id, "1", "skip")
    async with lab.open(one) as hf:
        assert await hf.task(handle.id).result(10) == "from the ledger"


async def test_it_is_too_early_while_a_request_may_be_under_way(lab: Lab) -> None:
    """What a person sees before quiet is no ground for a decision (T10)."""
    tool = Scripted(holdfast.Unrepeatable(max_delay_s=25), ConnectionError("reset"), "sent")
    one = one_step(tool)
    async with lab.open(one) as hf:
        began = time.monotonic()
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        with pytest.raises(NotNow, match="before you decide") as early:
            await hf.settle(handle.id, "1", "run")
        assert early.value.exit_code == 4
        await wait_until(lambda: _is_settled(hf, handle.id))
        assert time.monotonic() - began >= 25 * 0.02 * 0.95
        await wait_state(handle, TaskState.SUCCEEDED)
    assert len(tool.calls) == 2


async def _is_settled(hf: holdfast.Holdfast, task_id: str) -> bool:
    try:
        await hf.settle(task_id, "1", "run")
    except NotNow:
        return False
    return True


async def test_only_a_parked_step_takes_a_decision(lab: Lab) -> None:
    tool = Scripted(ONCE, "sent")

    @holdfast.task
    async def two(run: holdfast.Run) -> None:
        await run.call(tool.tool)
        await run.approve("go on?")

    async with lab.open(two) as hf:
        handle = await hf.submit(two)
        await wait_state(handle, TaskState.WAITING)
        with pytest.raises(NotSettleable, match="succeeded"):
            await hf.settle(handle.id, "1", "done")
        with pytest.raises(StepNotFound):
            await hf.settle(handle.id, "3", "done")
        with pytest.raises(TaskNotFound):
            await hf.settle("7" + "Z" * 25, "1", "done")
        with pytest.raises(BadInput):
            await hf.settle(handle.id, "1", "perhaps")  # pyright: ignore[reportArgumentType]


async def test_a_result_that_cannot_be_kept_is_refused(lab: Lab) -> None:
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        with pytest.raises(BadValue):
            await hf.settle(handle.id, "1", "done", result=b"raw")
        assert (await handle.view()).steps["1"].state is StepState.PARKED


async def test_a_decision_settles_one_question_and_not_the_next(lab: Lab) -> None:
    """Run, in doubt again, parked again: a person is asked again, however often they had said."""
    tool = Scripted(ONCE, ConnectionError("reset"), ConnectionError("reset"), "sent")
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        await hf.settle(handle.id, "1", "run")
        while len(tool.calls) < 2:
            await hf.journal.wait_change(timeout_s=0.02)
        await wait_step(handle, "1", StepState.PARKED)
        await wait_state(handle, TaskState.PARKED)
        await asyncio.sleep(0.1)
        assert len(tool.calls) == 2
        await hf.settle(handle.id, "1", "done", result="by hand")
        await wait_state(handle, TaskState.SUCCEEDED)
    assert len(tool.calls) == 2


async def test_run_starts_the_attempts_anew(lab: Lab) -> None:
    """A person has mended what stood in the way: the step gets all its attempts again."""
    effect = holdfast.Idempotent(max_delay_s=0)
    broken = ConnectionError("reset")
    tool = Scripted(effect, broken, broken, broken, "done", attempts=2)
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        assert len(tool.calls) == 2
        await hf.settle(handle.id, "1", "run")
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result() == "done"
    assert len(tool.calls) == 4
    assert len(set(tool.keys)) == 1


async def test_retry_leaves_a_parked_step_to_its_person(lab: Lab) -> None:
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        await hf.retry(handle.id)
        while len((await handle.view()).claims) < 2:
            await hf.journal.wait_change(timeout_s=0.02)
        await wait_state(handle, TaskState.PARKED)
    assert len(tool.calls) == 1


async def test_what_has_ended_well_is_not_run_again(lab: Lab) -> None:
    @holdfast.task
    async def done(run: holdfast.Run) -> str:
        return "done"

    async with lab.open(done) as hf:
        handle = await hf.submit(done)
        await handle.result(10)
        with pytest.raises(NotSettleable, match="succeeded"):
            await hf.retry(handle.id)
        with pytest.raises(TaskNotFound):
            await hf.retry("7" + "Z" * 25)
