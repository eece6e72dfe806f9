"""Code that has changed under its task: noticed at the first step that is another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, wait_state, wait_until
from holdfast.views.tasks import task_shape
from holdfast.views.unfinished import list_todo

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)

pay = Scripted(KEYED, "paid", name="pay")
refund = Scripted(KEYED, "paid back", name="refund")
weak = Scripted(holdfast.Unrepeatable(max_delay_s=0), "paid", name="pay")

Version = Callable[[holdfast.Run], Awaitable[Any]]


async def _pays(run: holdfast.Run) -> Any:
    return await run.call(pay.tool, cents=1)


async def _refunds(run: holdfast.Run) -> Any:
    return await run.call(refund.tool, cents=1)


async def _pays_more(run: holdfast.Run) -> Any:
    return await run.call(pay.tool, cents=2)


async def _pays_by_name(run: holdfast.Run) -> Any:
    return await run.call(pay.tool, cents=1, note="x")


async def _reads_clock(run: holdfast.Run) -> Any:
    return run.now().isoformat()


async def _draws(run: holdfast.Run) -> Any:
    return run.random()


async def _sleeps(run: holdfast.Run) -> Any:
    return await run.sleep(0)


async def _gathers(run: holdfast.Run) -> Any:
    return await run.gather(run.call(pay.tool, cents=1))


async def _asks(run: holdfast.Run) -> Any:
    return bool(await run.approve("pay?"))


CHANGES: list[tuple[Version, Version, str]] = [
    (_pays, _refunds, "step 1: the journal has pay, the code now has refund"),
    (_pays, _pays_more, "the code now calls pay with other arguments"),
    (_pays, _pays_by_name, "the code now calls pay with other arguments"),
    (_pays, _reads_clock, "step 1: the journal has a call, the code now has now"),
    (_pays, _gathers, "step 1: the journal has a call, the code now has gather"),
    (_pays, _asks, "step 1: the journal has a call, the code now has approve"),
    (_reads_clock, _pays, "step 1: the journal has now, the code now has pay"),
    (_reads_clock, _draws, "step 1: the journal has now, the code now has random"),
    (_sleeps, _pays, "step 1: the journal has sleep, the code now has pay"),
    (_gathers, _pays, "step 1: the journal has gather, the code now has pay"),
]


@pytest.mark.parametrize(
    ("before", "after", "question"), CHANGES, ids=[f"{a.__name__}-{b.__name__}" for a, b, _ in CHANGES]
)
async def test_changed_code_parks_the_task_until_it_is_put_right(
    lab: Lab, before: Version, after: Version, question: str
) -> None:
    """Nothing new is done under a place that is taken; put right, the task goes on from there."""
    version = [before]

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        found = await version[0](run)
        await run.approve("go on?")
        return found

    called = len(pay.calls), len(refund.calls)
    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        called = len(pay.calls), len(refund.calls)
    version[0] = after
    async with lab.open(order) as hf:
        handle = hf.task(handle.id)
        await hf.approve(handle.id, "2", granted=True)
        with pytest.raises(TaskParked) as parked:
            await handle.result(10)
        assert question in parked.value.question
        assert "holdfast task retry" in parked.value.hint
        notices = await hf.journal.pending_notices(limit=10)
        (notice,) = [one for one in notices if one.kind == "parked"]
        assert notice.task_id == handle.id
        assert question in notice.text
    version[0] = before
    async with lab.open(order) as hf:
        handle = hf.task(handle.id)
        await hf.retry(handle.id)
        await wait_state(handle, TaskState.SUCCEEDED)
    assert (len(pay.calls), len(refund.calls)) == called


async def _asks_more(run: holdfast.Run) -> Any:
    return bool(await run.approve("pay more?", cents=2))


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        (_pays, _pays_more, "cents: recorded 1, now 2"),
        (_pays, _pays_by_name, 'note: recorded nothing, now "x"'),
        (_asks, _asks_more, 'question: recorded "pay?", now "pay more?"\ndetails: recorded {}, now {"cents": 2}'),
        (_pays, _refunds, ""),
    ],
)
async def test_both_values_and_the_ways_out_are_shown(lab: Lab, before: Version, after: Version, detail: str) -> None:
    """In the record, which is sealed; a notice is sent outside, and names neither."""
    version = [before]

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        await version[0](run)
        await run.sleep(3_600)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        if before is _asks:
            await wait_state(handle, TaskState.WAITING)
            await hf.approve(handle.id, "1", granted=True)
        await wait_state(handle, TaskState.SLEEPING)
    version[0] = after
    async with lab.open(order) as hf:
        handle = hf.task(handle.id)
        await hf.retry(handle.id)
        await wait_state(handle, TaskState.PARKED)
        row, view = await handle.row(), await handle.view()
        parked = task_shape(row, view, {})["parked"]
        (todo,) = await list_todo(hf.journal)
        (notice,) = [one for one in await hf.journal.pending_notices(limit=10) if one.kind == "parked"]
    assert parked["detail"] == detail
    assert (todo.kind, todo.about, todo.text) == ("task", handle.task_id, parked["question"])
    assert todo.command == f"holdfast task show {handle.task_id}"
    ways = "\n".join(parked["ways"])
    assert all(word in ways for word in ("put the code back", "run.version", "run.random()"))
    assert "recorded 1" not in notice.text


async def test_an_open_step_whose_class_has_changed_parks_the_task(lab: Lab) -> None:
    """A stronger contract does not hold for what was sent under the weaker one."""
    once = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="send")
    keyed = Scripted(KEYED, "sent", name="send")
    tools = [once]

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.call(tools[0].tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.PARKED)
        tools[0] = keyed
        await hf.retry(handle.id)
        await wait_until(lambda: diverged(handle))
        with pytest.raises(TaskParked, match="was Unrepeatable and is now Keyed"):
            await handle.result(10)
        tools[0] = once
        await hf.settle(handle.id, "1", "done", result="seen")
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result() == "seen"
    assert (len(once.calls), keyed.calls) == (1, [])


async def diverged(handle: holdfast.TaskHandle) -> bool:
    return str((await handle.view()).rested.get("why", "")).startswith("diverged")


async def test_a_closed_step_may_get_a_better_contract(lab: Lab) -> None:
    """What is done is done under the contract it had; the record is the answer."""
    tools = [weak]

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        found = await run.call(tools[0].tool, cents=7)
        await run.approve("go on?")
        return found

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        assert (await handle.view()).steps["1"].state is StepState.SUCCEEDED
        tools[0] = pay
        before = len(pay.calls)
        await hf.approve(handle.id, "2", granted=True)
        assert await handle.result(10) == "paid"
    assert len(pay.calls) == before
