"""`holdfast mail inbox`, `outbox` and `dead` read the journal: tasks and steps, no table of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from intake_stage import ADA, KEYS, taking, until

import holdfast
from holdfast.cli.main import main
from holdfast.core.ids import EffectKey
from holdfast.core.mail import DeliveryNote, Letter
from holdfast.errors import MailRefused
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, wait_until
from holdfast.testing.mail import MemoryRelay, ScriptedPost


@holdfast.on_mail
async def handle(run: holdfast.Run, letter: holdfast.Letter) -> None:
    if letter.body == "bad":
        raise ValueError("cannot handle this")


@holdfast.task
async def greet(run: holdfast.Run, to: str, body: Any) -> Any:
    try:
        return await run.send(to, body, thread="t1")
    except holdfast.Refused:
        return None


async def shown(capsys: pytest.CaptureFixture[str], lab: Lab, *words: str) -> Any:
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["mail", *words, "--journal", str(lab.journal), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


async def test_sent_and_received_mail_is_listed_with_what_became_of_it(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    relay, post = MemoryRelay(), ScriptedPost()
    async with lab.open(greet, handle, post=post) as hf, taking(lab, hf, relay, post=post):
        first = await hf.submit(greet, to=ADA, body="delivered")
        await first.result(10)
        relay.put(DeliveryNote(sender=ADA, keys=(post.tries[0].key,), proof="signed"))
        await (await hf.submit(greet, to=ADA, body={"n": 1})).result(10)
        post.acts.append(MailRefused("relay a: no such agent"))
        await (await hf.submit(greet, to="hf1none", body="x")).result(10)
        relay.put(Letter(sender=ADA, key=KEYS[1], thread="t1", body="an \x1b[31manswer"))
        relay.put(Letter(sender=ADA, key=KEYS[2], body="bad"))
        relay.put("no mail key here opens it")
        relay.put("no mail key here opens it")
        await until(lambda: relay.count("held") == 5)

        async def ended() -> bool:
            return len(await hf.journal.count_waiting()) == 0

        await wait_until(ended)
    sent = (await shown(capsys, lab, "outbox"))["mail"]
    assert [one["state"] for one in sent] == ["refused", "sent", "delivered"]
    assert (sent[2]["note"], sent[2]["key"], len(sent[1]["relays"])) == ("signed", post.tries[0].key, 2)
    got = (await shown(capsys, lab, "inbox"))["mail"]
    assert {one["body"]: one["state"] for one in got} == {"an \x1b[31manswer": "succeeded", "bad": "failed"}
    dead = await shown(capsys, lab, "dead")
    assert [one["to"] for one in dead["sent"]] == ["hf1none"]
    assert "no such agent" in dead["sent"][0]["reason"]
    assert [one["body"] for one in dead["received"]] == ["bad"]
    assert [one["reason"] for one in dead["unreadable"]] == ["no mail key here opens it"] * 2
    assert {one["envelope"] for one in dead["unreadable"]} == {"env-4", "env-5"}
    async with lab.open(serve=False) as hf:
        row = await hf.journal.find_task(dead["unreadable"][0]["task_id"])
        assert row is not None
        assert row.state is TaskState.FAILED


async def test_words_of_strangers_cannot_write_to_the_terminal(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    relay = MemoryRelay()
    async with lab.open(handle) as hf, taking(lab, hf, relay):
        relay.put(Letter(sender=ADA, key=EffectKey(KEYS[1]), thread="\x1b[2J", body="an \x1b[31manswer"))
        await until(lambda: relay.count("held") == 1)
    assert await asyncio.to_thread(main, ["mail", "inbox", "--journal", str(lab.journal)]) == 0
    assert "\x1b" not in capsys.readouterr().out
