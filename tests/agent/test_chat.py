"""A durable conversation: every message once, answers in order, through stops and deaths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import holdfast
from holdfast.errors import (
    BadInput,
    Misuse,
    Suspended,
    TaskCancelled,
    TaskFailed,
    TaskUnfinished,
)
from holdfast.journal.records import TaskState
from holdfast.runtime.agent_loop import Loop
from holdfast.runtime.asked import asks_of, request_of
from holdfast.runtime.away import OPENING
from holdfast.testing.lab import Lab, look_dead, wait_state
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind

MakeAgent = Callable[..., holdfast.Agent]
SeenNow = Callable[[], Awaitable[tuple[Seen, ...]]]


async def test_messages_are_answered_in_order(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent()) as hf:
        chat = ada.chat("ada-7")
        assert str(await chat.say("hello", message_id="m1", timeout_s=20)) == "Hello!"
        sent = [await chat.send(f"number {n}", message_id=f"n{n}") for n in range(5)]
        for one in sent:
            assert (await chat.wait(one, timeout_s=20)).text == "Noted."
        assert [one.message_id for one in await chat.answers()] == ["m1", *sent]
        view = await hf.task(await chat.task_id()).view()
    messages = request_of(view, asks_of(view)[-1].ordinal).messages
    assert len(messages) == 1 + 6 * 2 - 1  # the system, and all but the last answer


async def test_a_message_id_is_a_message(lab: Lab, agent: MakeAgent, seen: SeenNow) -> None:
    async with lab.open(ada := agent()):
        chat = ada.chat("ada-7")
        for _ in range(3):
            assert (await chat.say("hello", message_id="m1", timeout_s=20)).text == "Hello!"
        assert (await chat.say("once more please", timeout_s=20)).text == "Once more."
        assert len(await chat.answers()) == 2
    assert len(await seen()) == 2


async def test_it_goes_on_in_another_process_and_after_a_rest(
    lab: Lab, agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.agent_loop.IDLE_S", 0.01)
    async with lab.open(ada := agent()) as hf:
        chat = ada.chat("ada-7")
        await chat.say("hello", timeout_s=20)
        await wait_state(hf.task(await chat.task_id()), TaskState.WAITING)
        await chat.say("who am I", timeout_s=20)
    async with lab.open(other := agent()) as hf:
        chat = other.chat("ada-7")
        assert (await chat.say("once more please", timeout_s=20)).text == "Once more."
        view = await hf.task(await chat.task_id()).view()
    messages = request_of(view, asks_of(view)[-1].ordinal).messages
    roles = [message["role"] for message in messages]
    assert roles == ["system", *["user", "assistant"] * 2, "user"]


async def test_a_death_inside_an_answer_loses_and_repeats_nothing(
    lab: Lab, agent: MakeAgent, server: ModelServer
) -> None:
    await server.faults(Fault(kind=FaultKind.HOLD, last="who am I"))
    async with lab.open(ada := agent(), concurrency=1) as first:
        chat = ada.chat("ada-7")
        await chat.say("hello", timeout_s=20)
        before = len(await server.requests())
        await chat.send("who am I", message_id="m2")
        await chat.send("once more please", message_id="m3")
        await server.wait_requests(before + 1)
        look_dead(first)
        async with lab.open(other := agent()) as hf:
            chat = other.chat("ada-7")
            assert (await chat.wait("m2", timeout_s=20)).text == "You are Ada."
            assert (await chat.wait("m3", timeout_s=20)).text == "Once more."
            assert [one.message_id for one in await chat.answers()][1:] == ["m2", "m3"]
            view = await hf.task(await chat.task_id()).view()
            told = str(request_of(view, asks_of(view)[-1].ordinal).messages)
            assert told.count(OPENING) == 1
        await server.release()


async def test_a_refusal_is_an_answer_and_the_conversation_goes_on(
    lab: Lab, agent: MakeAgent
) -> None:
    async with lab.open(ada := agent()):
        chat = ada.chat("ada-7")
        answer = await chat.say("against the rules", timeout_s=20)
        assert (answer.refused, answer.text) == (True, "I will not do that.")
        assert (await chat.say("hello", timeout_s=20)).text == "Hello!"


async def test_it_ends_when_it_is_told_to(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent()) as hf:
        chat = ada.chat("ada-7")
        await chat.say("hello", timeout_s=20)
        await chat.end()
        assert await hf.task(await chat.task_id()).result(20) == {"answered": 1}
        with pytest.raises(TaskFailed, match="has ended"):
            await chat.wait("never", timeout_s=5)
        with pytest.raises(BadInput, match="'ada-7' has ended"):
            await chat.send("too late")


async def test_a_cancelled_conversation_says_so(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent()) as hf:
        chat = ada.chat("ada-7")
        await chat.say("hello", timeout_s=20)
        await hf.cancel(await chat.task_id())
        with pytest.raises(TaskCancelled):
            await chat.wait("never", timeout_s=20)


async def test_what_is_no_message_is_refused(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent()):
        with pytest.raises(Misuse, match="1 to 200 printable"):
            ada.chat("")
        with pytest.raises(BadInput, match="a message has 1 to"):
            await ada.chat("a").send("  ")
        with pytest.raises(TaskUnfinished):
            await ada.chat("a").wait("nobody said that", timeout_s=0.05)


async def test_turns_are_counted_for_each_message(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent(max_turns=1)):
        chat = ada.chat("ada-7")
        for _ in range(3):
            assert (await chat.say("hello", timeout_s=20)).text == "Hello!"


async def test_a_message_that_was_taken_and_not_yet_asked_about_is_answered_itself(
    lab: Lab, agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends between the commit that takes the message and the one that asks."""
    ada = agent()
    async with lab.open(ada) as hf:
        chat = ada.chat("ada-7")
        await chat.say("hello", timeout_s=20)

        def parks(_loop: Loop) -> None:
            raise Suspended("a test stops it here")

        with monkeypatch.context() as patched:
            patched.setattr(Loop, "_check_turns", parks)
            await chat.send("who am I", message_id="m2")
            await wait_state(hf.task(await chat.task_id()), TaskState.PARKED)
        await hf.retry(await chat.task_id())
        assert (await chat.wait("m2", timeout_s=20)).text == "You are Ada."
        assert len(await chat.answers()) == 2
