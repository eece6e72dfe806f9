"""`run.send` is a Keyed step: one message for each effect key, whatever happens in between."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast.cli.mail import send
from holdfast.core.mail import BODY_BYTES_MAX
from holdfast.core.step import StepState
from holdfast.errors import MailKeyReused, MailRefused, MailUnconfirmed, MailUnsent, Refused, TaskFailed, ToolFailed
from holdfast.journal.records import TaskState
from holdfast.runtime.tool import mail_tool
from holdfast.testing.lab import Lab, wait_state, wait_step
from holdfast.testing.mail import ScriptedPost

BOB = "hf1bob"


@holdfast.task
async def greet(run: holdfast.Run, body: Any = "hello") -> Any:
    return await run.send(BOB, body, thread="t1")


async def test_a_message_is_sent_under_the_effect_key_of_its_step(lab: Lab) -> None:
    post = ScriptedPost()
    async with lab.open(greet, post=post) as hf:
        handle = await hf.submit(greet, body={"n": 1})
        result = await handle.result(10)
        step = (await handle.view()).steps["1"]
    (sent,) = post.sent.values()
    assert (sent.to, sent.body, sent.thread) == (BOB, {"n": 1}, "t1")
    assert (step.tool, step.letter) == ("send_mail", "K")
    assert result == {"to": BOB, "key": sent.key, "relays": list(result["relays"]), "stored": []}


@pytest.mark.parametrize("act", [MailUnsent("no relay"), MailUnconfirmed("one of two"), OSError("reset")])
async def test_what_is_not_confirmed_is_sent_again_under_the_same_key(lab: Lab, act: Exception) -> None:
    post = ScriptedPost(act, act)
    async with lab.open(greet, post=post) as hf:
        await (await hf.submit(greet)).result(10)
    assert len(post.tries) == 3
    assert len({one.key for one in post.tries}) == 1
    assert len(post.sent) == 1


async def test_a_wait_that_ends_too_early_says_what_went_wrong_so_far(lab: Lab) -> None:
    post = ScriptedPost(*(MailUnsent("bob: nothing listens") for _ in range(30)))
    told = ""
    async with lab.open(greet, post=post) as hf:
        handle = await hf.submit(greet)
        for _ in range(1_000):
            if told := await send._last_trouble(hf, handle):
                break
            await asyncio.sleep(0.01)
    assert told.startswith("; so far: ")
    assert "bob: nothing listens" in told


async def test_a_message_waits_while_no_relay_answers_and_is_not_parked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tries than those of another tool: the mail waits for its relays, not for a person."""
    monkeypatch.setattr(mail_tool, "AGAIN_S_MAX", 1.0)
    post = ScriptedPost(*(MailUnsent("no relay") for _ in range(30)))
    async with lab.open(greet, post=post, pace=0.001) as hf:
        await (await hf.submit(greet)).result(20)
    assert len(post.tries) == 31


async def test_messages_of_a_thread_name_those_before_them_in_their_plan(lab: Lab) -> None:
    """Also where the process ends between two of them, and where a refused one is between: it never arrives."""
    away = asyncio.Event()

    async def hang() -> None:
        away.set()
        await asyncio.Event().wait()

    @holdfast.task
    async def writes(run: holdfast.Run) -> None:
        await run.send(BOB, 1, thread="a")
        await run.send(BOB, 2, thread="b")
        with suppress(Refused):
            await run.send(BOB, "refused", thread="a")
        await run.send(BOB, 3, thread="a")
        await run.send("hf1eve", 4, thread="a")
        await run.send(BOB, 5, thread="a")
        await run.send(BOB, 6)

    async def nothing() -> None: ...

    post = ScriptedPost(nothing, nothing, MailRefused("no"), hang)
    async with lab.open(writes, post=post, grace_s=0) as hf:
        handle = await hf.submit(writes)
        await away.wait()
    async with lab.open(writes, post=post) as hf:
        await hf.task(handle.id).result(10)
    found = {one.body: one for one in post.sent.values()}
    assert {body: one.number for body, one in found.items()} == {1: 1, 2: 1, 3: 2, 4: 1, 5: 3, 6: 0}
    assert (found[3].after, found[5].after) == ((found[1].key,), (found[3].key, found[1].key))
    assert not any(found[body].after for body in (1, 2, 4, 6))
    assert {one.after for one in post.tries if one.body == 3} == {(found[1].key,)}, "every try says the same"


async def test_other_words_under_the_key_park_the_step(lab: Lab) -> None:
    post = ScriptedPost(MailKeyReused("relay a: it has other words"))
    async with lab.open(greet, post=post) as hf:
        handle = await hf.submit(greet)
        await wait_step(handle, "1", StepState.PARKED)
        assert "with another body" in (await handle.view()).steps["1"].question
    assert len(post.tries) == 1


async def test_a_refusal_by_every_relay_fails_the_step_with_the_reasons(lab: Lab) -> None:
    post = ScriptedPost(MailRefused("relay a: no such agent"))

    @holdfast.task
    async def asks(run: holdfast.Run) -> Any:
        try:
            await run.send(BOB, "hello")
        except Refused as error:
            return error.proof

    async with lab.open(asks, post=post) as hf:
        said = await (await hf.submit(asks)).result(10)
    assert said == {"reason": "mail-refused", "text": "relay a: no such agent"}
    assert len(post.tries) == 1


async def test_a_call_that_was_cut_off_is_sent_again_and_is_one_message(lab: Lab) -> None:
    """The process ended between the send and the answer."""
    away = asyncio.Event()

    async def hang() -> None:
        away.set()
        await asyncio.Event().wait()

    post = ScriptedPost(hang)
    async with lab.open(greet, post=post, grace_s=0) as hf:
        handle = await hf.submit(greet)
        await away.wait()
    async with lab.open(greet, post=post) as hf:
        await hf.task(handle.id).result(10)
    assert len(post.tries) == 2
    assert len(post.sent) == 1


async def test_values_that_cannot_be_sent_are_refused_before_a_byte_leaves(lab: Lab) -> None:
    post = ScriptedPost()

    @holdfast.task
    async def asks(run: holdfast.Run, to: str, size: int) -> Any:
        try:
            await run.send(to, "x" * size)
        except ToolFailed as error:
            return error.kind

    async with lab.open(asks, post=post) as hf:
        assert await (await hf.submit(asks, to=BOB, size=BODY_BYTES_MAX)).result(10) == "TooLarge"
        assert await (await hf.submit(asks, to="", size=1)).result(10) == "BadInput"
    assert post.tries == []


async def test_without_relays_the_step_fails_and_says_what_to_do(lab: Lab) -> None:
    async with lab.open(greet) as hf:
        with pytest.raises(TaskFailed, match="agent with relays"):
            await (await hf.submit(greet)).result(10)


async def test_a_cancel_ends_a_message_that_has_not_left(lab: Lab) -> None:
    post = ScriptedPost(*(MailUnsent("no relay") for _ in range(1000)))
    async with lab.open(greet, post=post) as hf:
        handle = await hf.submit(greet)
        await wait_step(handle, "1", StepState.PLANNED)
        await handle.cancel()
        await wait_state(handle, TaskState.CANCELLED)
    assert post.sent == {}


async def test_a_cancel_counts_while_the_recipient_is_asked(lab: Lab) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedPost):
        async def echo_of(self, to: str) -> str:
            asked.set()
            await go.wait()
            return ""

    post = Slow()
    async with lab.open(greet, post=post) as hf:
        handle = await hf.submit(greet)
        await asked.wait()
        await handle.cancel()
        await asyncio.sleep(0.3)
        go.set()
        await wait_state(handle, TaskState.CANCELLED)
    assert post.tries == []


async def test_a_gate_judges_mail_like_every_other_tool(lab: Lab) -> None:
    """Before anyone is asked about the recipient: its address may name relays of a stranger."""

    class Unasked(ScriptedPost):
        async def echo_of(self, to: str) -> str:
            raise AssertionError(to)

    post = Unasked()

    @holdfast.task(gate=holdfast.Gate(allow=[]))
    async def asks(run: holdfast.Run) -> Any:
        try:
            await run.send(BOB, "hello")
        except holdfast.GateRefused as error:
            return error.rule

    async with lab.open(asks, post=post) as hf:
        assert await (await hf.submit(asks)).result(10) == "allow"
    assert post.tries == []
