"""Fenced far ends: numbers that only rise, across attempts, steps and tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import holdfast
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd
from holdfast.testing.lab import Lab, Scripted, hang, wait_until

Get = Callable[..., Awaitable[FarEnd]]


async def test_fences_rise_across_attempts_steps_and_tasks(lab: Lab) -> None:
    tool = Scripted(holdfast.Fenced(), ConnectionError("reset"), holdfast.NotSent(), "written")

    @holdfast.task
    async def write(run: holdfast.Run) -> None:
        for _ in range(3):
            await run.call(tool.tool)

    async with lab.open(write) as hf:
        for handle in [await hf.submit(write) for _ in range(3)]:
            await handle.result(10)
    async with lab.open(write) as hf:
        await (await hf.submit(write)).result(10)
    fences = [call.fence for call in tool.calls]
    assert fences == sorted(set(fences))
    assert len(fences) == 14
    assert all(fence >> 40 == 1 for fence in fences)


async def test_a_resumed_step_writes_with_a_higher_fence(lab: Lab) -> None:
    tool = Scripted(holdfast.Fenced(), hang, "written")

    @holdfast.task
    async def write(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(write, grace_s=0) as hf:
        handle = await hf.submit(write)
        await tool.entered.wait()
    async with lab.open(write) as hf:
        await hf.task(handle.id).result(10)
    first, second = tool.calls
    assert second.fence > first.fence
    assert second.effect_key == first.effect_key


async def _arrived(store: FarEnd) -> bool:
    return bool((await store.ledger()).requests)


async def test_an_older_write_that_lands_late_is_refused_by_the_far_end(lab: Lab, far_end: Get) -> None:
    """Two tasks write one resource; the delayed first write does not overwrite the second."""
    store = await far_end("fenced")
    await store.faults(Fault(kind=FaultKind.LATE, seconds=0.3, n=1))

    @holdfast.tool(effect=holdfast.Fenced(), http_only=True, attempts=1)
    async def put(call: holdfast.Call, value: int) -> Any:
        return (await call.http.put(f"{store.url}/resources/door", json={"v": value})).status

    @holdfast.task
    async def write(run: holdfast.Run, value: int) -> Any:
        return await run.call(put, value=value)

    async with lab.open(write) as hf:
        old = await hf.submit(write, value=1)
        await wait_until(lambda: _arrived(store))
        new = await hf.submit(write, value=2)
        assert await new.result(10) == 200
        await store.wait_idle()
        page = await store.ledger()
        assert page.resources["door"]["value"] == {"v": 2}  # pyright: ignore[reportIndexIssue]
        assert [seen.outcome for seen in page.requests] == ["stale", "effect"]
        assert old.id != new.id
