"""A person's yes or no: waited for, bound to what was asked, answered once."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import ApprovalNotFound, StepSkipped, TaskNotFound
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, wait_state, wait_step, wait_until

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


@holdfast.task
async def ask(run: holdfast.Run) -> Any:
    answer = await run.approve("pay 12 EUR?", card="tok_1", cents=1200)
    return [bool(answer), answer.granted, answer.by, answer.note]


@pytest.mark.parametrize("granted", [True, False])
async def test_the_code_gets_the_answer(lab: Lab, granted: bool) -> None:
    async with lab.open(ask) as hf:
        handle = await hf.submit(ask)
        await wait_state(handle, TaskState.WAITING)
        note = (await handle.view()).notes["1"]
        assert (note.body["question"], note.body["details"]) == ("pay 12 EUR?", {"card": "tok_1", "cents": 1200})
        await hf.approve(handle.id, "1", granted=granted, by="ada", note="why not")
        assert await handle.result(10) == [granted, granted, "ada", "why not"]


async def test_an_answer_waits_for_the_next_worker(lab: Lab) -> None:
    """Given while nobody serves the task; the answer outlives every process."""
    async with lab.open(ask) as hf:
        handle = await hf.submit(ask)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(serve=False) as hf:
        await hf.approve(handle.id, "1", granted=True)
    async with lab.open(ask) as hf:
        assert (await hf.task(handle.id).result(10))[0] is True


async def test_an_answer_while_the_task_runs_beside_its_question_counts(lab: Lab) -> None:
    """The question is on record while another branch still works: it may be answered at once."""
    gate = asyncio.Event()
    slow = Scripted(KEYED, after(gate, "slow"))

    async def asks(run: holdfast.Run) -> bool:
        return bool(await run.approve("go?"))

    @holdfast.task
    async def fan(run: holdfast.Run) -> Any:
        return await run.gather(asks, run.call(slow.tool))

    async with lab.open(fan) as hf:
        handle = await hf.submit(fan)
        await slow.entered.wait()
        await wait_until(lambda: asked(handle, "1.1.1"))
        assert await handle.state() is TaskState.RUNNING
        await hf.approve(handle.id, "1.1.1", granted=True)
        gate.set()
        assert await handle.result(10) == [True, "slow"]


async def asked(handle: holdfast.TaskHandle, ordinal: str) -> bool:
    return ordinal in (await handle.view()).notes


@pytest.mark.parametrize("first", [True, False])
async def test_the_first_answer_counts_and_every_later_one_is_refused(lab: Lab, first: bool) -> None:
    """Also while no worker has looked yet, also the same answer again, for a question and for a guarded call."""
    order, tool = guarded("paid")
    async with lab.open(ask, order) as hf:
        handles = [await hf.submit(one) for one in (ask, order)]
        for handle in handles:
            await wait_state(handle, TaskState.WAITING)
    async with lab.open(serve=False) as hf:
        for handle in handles:
            await hf.approve(handle.id, "1", granted=first, by="ada")
            for granted in (True, False):
                with pytest.raises(ApprovalNotFound, match=r"already answered: .* by ada"):
                    await hf.approve(handle.id, "1", granted=granted, by="bob")
    async with lab.open(ask, order) as hf:
        assert await hf.task(handles[0].id).result(10) == [first, first, "ada", ""]
        assert await hf.task(handles[1].id).result(10) == ("paid" if first else ["skipped", "refused"])
        with pytest.raises(ApprovalNotFound, match="does not wait"):
            await hf.approve(handles[0].id, "1", granted=True)
    assert len(tool.calls) == int(first)


async def test_an_answer_that_comes_first_is_seen_in_the_commit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people look at the same moment and find no answer; one is recorded, the other refused."""
    async with lab.open(ask) as hf:
        handle = await hf.submit(ask)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(serve=False) as hf, lab.open(serve=False) as late:
        monkeypatch.setattr(late.journal, "inbox_of", AsyncMock(return_value=[]))
        await hf.approve(handle.id, "1", granted=False, by="ada")
        with pytest.raises(ApprovalNotFound, match="already answered: refused by ada"):
            await late.approve(handle.id, "1", granted=True, by="bob")
        assert len(await hf.journal.inbox_of(handle.id)) == 1


async def test_an_answer_to_what_is_asked_no_longer_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be bound to the old question, and never count."""
    async with lab.open(ask) as hf:
        handle = await hf.submit(ask)
        await wait_state(handle, TaskState.WAITING)
        monkeypatch.setattr("holdfast.app.holdfast.asked_approval", Mock(side_effect=("pay 1", "pay 2")))
        with pytest.raises(ApprovalNotFound, match="asks something else by now: look once more"):
            await hf.approve(handle.id, "1", granted=True)
        assert await hf.journal.inbox_of(handle.id) == []


async def test_an_older_journal_with_two_answers_takes_the_newest(lab: Lab) -> None:
    """Older versions recorded both and told people that the newest counts."""
    async with lab.open(ask) as hf:
        handle = await hf.submit(ask)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(serve=False) as hf:
        for granted, by in ((True, "ada"), (False, "bob")):
            body = {"granted": granted, "by": by, "note": ""}
            await hf.drop(InboxItem(task_id=handle.id, ordinal="1", kind=InboxKind.APPROVAL, body=body))
    async with lab.open(ask) as hf:
        assert await hf.task(handle.id).result(10) == [False, False, "bob", ""]


async def test_what_does_not_wait_cannot_be_answered(lab: Lab) -> None:
    tool = Scripted(KEYED, "paid")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        run.now()
        await run.call(tool.tool)
        await run.approve("go?")

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        for ordinal in ("1", "2", "4"):
            with pytest.raises(ApprovalNotFound):
                await hf.approve(handle.id, ordinal, granted=True)
        with pytest.raises(TaskNotFound):
            await hf.approve("7" + "Z" * 25, "1", granted=True)


def guarded(*acts: Any, **options: Any) -> tuple[holdfast.TaskType, Scripted]:
    tool = Scripted(options.pop("effect", KEYED), *acts, needs_approval=True, name="pay", **options)

    @holdfast.task(name="order")
    async def order(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool.tool, cents=5)
        except StepSkipped as error:
            return ["skipped", error.note]

    return order, tool


async def test_a_guarded_call_is_sent_only_after_a_yes(lab: Lab) -> None:
    order, tool = guarded("paid")
    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        assert (await handle.view()).steps["1"].state is StepState.PLANNED
        assert tool.calls == []
        await hf.approve(handle.id, "1", granted=True, by="ada")
        assert await handle.result(10) == "paid"
    assert len(tool.calls) == 1


async def test_a_no_skips_the_call(lab: Lab) -> None:
    order, tool = guarded("paid")
    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        await hf.approve(handle.id, "1", granted=False, by="ada", note="too dear")
        assert await handle.result(10) == ["skipped", "too dear"]
        assert (await handle.view()).steps["1"].state is StepState.SKIPPED
    assert tool.calls == []


async def test_a_yes_counts_for_the_repeats_of_the_same_call(lab: Lab) -> None:
    """Busy, not sent, no answer: the call is the same, and nobody is asked again."""
    order, tool = guarded(holdfast.Busy(0.01), holdfast.NotSent(), ConnectionError("reset"), "paid")
    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        await hf.approve(handle.id, "1", granted=True)
        assert await handle.result(10) == "paid"
    assert tool.attempts == [1, 2, 3, 4]


async def test_each_guarded_call_asks_for_itself(lab: Lab) -> None:
    """A yes is bound to its arguments and key: the next call of the tool is another question."""
    tool = Scripted(KEYED, "paid", needs_approval=True, name="pay")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return [await run.call(tool.tool, cents=5) for _ in range(2)]

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        for ordinal in ("1", "2"):
            await wait_step(handle, ordinal, StepState.PLANNED)
            await wait_state(handle, TaskState.WAITING)
            await hf.approve(handle.id, ordinal, granted=True)
        assert await handle.result(10) == ["paid", "paid"]


async def test_guarded_branches_are_asked_at_once_and_answered_one_by_one(lab: Lab) -> None:
    tool = Scripted(KEYED, "paid", needs_approval=True, name="pay")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.gather(*(run.call(tool.tool, cents=n) for n in range(3)))

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        (notice,) = await hf.journal.pending_notices(limit=10)
        assert "1.1.1, 1.2.1, 1.3.1" in notice.text
        for ordinal in ("1.2.1", "1.3.1", "1.1.1"):
            await hf.approve(handle.id, ordinal, granted=True)
            await wait_step(handle, ordinal, StepState.SUCCEEDED)
        assert await handle.result(10) == ["paid"] * 3
    assert sorted(call.args["cents"] for call in tool.calls) == [0, 1, 2]
