"""What is kept, for how long: payloads go, the id stays, and a request never becomes a new task."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.errors import NotSettleable, RequestConflict, ResultErased, TaskNotFound
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, SkewedClock, wait_state, wait_until

DAY_MS = 86_400_000
KEYED = holdfast.Keyed(window_s=20 * 86_400, fingerprint="checked", refusals_stored=True)


@holdfast.task
async def greet(run: holdfast.Run, name: str) -> str:
    return f"hello {name}"


@holdfast.task
async def tick(run: holdfast.Run) -> None: ...


async def erased(lab: Lab, task_id: str, clock: SkewedClock, *tasks: holdfast.TaskType) -> bool:
    """Let an engine with these settings do its upkeep; whether the task's payload is gone."""
    settings: dict[str, Any] = {"keep_days": 10.0, "tombstone_days": 100.0}
    async with lab.open(tick, *tasks, clock=clock, **settings) as hf:
        await (await hf.submit(tick)).result(10)  # the newest record is never the old task's
        await hf.journal.retain(keep_ms=10 * DAY_MS, tombstone_ms=100 * DAY_MS)
        row = await hf.task(task_id).row()
        return row.erased


async def test_an_old_payload_is_erased_and_the_id_stays(lab: Lab) -> None:
    async with lab.open(greet) as hf:
        handle = await hf.submit(greet, name="ada", request_id="r-1")
        await handle.result(10)
    assert not await erased(lab, handle.id, SkewedClock(9 * DAY_MS))
    assert await erased(lab, handle.id, SkewedClock(11 * DAY_MS))
    async with lab.open(greet, clock=SkewedClock(11 * DAY_MS)) as hf:
        again = await hf.submit(greet, name="ada", request_id="r-1")
        assert (again.id, again.created, await again.state()) == (handle.id, False, TaskState.SUCCEEDED)
        with pytest.raises(ResultErased, match="succeeded; its result was erased") as gone:
            await again.result(10)
        assert gone.value.exit_code == 3
        assert "keep_days" in gone.value.hint
        with pytest.raises(RequestConflict):
            await hf.submit(greet, name="bob", request_id="r-1")
        with pytest.raises(NotSettleable):
            await hf.retry(handle.id)


async def test_an_engine_erases_by_itself(lab: Lab) -> None:
    """The settings are the engine's: nobody has to ask."""
    async with lab.open(greet, tick) as hf:
        handle = await hf.submit(greet, name="ada")
        await handle.result(10)
        await (await hf.submit(tick)).result(10)
    async with lab.open(tick, clock=SkewedClock(11 * DAY_MS), keep_days=10.0) as hf:
        await wait_until(lambda: _is_erased(hf, handle.id))


async def _is_erased(hf: holdfast.Holdfast, task_id: str) -> bool:
    return (await hf.task(task_id).row()).erased


async def test_a_tombstone_outlives_the_payload_and_ends_too(lab: Lab) -> None:
    async with lab.open(greet) as hf:
        handle = await hf.submit(greet, name="ada", request_id="r-1")
        await handle.result(10)
    assert await erased(lab, handle.id, SkewedClock(11 * DAY_MS))
    assert await erased(lab, handle.id, SkewedClock(100 * DAY_MS))
    with pytest.raises(TaskNotFound):
        await erased(lab, handle.id, SkewedClock(112 * DAY_MS))


async def test_an_open_key_window_keeps_its_task(lab: Lab) -> None:
    """As long as the far end may remember the key, the record of its use stays."""
    tool = Scripted(KEYED, "paid")

    @holdfast.task
    async def pay(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        await handle.result(10)
    assert not await erased(lab, handle.id, SkewedClock(15 * DAY_MS))
    assert await erased(lab, handle.id, SkewedClock(21 * DAY_MS))


async def test_what_is_not_ended_is_never_erased(lab: Lab) -> None:
    tool = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"))

    @holdfast.task
    async def parks(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    @holdfast.task
    async def asks(run: holdfast.Run) -> Any:
        return bool(await run.approve("go?"))

    async with lab.open(parks, asks) as hf:
        parked, asking = await hf.submit(parks), await hf.submit(asks)
        await wait_state(parked, TaskState.PARKED)
        await wait_state(asking, TaskState.WAITING)
    late = SkewedClock(5_000 * DAY_MS)
    assert not await erased(lab, parked.id, late, parks)
    assert not await erased(lab, asking.id, late, asks)
    async with lab.open(parks, asks, clock=late) as hf:
        await hf.settle(parked.id, "1", "done", result=1)
        await hf.approve(asking.id, "1", granted=True)
        assert await hf.task(parked.id).result(10) == 1
        assert await hf.task(asking.id).result(10) is True


async def test_a_failed_task_that_was_erased_says_so(lab: Lab) -> None:
    @holdfast.task
    async def fails(run: holdfast.Run) -> None:
        raise ValueError("no")

    async with lab.open(fails) as hf:
        handle = await hf.submit(fails)
        await wait_state(handle, TaskState.FAILED)
    assert await erased(lab, handle.id, SkewedClock(11 * DAY_MS))
    async with lab.open(serve=False) as hf:
        with pytest.raises(ResultErased, match="failed"):
            await hf.task(handle.id).result(10)
