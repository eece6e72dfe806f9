"""After a refusal: the same key where the far end forgets it, a slot of its own elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.ids import effect_key_from_bytes
from holdfast.core.step import StepState
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, wait_state

Get = Callable[..., Awaitable[FarEnd]]


def keyed(*, stored: bool) -> holdfast.Keyed:
    return holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=stored)


def charging(url: str, *, stored: bool, retries: int) -> holdfast.TaskType:
    @holdfast.tool(effect=keyed(stored=stored), retries=retries, http_only=True)
    async def charge(call: holdfast.Call, card: str, cents: int) -> Any:
        answer = await call.http.post(f"{url}/charges", json={"card": card, "cents": cents})
        return answer.json()

    @holdfast.task
    async def pay(run: holdfast.Run) -> Any:
        try:
            return await run.call(charge, card="tok_1", cents=700)
        except holdfast.Refused as error:
            return ["refused", error.proof]

    return pay


async def test_a_refusal_that_is_not_stored_is_tried_again_under_the_same_key(lab: Lab, far_end: Get) -> None:
    """A new key could be charged beside the old one after a restore (rule 6)."""
    payment = await far_end("payment", refusals_stored=False)
    await payment.faults(Fault(kind=FaultKind.REFUSE, status=402, n=2))
    pay = charging(payment.url, stored=False, retries=3)
    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        assert (await handle.result(20))["cents"] == 700
        steps = (await handle.view()).steps
        assert [(key, len(step.attempts)) for key, step in steps.items()] == [("1", 3)]
    page = await payment.ledger()
    assert (page.count, page.duplicates, len({seen.key for seen in page.requests})) == (1, 0, 1)
    assert [seen.outcome for seen in page.requests] == ["refused", "refused", "effect"]


async def test_a_stored_refusal_is_tried_again_in_a_slot_of_its_own(lab: Lab, far_end: Get) -> None:
    """The old key would only repeat the old answer."""
    payment = await far_end("payment")
    await payment.faults(Fault(kind=FaultKind.REFUSE, status=402, n=2))
    pay = charging(payment.url, stored=True, retries=3)
    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        assert (await handle.result(20))["cents"] == 700
        steps = (await handle.view()).steps
        assert [(key, step.state.value) for key, step in steps.items()] == [
            ("1", "failed"),
            ("1.r1", "failed"),
            ("1.r2", "succeeded"),
        ]
    page = await payment.ledger()
    sent = [(seen.step, seen.key) for seen in page.requests]
    assert sent == [(key, effect_key_from_bytes(step.effect_key)) for key, step in steps.items()]
    assert (page.count, page.duplicates) == (1, 0)


async def test_slots_are_replayed_and_not_opened_again(lab: Lab) -> None:
    tool = Scripted(keyed(stored=True), holdfast.Refused("no"), "paid", retries=2)
    found: list[Any] = []

    @holdfast.task
    async def pay(run: holdfast.Run) -> Any:
        found.append(await run.call(tool.tool))
        await run.approve("go on?")
        return found[-1]

    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(pay) as hf:
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == "paid"
        assert set((await hf.task(handle.id).view()).steps) == {"1", "1.r1"}
    assert found == ["paid", "paid"]
    assert [call.ordinal for call in tool.calls] == ["1", "1.r1"]


@pytest.mark.parametrize("stored", [True, False])
async def test_when_the_retries_are_spent_the_refusal_is_the_answer(lab: Lab, far_end: Get, stored: bool) -> None:
    payment = await far_end("payment", refusals_stored=stored)
    await payment.faults(Fault(kind=FaultKind.REFUSE, status=402, n=None))
    pay = charging(payment.url, stored=stored, retries=2)
    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        word, proof = await handle.result(20)
        assert (word, proof["status"]) == ("refused", 402)
    page = await payment.ledger()
    assert (page.count, len(page.requests)) == (0, 3)
    assert len({seen.key for seen in page.requests}) == (3 if stored else 1)


async def test_a_declined_card_is_refused_once_without_retries(lab: Lab, far_end: Get) -> None:
    payment = await far_end("payment")

    @holdfast.tool(effect=keyed(stored=True), http_only=True)
    async def charge(call: holdfast.Call, card: str) -> Any:
        body = {"card": card, "cents": 1}
        return (await call.http.post(f"{payment.url}/charges", json=body)).json()

    @holdfast.task
    async def pay(run: holdfast.Run) -> Any:
        try:
            await run.call(charge, card="tok_declined")
        except holdfast.Refused as error:
            return error.proof["status"]

    async with lab.open(pay) as hf:
        handle = await hf.submit(pay)
        assert await handle.result(10) == 402
        assert (await handle.view()).steps["1"].state is StepState.FAILED
    assert (await payment.ledger()).count == 0


async def test_a_refusal_while_an_older_copy_may_land_is_no_proof(lab: Lab, far_end: Get) -> None:
    """Sent, unanswered, late; the repeat is refused: only in quiet does a refusal close (T4)."""
    payment = await far_end("payment", refusals_stored=False)
    await payment.faults(Fault(kind=FaultKind.LATE, seconds=0.15, n=1), Fault(kind=FaultKind.REFUSE, n=1))
    pay = charging(payment.url, stored=False, retries=0)
    async with lab.open(pay, pace=0.05) as hf:
        handle = await hf.submit(pay)
        assert (await handle.result(20))["cents"] == 700
        step = (await handle.view()).steps["1"]
        assert (step.state, len(step.attempts)) == (StepState.SUCCEEDED, 3)
    page = await payment.ledger()
    assert (page.count, page.duplicates) == (1, 0)


async def test_failed_reads_are_tried_again_as_often_as_asked(lab: Lab) -> None:
    """More retries than attempts: no person is asked about a page that cannot be read."""
    look = Scripted(holdfast.Read(), ValueError("no"), retries=7)

    @holdfast.task
    async def read(run: holdfast.Run) -> Any:
        try:
            await run.call(look.tool)
        except holdfast.ToolFailed as error:
            return error.kind

    async with lab.open(read, pace=0.001) as hf:
        assert await (await hf.submit(read)).result(10) == "ValueError"
    assert look.attempts == list(range(1, 9))
