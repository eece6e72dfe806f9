"""Keyed far ends: same key until the window closes, then the lookup, then a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd
from holdfast.errors import TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, SkewedClock, hang, wait_state

Get = Callable[..., Awaitable[FarEnd]]
HOUR_MS = 3_600_000


def keyed(window_s: float = 86_400) -> holdfast.Keyed:
    return holdfast.Keyed(window_s=window_s, fingerprint="checked", refusals_stored=True, max_delay_s=0)


def one_step(tool: Scripted) -> holdfast.TaskType:
    @holdfast.task(name="one")
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    return one


async def left_in_doubt(lab: Lab, tool: Scripted) -> str:
    """A task whose call was cut off by a stop; its id."""
    one = one_step(tool)
    async with lab.open(one, grace_s=0) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
    return handle.id


async def test_within_its_window_the_same_key_is_sent_again(lab: Lab) -> None:
    tool = Scripted(keyed(), hang, "paid")
    task_id = await left_in_doubt(lab, tool)
    later = SkewedClock(20 * HOUR_MS)
    async with lab.open(one_step(tool), clock=later) as hf:
        assert await hf.task(task_id).result(10) == "paid"
    assert len(set(tool.keys)) == 1
    assert len(tool.calls) == 2


async def test_past_its_window_without_a_lookup_a_person_is_asked(lab: Lab) -> None:
    """The far end may have forgotten the key: a re-send could be a second charge."""
    tool = Scripted(keyed(), hang, "paid")
    task_id = await left_in_doubt(lab, tool)
    async with lab.open(one_step(tool), clock=SkewedClock(25 * HOUR_MS)) as hf:
        with pytest.raises(TaskParked, match="key window has ended"):
            await hf.task(task_id).result(10)
    assert len(tool.calls) == 1


@pytest.mark.parametrize(
    ("answer", "calls", "result"),
    [(holdfast.Found("found"), 1, "found"), (holdfast.Absent(), 2, "paid")],
    ids=["found", "absent"],
)
async def test_past_its_window_with_a_lookup_it_is_asked(lab: Lab, answer: Any, calls: int, result: str) -> None:
    tool = Scripted(keyed(), hang, "paid").finds(answer)
    task_id = await left_in_doubt(lab, tool)
    async with lab.open(one_step(tool), clock=SkewedClock(25 * HOUR_MS)) as hf:
        assert await hf.task(task_id).result(10) == result
    assert (len(tool.calls), len(tool.lookups)) == (calls, 1)
    assert len(set(tool.keys)) == 1


async def test_a_clock_set_back_never_reopens_a_window(lab: Lab) -> None:
    """The journal remembers how late it was; a window may close early, never open again."""
    tool = Scripted(keyed(window_s=3_600), hang, "paid")
    task_id = await left_in_doubt(lab, tool)

    @holdfast.task
    async def tick(run: holdfast.Run) -> None: ...

    async with lab.open(tick, clock=SkewedClock(2 * HOUR_MS)) as hf:
        await (await hf.submit(tick)).result(10)
    async with lab.open(one_step(tool)) as hf:
        with pytest.raises(TaskParked):
            await hf.task(task_id).result(10)
    assert len(tool.calls) == 1


async def test_a_lost_answer_is_asked_for_again_and_charged_once(lab: Lab, far_end: Get) -> None:
    """A real far end counts: reply dropped, stored 500, busy, and one charge in the end."""
    payment = await far_end("payment")
    await payment.faults(Fault(kind=FaultKind.DROP_REPLY), Fault(kind=FaultKind.BUSY409, retry_after_s=1))

    @holdfast.tool(effect=keyed(), http_only=True)
    async def charge(call: holdfast.Call, cents: int) -> Any:
        body = {"card": "tok_1", "cents": cents}
        return (await call.http.post(f"{payment.url}/charges", json=body)).json()

    @holdfast.task
    async def pay(run: holdfast.Run) -> Any:
        return await run.call(charge, cents=900)

    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        assert (await handle.result(20))["cents"] == 900
        assert len((await handle.view()).steps["1"].attempts) == 3
    page = await payment.ledger()
    assert (page.count, page.duplicates) == (1, 0)
    assert [seen.outcome for seen in page.requests] == ["effect", "busy", "replayed"]
    assert len({seen.key for seen in page.requests}) == 1


async def test_a_stored_500_ends_with_a_lookup_or_a_person(lab: Lab, far_end: Get) -> None:
    """Some far ends repeat a 500 for ever: bounded attempts, then what the lookup says."""
    payment = await far_end("payment")
    await payment.faults(Fault(kind=FaultKind.ERROR500, effect=True, stored=True))

    @holdfast.tool(effect=keyed(), http_only=True, attempts=2)
    async def charge(call: holdfast.Call) -> Any:
        body = {"card": "tok_1", "cents": 5}
        return (await call.http.post(f"{payment.url}/charges", json=body)).json()

    @charge.find
    async def look(call: holdfast.Call) -> holdfast.Found | holdfast.Absent | holdfast.Many:
        url = f"{payment.url}/charges?key={call.effect_key}"
        found = (await call.http.get(url)).json()["charges"]
        if len(found) > 1:
            return holdfast.Many(found)
        return holdfast.Found(found[0]) if found else holdfast.Absent()

    @holdfast.task
    async def pay(run: holdfast.Run) -> Any:
        return await run.call(charge)

    async with lab.open(pay) as hf:
        assert (await (await hf.submit(pay)).result(20))["cents"] == 5
    assert look is not None
    assert (await payment.ledger()).count == 1


async def test_a_busy_far_end_is_left_alone_for_as_long_as_it_asks(lab: Lab) -> None:
    """Retry-After is kept to, also when something else is heard of the task meanwhile."""
    times: list[float] = []

    async def note(_call: holdfast.Call) -> str:
        times.append(time.monotonic())
        if len(times) < 2:
            raise holdfast.Busy(20)
        return "paid"

    tool = Scripted(keyed(), note)
    async with lab.open(one_step(tool)) as hf:
        handle = await hf.submit("one")
        await tool.entered.wait()
        for _ in range(3):
            await asyncio.sleep(0.05)
            await hf.evidence(task_id=handle.id, ordinal="1", happened=False)
        assert await handle.result(10) == "paid"
    assert times[1] - times[0] >= 20 * hf.settings.pace * 0.95


async def test_a_long_retry_after_leaves_memory(lab: Lab) -> None:
    """A far end that asks for an hour does not keep a place in the worker for it."""
    tool = Scripted(keyed(), holdfast.Busy(3_600), "paid")
    async with lab.open(one_step(tool), pace=1) as hf:
        handle = await hf.submit("one")
        row = await wait_state(handle, TaskState.SLEEPING)
        assert 3_500_000 < row.due_ms - row.created_ms < 3_700_000
        assert (await handle.view()).steps["1"].state is StepState.UNKNOWN
    async with lab.open(one_step(tool), pace=1) as hf:
        await asyncio.sleep(0.05)
        assert await hf.task(handle.id).state() is TaskState.SLEEPING
        await hf.evidence(task_id=handle.id, ordinal="1", result="told")
        assert await hf.task(handle.id).result(10) == "told"
    assert len(tool.calls) == 1


async def test_a_deferred_result_is_not_lost_by_a_stop(lab: Lab) -> None:
    """The last result waits for no next step: it is on record when the program has ended."""
    tool = Scripted(keyed(), "paid")
    gate = asyncio.Event()

    @holdfast.task
    async def pay(run: holdfast.Run) -> None:
        await run.call(tool.tool)
        gate.set()
        await asyncio.Event().wait()

    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        await gate.wait()
    async with lab.open(serve=False) as hf:
        assert (await hf.task(handle.id).view()).steps["1"].state is StepState.SUCCEEDED
