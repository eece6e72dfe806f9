"""Cancelling: what is under way comes to its true end first, and no doubt becomes a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import TaskCancelled, TaskNotFound, TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, wait_state, wait_step, wait_until

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
ONCE = holdfast.Unrepeatable(max_delay_s=0)


async def cancel(hf: holdfast.Holdfast, handle: holdfast.TaskHandle) -> None:
    """Cancel a running task, and wait until its run has heard of it."""
    await handle.cancel()

    async def heard() -> bool:
        return hf.engine is not None and hf.engine._writers[handle.id].cancelled

    await wait_until(heard)


async def test_a_queued_task_is_cancelled_without_running(lab: Lab) -> None:
    ran: list[int] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        ran.append(1)

    async with lab.open(order, serve=False) as hf:
        handle = await hf.submit(order)
        await handle.cancel(by="ada")
        assert (await handle.row()).cancel_asked
    async with lab.open(order) as hf:
        with pytest.raises(TaskCancelled):
            await hf.task(handle.id).result(10)
    assert ran == []


async def test_a_task_between_steps_begins_no_further_one(lab: Lab) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()
    first, second = Scripted(KEYED, "first", name="first"), Scripted(KEYED, name="second")

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        await run.call(first.tool)
        begun.set()
        await gate.wait()
        await run.call(second.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await begun.wait()
        await cancel(hf, handle)
        gate.set()
        with pytest.raises(TaskCancelled):
            await handle.result(10)
        assert (await handle.view()).steps["1"].state is StepState.SUCCEEDED
    assert second.calls == []


async def test_a_call_under_way_ends_first(lab: Lab) -> None:
    """The far end's answer is recorded, then the task ends as cancelled."""
    gate = asyncio.Event()
    once, second = Scripted(ONCE, after(gate, "sent"), name="once"), Scripted(KEYED, name="second")

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        await run.call(once.tool)
        await run.call(second.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await once.entered.wait()
        await cancel(hf, handle)
        assert await handle.state() is TaskState.RUNNING
        gate.set()
        with pytest.raises(TaskCancelled):
            await handle.result(10)
        step = (await handle.view()).steps["1"]
        assert (step.state, step.result) == (StepState.SUCCEEDED, "sent")
    assert second.calls == []


@pytest.mark.parametrize("rest", ["sleep", "approve", "guarded"])
async def test_a_resting_task_is_cancelled_at_once(lab: Lab, rest: str) -> None:
    guarded = Scripted(KEYED, "paid", needs_approval=True)

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        match rest:
            case "sleep":
                await run.sleep(3_600)
            case "approve":
                await run.approve("go?")
            case _:
                await run.call(guarded.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.SLEEPING, TaskState.WAITING)
        await hf.cancel(handle.id, by="ada")
        with pytest.raises(TaskCancelled):
            await handle.result(10)
        steps = (await handle.view()).steps
        assert [step.state for step in steps.values()] == ([StepState.SKIPPED] if rest == "guarded" else [])
    assert guarded.calls == []


async def test_a_short_sleep_is_cut_short(lab: Lab) -> None:
    @holdfast.task
    async def nap(run: holdfast.Run) -> None:
        await run.sleep(1.9)

    async with lab.open(nap) as hf:
        handle = await hf.submit(nap)
        await wait_state(handle, TaskState.RUNNING)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(1.5)


async def test_a_doubt_is_settled_before_the_task_is_cancelled(lab: Lab) -> None:
    """An unknown outcome is reconciled as ever: cancel makes it neither failed nor skipped."""
    gate = asyncio.Event()
    pay = Scripted(KEYED, ConnectionError("reset"), after(gate, "paid"), name="pay")
    second = Scripted(KEYED, name="second")

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        await run.call(pay.tool)
        await run.call(second.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_step(handle, "1", StepState.UNKNOWN, StepState.STARTED)
        await cancel(hf, handle)
        gate.set()
        with pytest.raises(TaskCancelled):
            await handle.result(10)
        assert (await handle.view()).steps["1"].state is StepState.SUCCEEDED
    assert (len(set(pay.keys)), second.calls) == (1, [])


async def test_a_parked_doubt_stays_visible_and_is_cancelled_once_it_is_settled(lab: Lab) -> None:
    once, second = Scripted(ONCE, ConnectionError("reset"), name="once"), Scripted(KEYED)

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        await run.call(once.tool)
        await run.call(second.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.PARKED)
        await handle.cancel()
        await wait_until(lambda: claimed(handle, 2))
        await wait_state(handle, TaskState.PARKED)
        with pytest.raises(TaskParked):
            await handle.result(10)
        row = await handle.row()
        assert row.cancel_asked
        await hf.settle(handle.id, "1", "done")
        await wait_state(handle, TaskState.CANCELLED)
    assert (len(once.calls), second.calls) == (1, [])


async def claimed(handle: holdfast.TaskHandle, times: int) -> bool:
    return len((await handle.view()).claims) >= times


async def test_an_ended_task_stays_as_it_ended(lab: Lab) -> None:
    @holdfast.task
    async def done(run: holdfast.Run) -> str:
        return "done"

    async with lab.open(done) as hf:
        handle = await hf.submit(done)
        await handle.result(10)
        await handle.cancel()
        await asyncio.sleep(0.1)
        assert await handle.result(1) == "done"
        assert not (await handle.row()).cancel_asked


async def test_the_code_cannot_go_on_past_a_cancel(lab: Lab) -> None:
    first, second = Scripted(KEYED, "first", name="first"), Scripted(KEYED, name="second")
    gate, begun = asyncio.Event(), asyncio.Event()

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        await run.call(first.tool)
        begun.set()
        await gate.wait()
        try:
            await run.call(second.tool)
        except BaseException:  # noqa: BLE001 - what it is about
            return await run.call(second.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await begun.wait()
        await cancel(hf, handle)
        gate.set()
        with pytest.raises(TaskCancelled):
            await handle.result(10)
    assert second.calls == []


async def test_cancelling_what_is_not_there_is_an_error(lab: Lab) -> None:
    async with lab.open(serve=False) as hf:
        with pytest.raises(TaskNotFound):
            await hf.cancel("7" + "Z" * 25)
