"""Facts from elsewhere: a webhook, a stale worker, a person who has looked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.step import StepState
from holdfast.errors import BadReference, BadValue, StepNotFound, TaskNotFound
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, hang, look_dead, wait_state, wait_step, wait_until

ONCE = holdfast.Unrepeatable(max_delay_s=0)
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


def one_step(tool: Scripted) -> holdfast.TaskType:
    @holdfast.task(name="one")
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    return one


async def test_evidence_settles_a_parked_step(lab: Lab) -> None:
    """By effect key, as a webhook would name it; the result becomes the step's (T9)."""
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
        await hf.evidence(effect_key=tool.keys[0], result={"id": "ch_9"}, source="webhook 17")
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result() == {"id": "ch_9"}
    assert len(tool.calls) == 1


async def test_evidence_by_task_and_ordinal_after_the_worker_is_gone(lab: Lab) -> None:
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.PARKED)
    async with lab.open(serve=False) as hf:
        await hf.evidence(task_id=handle.id.lower(), ordinal="1", result=5)
        assert await hf.task(handle.id).state() is TaskState.QUEUED
    async with lab.open(one) as hf:
        assert await hf.task(handle.id).result(10) == 5


async def test_evidence_before_the_doubt_is_used_when_it_comes(lab: Lab) -> None:
    """The webhook is quicker than the answer, and the answer never comes."""
    gate = asyncio.Event()
    tool = Scripted(ONCE, after(gate, ConnectionError("reset")))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
        await hf.evidence(effect_key=tool.keys[0], result="told")
        gate.set()
        assert await handle.result(10) == "told"


async def test_an_answer_counts_more_than_what_was_told_before_it(lab: Lab) -> None:
    gate = asyncio.Event()
    tool = Scripted(ONCE, after(gate, "answered"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
        await hf.evidence(effect_key=tool.keys[0], result="told")
        gate.set()
        assert await handle.result(10) == "answered"


async def test_evidence_while_the_step_waits_for_quiet_ends_the_wait(lab: Lab) -> None:
    tool = Scripted(holdfast.Queryable(max_delay_s=1_000), ConnectionError("reset"))
    tool.finds(holdfast.Absent())
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await wait_step(handle, "1", StepState.UNKNOWN)
        await hf.evidence(task_id=handle.id, ordinal="1", result="told")
        assert await handle.result(5) == "told"
    assert (len(tool.calls), tool.lookups) == (1, [])


async def test_evidence_that_it_did_not_happen_is_shown_and_decides_nothing(lab: Lab) -> None:
    """A late copy may still land: whoever decides sees what was told."""
    gate = asyncio.Event()
    tool = Scripted(ONCE, after(gate, ConnectionError("reset")))
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
        await hf.evidence(effect_key=tool.keys[0], happened=False, source="statement of May")
        await wait_until(lambda: _heard(hf, handle))
        gate.set()
        await wait_state(handle, TaskState.PARKED)
        step = (await handle.view()).steps["1"]
        told = [one["told"] for one in step.evidence if "told" in one]
        assert [one["source"] for one in told] == ["statement of May"]
        await hf.evidence(effect_key=tool.keys[0], result="it did")
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result() == "it did"
    assert len(tool.calls) == 1


async def _heard(hf: holdfast.Holdfast, handle: holdfast.TaskHandle) -> bool:
    return hf.engine is not None and bool(hf.engine._writers[handle.id].inbox)


async def test_evidence_about_a_closed_step_changes_nothing(lab: Lab) -> None:
    tool = Scripted(KEYED, "paid")

    @holdfast.task
    async def pay(run: holdfast.Run) -> Any:
        paid = await run.call(tool.tool)
        await run.approve("go on?")
        return paid

    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        await wait_state(handle, TaskState.WAITING)
        await hf.evidence(effect_key=tool.keys[0], result="something else")
        await hf.approve(handle.id, "2", granted=True)
        assert await handle.result(10) == "paid"
    assert len(tool.calls) == 1


async def test_evidence_about_nothing_is_refused(lab: Lab) -> None:
    tool = Scripted(KEYED, "paid")
    one = one_step(tool)
    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await handle.result(10)
        with pytest.raises(StepNotFound):
            await hf.evidence(effect_key="0b0c0d0e-0f10-8112-9314-151617181920")
        with pytest.raises(BadReference):
            await hf.evidence(effect_key="not a key")
        with pytest.raises(TaskNotFound):
            await hf.evidence(task_id="7" + "Z" * 25, ordinal="1")
        with pytest.raises(StepNotFound):
            await hf.evidence(task_id=handle.id, ordinal="9")
        with pytest.raises(BadReference):
            await hf.evidence(task_id=handle.id, ordinal="one")
        with pytest.raises(BadValue):
            await hf.evidence(task_id=handle.id, ordinal="1", result=b"raw")


async def test_a_stale_worker_leaves_what_it_saw_succeed(lab: Lab) -> None:
    """Fenced in mid-call: it may not close the step, but the new owner need not guess (T9)."""
    gate = asyncio.Event()
    tool = Scripted(ONCE, after(gate, "sent after all"))
    one = one_step(tool)
    async with lab.open(one) as stale:
        handle = await stale.submit(one)
        await tool.entered.wait()
        async with lab.open(one) as owner:
            look_dead(stale)
            theirs = owner.task(handle.id)
            await wait_state(theirs, TaskState.PARKED)
            gate.set()
            await wait_state(theirs, TaskState.SUCCEEDED)
            assert await theirs.result() == "sent after all"
            items = await owner.journal.inbox_of(handle.id)
            assert [item.body["source"] for item in items] == ["stale worker"]
    assert len(tool.calls) == 1


async def test_a_stale_transactional_success_is_no_evidence(lab: Lab) -> None:
    """Its effect would have been in the commit that was refused: it has not happened."""
    gate = asyncio.Event()
    create = ("CREATE TABLE IF NOT EXISTS seat (name TEXT)", ())
    insert = ("INSERT INTO seat VALUES ('1A')", ())
    apply = holdfast.Apply([create, insert], result="seated")
    tool = Scripted(holdfast.Transactional(), after(gate, apply), apply)
    one = one_step(tool)
    async with lab.open(one) as stale:
        handle = await stale.submit(one)
        await tool.entered.wait()
        async with lab.open(one) as owner:
            look_dead(stale)
            assert await owner.task(handle.id).result(10) == "seated"
            gate.set()
            await asyncio.sleep(0.1)
            assert await owner.journal.inbox_of(handle.id) == []
            found = await owner.journal.find_task(handle.id)
            assert found is not None
            assert found.state is TaskState.SUCCEEDED
    assert len(tool.calls) == 2


async def test_a_fact_dropped_at_the_moment_of_parking_is_not_slept_over(lab: Lab) -> None:
    """The owner had not read it when it said that it rests: it looks again at once."""
    tool = Scripted(ONCE, ConnectionError("reset"))
    one = one_step(tool)
    async with lab.open(one) as hf:
        original = hf.journal.append

        async def append(hold: Any, entries: Any, **more: Any) -> Any:
            change = more.get("change")
            if change is not None and change.state is TaskState.PARKED:
                item = InboxItem(
                    task_id=hold.task_id,
                    ordinal="1",
                    kind=InboxKind.EVIDENCE,
                    body={"outcome": "succeeded", "result": "just in time", "source": "webhook"},
                )
                hf.journal.append = original
                await hf.journal.drop(item)
            return await original(hold, entries, **more)

        hf.journal.append = append
        handle = await hf.submit(one)
        await wait_state(handle, TaskState.SUCCEEDED)
        assert await handle.result() == "just in time"


async def test_evidence_names_its_step_by_the_key_that_the_far_end_saw(lab: Lab) -> None:
    tool = Scripted(KEYED, hang)
    one = one_step(tool)
    async with lab.open(one, grace_s=0) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
        step = (await handle.view()).steps["1"]
        assert effect_key_from_bytes(step.effect_key) == tool.keys[0]
        assert await hf.journal.find_effect(step.effect_key) == (handle.id, "1")
