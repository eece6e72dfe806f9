"""What a restore makes suspect: ways to a wrong record or a lost effect."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.core.journal_address import file_at
from holdfast.core.step import StepState
from holdfast.journal.records import TaskState
from holdfast.layout.engine_settings import Settings
from holdfast.recovery.recover_journal import recover_journal
from holdfast.testing.lab import wait_state

HASTY = Settings(grace_s=0.0)  # a call under way when the block is left is broken off


async def test_a_refusal_after_a_restore_does_not_speak_for_the_lost_timeline(tmp_path: Path) -> None:
    """A fenced call of the lost timeline lands after the new one's refusal: it is not failed.

    A far end raises its fence with what it does, not with what it refuses.
    """
    answers: list[str] = []
    sent = asyncio.Event()

    @holdfast.tool(effect=holdfast.Fenced(max_delay_s=1.0))
    async def publish(call: holdfast.Call) -> str:
        answers.append(call.effect_key)
        if len(answers) == 1:
            sent.set()
            await asyncio.sleep(60)  # under way when the journal is lost
        if len(answers) == 2:
            raise holdfast.Refused("not now")
        return "published"  # by then the first has landed: the far end knows the key

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        return await run.call(publish)

    journal, old = tmp_path / "journal.db", tmp_path / "old.db"
    async with holdfast.open(journal, serve=False) as hf:
        task_id = (await hf.submit(order, request_id="order-1")).id
    shutil.copy2(journal, old)
    async with holdfast.open(journal, tasks=[order], settings=HASTY):
        await asyncio.wait_for(sent.wait(), 20)
    old.replace(journal)
    await recover_journal(file_at(journal))
    async with holdfast.open(journal, tasks=[order]) as hf:
        assert await hf.task(task_id).result(20) == "published"
    assert len(answers) == 3
    assert len(set(answers)) == 1


async def test_a_suspect_retry_slot_asks_about_the_slots_after_it(tmp_path: Path) -> None:
    """The copy knows of `1.r1`; the lost timeline was refused there and paid with `1.r2`."""
    paid: list[str] = []
    refuses = {"1", "1.r1"}
    hanging = asyncio.Event()
    keyed = holdfast.Keyed(window_s=1, fingerprint="checked", refusals_stored=True, max_delay_s=0.05)

    @holdfast.tool(effect=keyed, retries=2)
    async def pay(call: holdfast.Call) -> str:
        if call.ordinal == "1.r1" and not hanging.is_set():
            hanging.set()
            await asyncio.sleep(60)
        if call.ordinal in refuses:
            raise holdfast.Refused("not enough money")
        paid.append(call.ordinal)
        return call.ordinal

    @pay.find
    async def find(call: holdfast.Call) -> holdfast.Found | holdfast.Absent:
        return holdfast.Found(call.ordinal) if call.ordinal in paid else holdfast.Absent()

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        return await run.call(pay)

    journal, old = tmp_path / "journal.db", tmp_path / "old.db"
    async with holdfast.open(journal, tasks=[order], settings=HASTY) as hf:
        task_id = (await hf.submit(order, request_id="order-1")).id
        await asyncio.wait_for(hanging.wait(), 20)
    shutil.copy2(journal, old)
    async with holdfast.open(journal, tasks=[order]) as hf:
        assert await hf.task(task_id).result(20) == "1.r2"
    old.replace(journal)
    await recover_journal(file_at(journal))
    refuses.clear()  # past its window the far end has forgotten what it refused
    async with holdfast.open(journal, tasks=[order]) as hf:
        assert await hf.task(task_id).result(20) == "1.r2"
    assert paid == ["1.r2"]


@pytest.mark.parametrize(
    "effect",
    [
        holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False, max_delay_s=0.05),
        holdfast.Queryable(max_delay_s=0.05),
    ],
    ids=["keyed", "queryable"],
)
@pytest.mark.parametrize("between", [0, 1], ids=["at-its-place", "further-on"])
async def test_a_lost_effect_answers_one_call_of_two_that_ask_for_the_same(
    tmp_path: Path, effect: holdfast.Keyed | holdfast.Queryable, between: int
) -> None:
    """The lost timeline paid once, at step 2; the new one wants to pay twice, from step 1 on.

    At step 2 the key is used up, and a person decides; with another step there, the second
    payment has a key of its own and is made.
    """
    paid: dict[str, int] = {}
    lost = True

    @holdfast.tool(effect=holdfast.Read())
    async def look(call: holdfast.Call) -> str:
        return "open"

    @holdfast.tool(effect=effect)
    async def pay(call: holdfast.Call, cents: int) -> str:
        paid.setdefault(call.ordinal, cents)
        return f"charge-{call.ordinal}"

    @pay.find
    async def find(call: holdfast.Call, cents: int) -> holdfast.Found | holdfast.Absent:
        if call.ordinal not in paid:
            return holdfast.Absent()
        return holdfast.Found(f"charge-{call.ordinal}", args={"cents": paid[call.ordinal]})

    @holdfast.task
    async def order(run: holdfast.Run) -> list[str]:
        if lost:
            await run.call(look)
            return [await run.call(pay, cents=7)]
        one = await run.call(pay, cents=7)
        for _ in range(between):
            await run.call(look)
        return [one, await run.call(pay, cents=7)]

    journal, old = tmp_path / "journal.db", tmp_path / "old.db"
    async with holdfast.open(journal, serve=False) as hf:
        task_id = (await hf.submit(order, request_id="order-1")).id
    shutil.copy2(journal, old)
    async with holdfast.open(journal, tasks=[order]) as hf:
        assert await hf.task(task_id).result(20) == ["charge-2"]
    old.replace(journal)
    await recover_journal(file_at(journal))
    lost = False
    async with holdfast.open(journal, tasks=[order], settings=Settings(pace=0.01)) as hf:
        handle = hf.task(task_id)
        if between:
            assert await handle.result(20) == ["charge-2", "charge-3"]
            assert paid == {"2": 7, "3": 7}
            return
        await wait_state(handle, TaskState.PARKED)
        steps = (await handle.view()).steps
        assert (steps["1"].result, steps["2"].state) == ("charge-2", StepState.PARKED)
        assert "the result of another step" in str(steps["2"].evidence)
    assert paid == {"2": 7}
