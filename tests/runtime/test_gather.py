"""Branches that run at the same time: fixed places, one end for all, no step beside a doubt."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import Misuse, TaskFailed, TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, hang, wait_state, wait_step

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
READ = holdfast.Read()


def echo() -> tuple[holdfast.Tool[..., Any], list[int]]:
    seen: list[int] = []

    @holdfast.tool(effect=KEYED, name="echo")
    async def act(n: int) -> int:
        seen.append(n)
        return n

    return act, seen


async def test_branches_have_their_places_before_any_of_them_starts(lab: Lab) -> None:
    """4.2.1 is the first step of the second branch of the gather at 4, whoever ends first."""
    tool, seen = echo()

    async def two(run: holdfast.Run) -> list[int]:
        return [await run.call(tool, n=20), await run.call(tool, n=21)]

    async def late(run: holdfast.Run) -> int:
        await asyncio.sleep(0.02)
        return await run.call(tool, n=30)

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        run.now()
        found = await run.gather(run.call(tool, n=10), two, late)
        return [*found, await run.call(tool, n=40)]

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        assert await handle.result(10) == [10, [20, 21], 30, 40]
        steps = (await handle.view()).steps
    places = {ordinal: step.args for ordinal, step in steps.items()}
    assert places == {"2.1.1": {"n": 10}, "2.2.1": {"n": 20}, "2.2.2": {"n": 21}, "2.3.1": {"n": 30}, "3": {"n": 40}}
    assert len({step.effect_key for step in steps.values()}) == 5
    assert sorted(seen) == [10, 20, 21, 30, 40]


async def test_branches_run_at_the_same_time(lab: Lab) -> None:
    gate = asyncio.Event()
    waits = Scripted(READ, after(gate, "first"), name="waits")

    async def open_gate(_call: holdfast.Call) -> str:
        gate.set()
        return "second"

    opens = Scripted(READ, open_gate, name="opens")

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(run.call(waits.tool), run.call(opens.tool))

    async with lab.open(fan) as hf:
        assert await (await hf.submit(fan)).result(10) == ["first", "second"]


async def test_gathers_nest_and_replay(lab: Lab) -> None:
    tool, seen = echo()
    results: list[Any] = []

    async def inner(run: holdfast.Run) -> list[Any]:
        return await run.gather(run.call(tool, n=1), lambda deep: deep.call(tool, n=2))

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        results.append(await run.gather(inner, run.call(tool, n=3), inner))
        await run.approve("go on?")
        return results[-1]

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        await wait_state(handle, TaskState.WAITING)
        assert set((await handle.view()).steps) == {"1.1.1.1.1", "1.1.1.2.1", "1.2.1", "1.3.1.1.1", "1.3.1.2.1"}
    async with lab.open(fan) as hf:
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == [[1, 2], 3, [1, 2]]
    assert len(results) == 2
    assert sorted(seen) == [1, 1, 2, 2, 3]


async def test_the_first_failure_in_order_is_raised_once_all_have_ended(lab: Lab) -> None:
    """Not the first in time: a replay, where all end at once, must raise the same."""
    slow = asyncio.Event()
    first = Scripted(READ, after(slow, ValueError("first")), name="first")

    async def fail_fast(_call: holdfast.Call) -> None:
        slow.set()
        raise ValueError("second")

    second = Scripted(READ, fail_fast, name="second")
    third = Scripted(KEYED, "done", name="third")

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        await run.gather(run.call(first.tool), run.call(second.tool), run.call(third.tool))

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        with pytest.raises(TaskFailed, match="first raised ValueError: first"):
            await handle.result(10)
        assert (await handle.view()).steps["1.3.1"].state is StepState.SUCCEEDED


async def test_one_branch_parks_while_the_others_finish(lab: Lab) -> None:
    """The doubt waits for a person; the rest is done and is not done again."""
    once = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="once")
    tool, seen = echo()

    async def many(run: holdfast.Run) -> int:
        return sum([await run.call(tool, n=n) for n in range(5)])

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(run.call(once.tool), many)

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        with pytest.raises(TaskParked) as parked:
            await handle.result(10)
        assert parked.value.ordinal == "1.1.1"
        steps = (await handle.view()).steps
        assert [steps[f"1.2.{n}"].state for n in range(1, 6)] == [StepState.SUCCEEDED] * 5
        await hf.settle(handle.id, "1.1.1", "done", result="by hand")
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result(10) == ["by hand", 10]
    assert (len(once.calls), seen) == (1, [0, 1, 2, 3, 4])


async def test_a_branch_that_swallows_its_park_cannot_go_on(lab: Lab) -> None:
    """No effect beside a doubt in the same chain (I5), whatever the branch's code catches."""
    once = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="once")
    later = Scripted(KEYED, "later", name="later")

    async def greedy(run: holdfast.Run) -> str:
        for tool in (once.tool, later.tool):
            with contextlib.suppress(BaseException):
                await run.call(tool)
        return "went on"

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(greedy, run.call(later.tool))

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        await wait_state(handle, TaskState.PARKED)
        assert set((await handle.view()).steps) == {"1.1.1", "1.2.1"}
    assert [call.ordinal for call in later.calls] == ["1.2.1"]


async def test_two_branches_park_and_are_settled_one_by_one(lab: Lab) -> None:
    one = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="one")
    two = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="two")

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(run.call(one.tool), run.call(two.tool))

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        await wait_state(handle, TaskState.PARKED)
        await hf.settle(handle.id, "1.2.1", "done", result=2)
        await wait_step(handle, "1.2.1", StepState.SUCCEEDED)
        await wait_state(handle, TaskState.PARKED)
        await hf.settle(handle.id, "1.1.1", "done", result=1)
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result(10) == [1, 2]


async def test_another_number_of_branches_is_a_divergence(lab: Lab) -> None:
    tool, _ = echo()
    branches = [3]

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        await run.gather(*(run.call(tool, n=n) for n in range(branches[0])))
        await run.approve("go on?")

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        await wait_state(handle, TaskState.WAITING)
    branches[0] = 2
    async with lab.open(fan) as hf:
        await hf.approve(handle.id, "2", granted=True)
        handle = hf.task(handle.id)
        with pytest.raises(TaskParked, match="had 3 branches and now has 2"):
            await handle.result(10)
        branches[0] = 3
        await hf.retry(handle.id)
        await wait_state(handle, TaskState.SUCCEEDED)


async def test_a_gather_sleeps_until_its_first_branch_is_due(lab: Lab) -> None:
    """Branches sleep and wait each for itself; a park beside them keeps none from waking."""
    once = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="once")
    tool, seen = echo()

    async def slow(run: holdfast.Run) -> None:
        await run.sleep(3_600)

    async def quick(run: holdfast.Run) -> None:
        await run.sleep(2.3)
        await run.call(tool, n=1)

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(run.call(once.tool), slow, quick)

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        row = await wait_state(handle, TaskState.SLEEPING)
        assert row.due_ms - row.created_ms < 10_000
        await wait_step(handle, "1.3.2", StepState.SUCCEEDED)
        row = await wait_state(handle, TaskState.SLEEPING)
        assert row.due_ms - row.created_ms > 3_000_000
    assert seen == [1]
    assert len(once.calls) == 1


async def test_an_exit_in_a_branch_ends_the_task_and_not_the_program(lab: Lab) -> None:
    tool, _ = echo()

    async def leave(run: holdfast.Run) -> None:
        raise SystemExit(3)

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(leave, run.call(tool, n=1))

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        with pytest.raises(TaskFailed, match="SystemExit"):
            await handle.result(10)
        assert (await handle.view()).steps["1.2.1"].state is StepState.SUCCEEDED


async def test_a_stop_in_the_middle_of_a_gather_gives_the_task_back(lab: Lab) -> None:
    tool, seen = echo()
    waits = Scripted(KEYED, hang, "ended", name="waits")

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(run.call(waits.tool), run.call(tool, n=1))

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        await wait_step(handle, "1.2.1", StepState.SUCCEEDED)
        await waits.entered.wait()
    async with lab.open(fan) as hf:
        assert await hf.task(handle.id).result(10) == ["ended", 1]
    assert (seen, len(set(waits.keys))) == ([1], 1)


async def test_a_gather_of_nothing_is_refused(lab: Lab) -> None:
    @holdfast.task
    async def fan(run: holdfast.Run) -> str:
        try:
            await run.gather()
        except Misuse:
            return "refused"
        return "accepted"

    async with lab.open(fan) as hf:
        assert await (await hf.submit(fan)).result(10) == "refused"
