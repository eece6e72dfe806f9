"""A durable conversation: every message once, answers in order, through stops and deaths."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.rest import NeedsPerson, Suspended
from holdfast.errors import (
    BadInput,
    MessageConflict,
    Misuse,
    SecretInInput,
    TaskCancelled,
    TaskFailed,
    TaskParked,
    TaskUnfinished,
)
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.records import TaskState
from holdfast.runtime.agent.calls import OPENING
from holdfast.runtime.agent.loop import Loop
from holdfast.runtime.task.talk import asks_of
from holdfast.testing.lab import Lab, look_dead, wait_state
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind
from holdfast_proofs.support.talks import request_of

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


async def test_idle_conversations_are_told_apart_in_the_list(
    lab: Lab, agent: MakeAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    async with lab.open(ada := agent()) as hf:
        for name in ("monday", "tuesday"):
            chat = ada.chat(name)
            await chat.say("hello", timeout_s=20)
            await wait_state(hf.task(await chat.task_id()), TaskState.WAITING)
    assert await asyncio.to_thread(main, ["task", "list", "--journal", str(lab.journal)]) == 0
    said = capsys.readouterr().out
    for name in ("monday", "tuesday"):
        assert re.search(rf"\({name}\) +waiting ", said)


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
    monkeypatch.setattr("holdfast.runtime.agent.loop.IDLE_S", 0.01)
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


async def test_a_refusal_is_an_answer_and_the_conversation_goes_on(lab: Lab, agent: MakeAgent) -> None:
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
        with pytest.raises(BadInput, match="a message must have 1 to"):
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
            raise Suspended(NeedsPerson("a test stops it here"))

        with monkeypatch.context() as patched:
            patched.setattr(Loop, "_check_turns", parks)
            await chat.send("who am I", message_id="m2")
            await wait_state(hf.task(await chat.task_id()), TaskState.PARKED)
        await hf.retry(await chat.task_id())
        assert (await chat.wait("m2", timeout_s=20)).text == "You are Ada."
        assert len(await chat.answers()) == 2


async def test_another_text_under_the_same_id_is_refused(lab: Lab, agent: MakeAgent, server: ModelServer) -> None:
    """While the first one waits, and when it is answered."""
    await server.faults(Fault(kind=FaultKind.HOLD, last="hello"))
    before = len(await server.requests())
    async with lab.open(ada := agent()):
        chat = ada.chat("ada-7")
        await chat.send("hello", message_id="m1")
        await server.wait_requests(before + 1)
        await chat.send("who am I", message_id="m2")
        with pytest.raises(MessageConflict, match="'m2' of the conversation 'ada-7'"):
            await chat.send("once more please", message_id="m2")
        await server.release()
        assert (await chat.wait("m2", timeout_s=20)).text == "You are Ada."
        with pytest.raises(MessageConflict):
            await chat.say("once more please", message_id="m1", timeout_s=5)
        assert (await chat.say("hello", message_id="m1", timeout_s=20)).text == "Hello!"
        assert len(await chat.answers()) == 2


async def test_of_two_texts_at_once_under_one_id_one_is_refused(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent()):
        chats = [ada.chat("ada-7") for _ in range(2)]
        sent = [chat.send(text, message_id="m1") for chat, text in zip(chats, ("hello", "who am I"), strict=True)]
        done = await asyncio.gather(*sent, return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["MessageConflict", "str"]
        await chats[0].wait("m1", timeout_s=20)
        assert len(await chats[0].answers()) == 1


async def test_a_message_id_with_a_secret_is_refused(lab: Lab, agent: MakeAgent) -> None:
    entropy = SystemEntropy()
    keys = load_or_create(lab.folder / "keys.json", journal_exists=False, entropy=entropy)
    store = SecretFile(lab.folder, keys=keys, clock=SystemClock(), entropy=entropy)
    store.set("token", "tok-CANARYCANARY42")
    async with lab.open(ada := agent()):
        chat = ada.chat("ada-7")
        with pytest.raises(SecretInInput, match="the message id would hold the value of"):
            await chat.send("hello", message_id="m-tok-CANARYCANARY42")
        # The text may hold it: a handle goes in its place, and the repeat is the same message.
        for _ in range(2):
            said = await chat.say("hello tok-CANARYCANARY42", message_id="m1", timeout_s=20)
            assert said.text == "Hello!"


async def test_a_message_to_a_parked_conversation_waits_and_none_is_sent_to_one_that_is_to_end(
    lab: Lab, agent: MakeAgent
) -> None:
    async with lab.open(ada := agent()) as hf:
        chat = ada.chat("ada-7")
        assert (await chat.say("hello", message_id="m1", timeout_s=20)).text == "Hello!"
        with pytest.raises(TaskParked, match="reply-garbled"):
            await chat.say("say nothing", message_id="m2", timeout_s=20)
        assert await chat.send("who am I", message_id="m3") == "m3"
        assert (await chat.say("hello", message_id="m1", timeout_s=20)).text == "Hello!"
        waiting = [item.body.get("id") for item in await hf.journal.inbox_of(await chat.task_id())]
        assert waiting[-1] == "m3"
        other = ada.chat("ada-8")
        await other.send("hello")
        await other.end()
        with pytest.raises(BadInput, match="'ada-8' has ended"):
            await other.send("who am I")
