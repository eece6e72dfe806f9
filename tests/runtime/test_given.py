"""What a tool itself gives, refusals that say when to come back, and how old an effect can be."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import Misuse
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, SkewedClock, wait_state

QUERYABLE = holdfast.Queryable(max_delay_s=0)
STORED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


def one_step(tool: Scripted, **args: Any) -> holdfast.TaskType:
    @holdfast.task(name="one")
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool, **args)

    return one


async def test_what_a_tool_gives_is_recorded_and_sent_with_every_step(lab: Lab) -> None:
    tool = Scripted(holdfast.Unrepeatable(), "done", given={"account": "acct_1"})
    one = one_step(tool, cents=7)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        assert await handle.result(20) == "done"
        assert (await handle.view()).steps["1"].args == {"account": "acct_1", "cents": 7}
        async with hf.scope("thread") as scope:
            await scope.call(tool.tool, slot="a", cents=8)
    assert [call.args for call in tool.calls] == [{"account": "acct_1", "cents": 7}, {"account": "acct_1", "cents": 8}]


async def test_another_account_at_a_known_place_is_another_call(lab: Lab) -> None:
    """A key that was meant for one account must not be used at another (effects belong to both)."""
    first = Scripted(QUERYABLE, ConnectionError("reset"), given={"account": "a"})
    first.finds(holdfast.Unsure())
    async with lab.open(one_step(first)) as hf:
        handle = await hf.submit("one")
        await wait_state(handle, TaskState.PARKED)
    second = Scripted(QUERYABLE, "done", given={"account": "b"}).finds(holdfast.Absent())
    async with lab.open(one_step(second)) as hf:
        await hf.retry(handle.id)
        row = await wait_state(hf.task(handle.id), TaskState.PARKED)
        view = await hf.task(handle.id).view()
    assert "diverged" in str(row) or "diverged" in str(view.rested)
    assert second.calls == []


def test_what_a_tool_gives_cannot_be_passed() -> None:
    tool = Scripted(holdfast.Unrepeatable(), given={"account": "a"}).tool
    with pytest.raises(Misuse, match="do not pass 'account': the tool sets it itself"):
        tool.check_args({"account": "b"})

    def plain(amount: int) -> int:
        return amount

    with pytest.raises(Misuse, match="given: the tool has no argument 'account'"):
        holdfast.tool(given={"account": "a"})(plain)


async def test_a_refusal_that_says_when_is_sent_again_then(lab: Lab) -> None:
    """A far end that limits its rate: no doubt, no lookup, the same key, the time it asked for."""
    later = holdfast.Refused({"status": 429}, retry_after_s=20)
    tool = Scripted(QUERYABLE, later, later, "done").finds(holdfast.Unsure())
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        assert await handle.result(20) == "done"
        step = (await handle.view()).steps["1"]
    assert (len(tool.calls), len(tool.lookups), len(set(tool.keys))) == (3, 0, 1)
    first, second, third = (attempt.boot_ms for attempt in step.attempts)
    assert min(second - first, third - second) >= 20_000 * 0.02 * 0.95


async def test_it_fails_with_proof_when_the_attempts_are_spent(lab: Lab) -> None:
    tool = Scripted(QUERYABLE, holdfast.Refused("no", retry_after_s=0), attempts=3)
    one = one_step(tool.finds(holdfast.Unsure()))
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.FAILED)
        assert (await handle.view()).steps["1"].state is StepState.FAILED
    assert len(tool.calls) == 3


async def test_a_stored_refusal_is_not_sent_again_whatever_it_says(lab: Lab) -> None:
    tool = Scripted(STORED, holdfast.Refused("no", retry_after_s=0), "never")
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.FAILED)
    assert len(tool.calls) == 1


async def test_a_lookup_knows_how_old_the_effect_can_be(lab: Lab) -> None:
    """Past the real age, never short of it: what is older need not be read at the far end."""
    ages: list[float | None] = []

    async def look(call: holdfast.Call) -> Any:
        ages.append(call.sent_ago_s)
        return holdfast.Found("there")

    tool = Scripted(holdfast.Queryable(max_delay_s=20), ConnectionError("reset")).finds(look)
    one = one_step(tool)
    async with lab.open(one) as hf:
        assert await (await hf.submit(one)).result(20) == "there"
    (age,) = ages
    assert age is not None
    assert 20 * 0.02 * 0.95 <= age < 30


async def test_a_clock_that_was_set_back_does_not_make_it_younger(lab: Lab) -> None:
    ages: list[float | None] = []

    async def look(call: holdfast.Call) -> Any:
        ages.append(call.sent_ago_s)
        return holdfast.Found("there")

    clock = SkewedClock()

    async def lose(_call: holdfast.Call) -> Any:
        clock.skew_ms = -3_600_000
        raise ConnectionError("reset")

    tool = Scripted(holdfast.Queryable(max_delay_s=20), lose).finds(look)
    one = one_step(tool)
    async with lab.open(one, clock=clock) as hf:
        assert await (await hf.submit(one)).result(20) == "there"
    assert ages[0] is not None
    assert ages[0] >= 20 * 0.02 * 0.95
