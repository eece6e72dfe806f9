"""An approval is for these arguments, under this key, of this version of the tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast
from holdfast.journal.records import TaskState


def app(version: int, done: list[int]) -> holdfast.TaskType:
    """The same task with a tool whose code differs by version."""
    if version == 1:

        @holdfast.tool(needs_approval=True)
        async def pay(call: holdfast.Call, cents: int) -> int:
            done.append(cents)
            return cents
    else:

        @holdfast.tool(needs_approval=True)
        async def pay(call: holdfast.Call, cents: int) -> int:
            done.append(cents * 100)
            return cents * 100

    @holdfast.task(name="payout")
    async def payout(run: holdfast.Run) -> Any:
        return await run.call(pay, cents=5)

    return payout


async def wait_for(handle: holdfast.TaskHandle, state: TaskState) -> None:
    async for row in handle.watch():
        if row.state is state:
            return


async def test_a_yes_for_the_old_code_is_void_for_the_new(tmp_path: Path) -> None:
    """Granted, then changed before it ran: a person is asked again, and nothing was sent."""
    journal, done = tmp_path / "journal.db", list[int]()
    async with holdfast.open(journal, tasks=[app(1, done)]) as hf:
        handle = await hf.submit("payout")
        await wait_for(handle, TaskState.WAITING)
    async with holdfast.open(journal, serve=False) as hf:
        await hf.approve(handle.id, "1", granted=True)
    async with holdfast.open(journal, tasks=[app(2, done)]) as hf:
        again = hf.task(handle.id)
        await wait_for(again, TaskState.WAITING)
        assert done == []
        await hf.approve(handle.id, "1", granted=True)
        assert await again.result(10) == 500
    assert done == [500]


async def test_a_yes_for_the_same_code_counts_after_a_restart(tmp_path: Path) -> None:
    journal, done = tmp_path / "journal.db", list[int]()
    async with holdfast.open(journal, tasks=[app(1, done)]) as hf:
        handle = await hf.submit("payout")
        await wait_for(handle, TaskState.WAITING)
    async with holdfast.open(journal, serve=False) as hf:
        await hf.approve(handle.id, "1", granted=True)
    async with holdfast.open(journal, tasks=[app(1, done)]) as hf:
        assert await hf.task(handle.id).result(10) == 5
    assert done == [5]
