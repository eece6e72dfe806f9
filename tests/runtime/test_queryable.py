"""Queryable far ends: quiet first, then the question, then what it says."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd
from holdfast.journal.records import TaskState, TaskView
from holdfast.testing.lab import Lab, Scripted, wait_state

Get = Callable[..., Awaitable[FarEnd]]


async def play(lab: Lab, tool: Scripted, **args: Any) -> tuple[TaskState, TaskView]:
    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool, **args)

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        row = await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED)
        return row.state, await handle.view()


def mail(*acts: Any, finds: Any, delay_s: float = 0.0) -> Scripted:
    tool = Scripted(holdfast.Queryable(max_delay_s=delay_s), *acts, name="mail")
    return tool.finds(*(finds if isinstance(finds, tuple) else (finds,)))


async def test_it_is_asked_only_in_quiet(lab: Lab) -> None:
    """A request of our own that timed out may still land: the question waits for its time."""
    asked: list[float] = []

    async def answer(_call: holdfast.Call) -> Any:
        asked.append(time.monotonic())
        return holdfast.Found("there")

    tool = mail(ConnectionError("reset"), finds=answer, delay_s=20)
    sent = time.monotonic()
    state, _ = await play(lab, tool)
    assert state is TaskState.SUCCEEDED
    assert asked[0] - sent >= 20 * 0.02 * 0.95


async def test_found_is_adopted_with_its_result(lab: Lab) -> None:
    tool = mail(ConnectionError("reset"), finds=holdfast.Found({"id": "ml_1"}))
    state, view = await play(lab, tool)
    assert (state, view.outcome["result"]) == (TaskState.SUCCEEDED, {"id": "ml_1"})
    assert len(tool.calls) == 1


async def test_absent_is_sent_again_with_the_same_key(lab: Lab) -> None:
    tool = mail(ConnectionError("reset"), "sent", finds=holdfast.Absent())
    state, view = await play(lab, tool)
    assert (state, view.outcome["result"]) == (TaskState.SUCCEEDED, "sent")
    assert len(set(tool.keys)) == 1


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        (holdfast.Many(["a", "b"]), "more than once"),
        (holdfast.Unsure("index rebuilding"), "could not find out"),
        (ValueError("page changed"), "could not find out"),
        ("nonsense", "could not find out"),
        (holdfast.Found(b"raw"), "could not find out"),
        (holdfast.Found("other", args={"to": "you"}), "other arguments"),
    ],
    ids=["many", "unsure", "raises", "wrong type", "unkeepable", "other arguments"],
)
async def test_what_leaves_a_doubt_is_a_persons_matter(lab: Lab, answer: Any, question: str) -> None:
    tool = mail(ConnectionError("reset"), "again", finds=answer)
    state, view = await play(lab, tool, to="me")
    assert (state, len(tool.calls)) == (TaskState.PARKED, 1)
    assert question in view.steps["1"].question
    assert any("lookup" in one for one in view.steps["1"].evidence)


async def test_the_same_arguments_are_the_same_effect(lab: Lab) -> None:
    tool = mail(ConnectionError("reset"), finds=holdfast.Found("it", args={"to": "me"}))
    state, _ = await play(lab, tool, to="me")
    assert state is TaskState.SUCCEEDED


async def test_a_lookup_that_is_unsure_is_asked_again(lab: Lab) -> None:
    tool = mail(ConnectionError("reset"), finds=(holdfast.Unsure(), OSError("down"), holdfast.Found("it")))
    state, _ = await play(lab, tool)
    assert (state, len(tool.lookups)) == (TaskState.SUCCEEDED, 3)


async def test_evidence_beats_an_unsure_lookup(lab: Lab) -> None:
    tool = mail(ConnectionError("reset"), finds=holdfast.Unsure())

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one, pace=0.2) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
        while not tool.lookups:
            await hf.journal.wait_change(timeout_s=0.02)
        await hf.evidence(task_id=handle.id, ordinal="1", result="webhook")
        assert await handle.result(20) == "webhook"
        assert (await handle.view()).steps["1"].state is StepState.SUCCEEDED
    assert len(tool.calls) == 1


async def test_a_request_that_lands_late_is_found_and_not_repeated(lab: Lab, far_end: Get) -> None:
    """The far end's own books: a mail that the network kept for a while is one mail."""
    post = await far_end("mail")
    await post.faults(Fault(kind=FaultKind.LATE, seconds=0.2))

    @holdfast.tool(effect=holdfast.Queryable(max_delay_s=20), http_only=True)
    async def send(call: holdfast.Call, to: str) -> Any:
        body = {"to": to, "reference": f"{call.task_id}/{call.ordinal}"}
        return (await call.http.post(f"{post.url}/mails", json=body)).json()

    @send.find
    async def look(call: holdfast.Call, to: str) -> holdfast.Found | holdfast.Absent:
        url = f"{post.url}/mails?reference={call.task_id}/{call.ordinal}"
        found = (await call.http.get(url)).json()["mails"]
        return holdfast.Found(found[0]) if found else holdfast.Absent()

    @holdfast.task
    async def write(run: holdfast.Run) -> Any:
        return await run.call(send, to="me@example.org")

    async with lab.open(write) as hf:
        assert (await (await hf.submit(write)).result(20))["to"] == "me@example.org"
    assert look is not None
    page = await post.ledger()
    assert (page.count, page.duplicates) == (1, 0)
