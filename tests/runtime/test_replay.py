"""A task function is replayed over its records: what it saw once it sees again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import StepSkipped, TaskFailed, ToolFailed
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, wait_state

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


def shown(error: BaseException) -> tuple[Any, ...]:
    """All that the task's code can tell about what it was given."""
    found = vars(error)
    return (type(error).__name__, str(error), sorted((k, repr(v)) for k, v in found.items()))


async def test_results_and_failures_are_the_same_after_a_restart(lab: Lab) -> None:
    """Each run of the code gets the same values and the same errors; no tool is called again."""
    read = Scripted(holdfast.Read(), {"price": 1.5, "tags": ["a", None]}, name="read")
    broken = Scripted(holdfast.Read(), ValueError("no such page"), name="broken")
    pay = Scripted(KEYED, {"id": "ch_1"}, name="pay")
    refused = Scripted(KEYED, holdfast.Refused({"code": "declined"}), name="refused")
    once = Scripted(holdfast.Unrepeatable(), None, name="once")
    tools = (read, broken, pay, refused, once)
    runs: list[list[Any]] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        seen: list[Any] = []
        runs.append(seen)
        for one in tools:
            try:
                seen.append(await run.call(one.tool, n=1))
            except holdfast.StepFailed as error:
                seen.append(shown(error))
        await run.approve("go on?")
        return "done"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(order) as hf:
        await hf.approve(handle.id, "6", granted=True)
        assert await hf.task(handle.id).result(10) == "done"
    assert len(runs) == 2
    assert runs[0] == runs[1]
    assert runs[0][0] == {"price": 1.5, "tags": ["a", None]}
    assert runs[0][1][0] == "ToolFailed"
    assert runs[0][3][0] == "Refused"
    assert "'declined'" in str(runs[0][3])
    assert [len(one.calls) for one in tools] == [1] * 5


async def test_time_and_chance_are_the_same_on_replay(lab: Lab) -> None:
    seen: list[Any] = []

    @holdfast.task
    async def draw(run: holdfast.Run) -> Any:
        rng = run.rng()
        drawn = [run.now().isoformat(), run.random(), run.uuid(), rng.random(), rng.randint(1, 10**9)]
        seen.append(drawn)
        await run.approve("go on?")
        return [*drawn, run.random(), run.uuid()]

    async with lab.open(draw) as hf:
        handle = await hf.submit(draw)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(draw) as hf:
        await hf.approve(handle.id, "5", granted=True)
        result = await hf.task(handle.id).result(10)
    assert seen[0] == seen[1] == result[:5]
    assert 0 <= result[1] < 1
    assert result[1] != result[5]
    assert result[2] != result[6]
    assert result[0].endswith("+00:00")


async def test_values_are_durable_before_they_are_used_outside(lab: Lab) -> None:
    """An effect whose arguments were drawn by chance is sent with what is on record."""
    pay = Scripted(KEYED, "paid")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.call(pay.tool, reference=run.uuid())

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await handle.result(10)
        view = await handle.view()
    assert view.notes["1"].body["value"] == pay.calls[0].args["reference"]
    assert view.steps["2"].planned_ms >= view.notes["1"].at_ms


async def test_a_failed_task_says_why_and_can_be_run_again(lab: Lab) -> None:
    """What is closed stays closed: the run after a retry meets the same failure."""
    tool = Scripted(holdfast.Read(), ValueError("no such page"), "found", name="look")
    ran, ran_twice = asyncio.Event(), asyncio.Event()

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        (ran_twice if ran.is_set() else ran).set()
        return await run.call(tool.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskFailed) as failed:
            await handle.result(10)
        assert (failed.value.kind, failed.value.exit_code) == ("ToolFailed", 9)
        assert "no such page" in failed.value.text
        await hf.retry(handle.id)
        async with asyncio.timeout(10):
            await ran_twice.wait()
        with pytest.raises(TaskFailed):
            await handle.result(10)
    assert len(tool.calls) == 1


async def test_code_that_fails_outside_a_step_fails_the_task(lab: Lab) -> None:
    @holdfast.task
    async def divide(run: holdfast.Run, by: int) -> float:
        return 1 / by

    async with lab.open(divide) as hf:
        with pytest.raises(TaskFailed, match="ZeroDivisionError"):
            await (await hf.submit(divide, by=0)).result(10)
        assert await (await hf.submit(divide, by=2)).result(10) == 0.5


async def test_an_error_with_a_text_that_cannot_be_kept_still_fails_the_task(lab: Lab) -> None:
    @holdfast.task
    async def odd(run: holdfast.Run) -> None:
        raise ValueError("\ud800" * 10_000)

    async with lab.open(odd) as hf:
        with pytest.raises(TaskFailed) as failed:
            await (await hf.submit(odd)).result(10)
        assert len(failed.value.text) <= 2_000


async def test_a_failure_that_the_code_handles_is_no_failure_of_the_task(lab: Lab) -> None:
    first = Scripted(holdfast.Read(), ToolFailed(tool="x", kind="y", text="z"), name="first")
    second = Scripted(KEYED, "paid", name="second")

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        try:
            await run.call(first.tool)
        except holdfast.StepFailed:
            return await run.call(second.tool)
        return "unreached"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        assert await handle.result(10) == "paid"
        steps = (await handle.view()).steps
        assert [step.state for step in steps.values()] == [StepState.FAILED, StepState.SUCCEEDED]


async def test_a_skipped_step_is_skipped_on_every_replay(lab: Lab) -> None:
    once = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="once")
    raised: list[tuple[Any, ...]] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        try:
            await run.call(once.tool)
        except StepSkipped as error:
            raised.append(shown(error))
        await run.approve("go on?")
        return "done"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.PARKED)
        await hf.settle(handle.id, "1", "skip", note="not needed")
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(order) as hf:
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == "done"
    assert len(raised) == 2
    assert raised[0] == raised[1]
    assert "not needed" in raised[0][1]
    assert len(once.calls) == 1
