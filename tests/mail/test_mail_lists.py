"""`holdfast mail inbox`, `outbox` and `dead` read the journal: tasks and steps, no table of their own."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from errno import EMFILE
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from intake_stage import ADA, KEYS, taking, until

import holdfast
from holdfast.app.mail import resend
from holdfast.app.mail.agent_post import AgentPost
from holdfast.app.mail.resend import Resender
from holdfast.cli.mail import mail
from holdfast.cli.main import main
from holdfast.core.ids import EffectKey, TaskId
from holdfast.core.mail import TTL_S, DeliveryNote, Letter, SentMail
from holdfast.core.waiting import running_beside
from holdfast.errors import JournalDamaged, MailRefused
from holdfast.host.log import Log
from holdfast.journal.contract import Filter, TaskRow
from holdfast.journal.records import TaskState, TaskView
from holdfast.layout.agent_home import AgentHome
from holdfast.relay.client.open_mail import AgentMail
from holdfast.testing.lab import Lab, wait_until
from holdfast.testing.mail import MemoryRelay, ScriptedPost
from holdfast.views.mail import DEAD_SENT, sent_lines


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


async def test_a_message_from_after_the_year_9999_hides_no_other(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Relays took such messages once, so they may be in the journal."""
    relay = MemoryRelay()
    async with lab.open(handle) as hf, taking(lab, hf, relay):
        relay.put(Letter(sender=ADA, key=KEYS[1], body="bad", at_ms=10**15))
        relay.put(Letter(sender=ADA, key=KEYS[2], body="good", at_ms=1_800_000_000_000))
        await until(lambda: relay.count("held") == 2)

        async def ended() -> bool:
            return len(await hf.journal.count_waiting()) == 0

        await wait_until(ended)
    got = (await shown(capsys, lab, "inbox"))["mail"]
    assert {one["body"]: one["sent_at"][:10] for one in got} == {"bad": "9999-12-31", "good": "2027-01-15"}
    assert [one["body"] for one in (await shown(capsys, lab, "dead"))["received"]] == ["bad"]


async def test_sent_messages_of_all_tasks_are_listed(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "PAGE", 2)
    post = ScriptedPost()
    post.acts.append(MailRefused("relay a: no such agent"))
    async with lab.open(greet, post=post) as hf:
        for number in range(5):
            await (await hf.submit(greet, to=ADA, body=number)).result(10)
    assert [one["body"] for one in (await shown(capsys, lab, "outbox"))["mail"]] == [4, 3, 2, 1, 0]
    assert [one["body"] for one in (await shown(capsys, lab, "dead"))["sent"]] == [0]


async def test_a_message_that_no_recipient_took_in_time_is_expired_and_a_person_is_told_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = ScriptedPost()
    async with lab.open(greet, post=post) as hf:
        task = await hf.submit(greet, to=ADA, body="unread")
        await task.result(10)
        now_ms = hf.journal.now_ms()
        view = await hf.journal.read_task(task.id)
        resender = Resender(journal=hf.journal, post=post, log=Log())
        told: list[int] = []
        for later_s in (TTL_S - 60, TTL_S + 60, TTL_S + 120):
            then_ms = now_ms + later_s * 1000
            monkeypatch.setattr(hf.journal, "now_ms", lambda then_ms=then_ms: then_ms)
            assert [one["state"] in DEAD_SENT for one in sent_lines(view, [], now_ms=then_ms)] == [later_s > TTL_S]
            await resender.look()
            found = await hf.journal.pending_notices(limit=10)
            told.append(sum(one.kind == "mail-expired" for one in found))
        (line,) = sent_lines(view, [], now_ms=then_ms)
    assert (line["state"], "7 days" in line["reason"], told) == ("expired", True, [0, 1, 1])


async def test_a_recipient_that_cannot_be_reached_delays_no_repeat_to_another(lab: Lab) -> None:
    sent: list[str] = []

    class Post(ScriptedPost):
        async def send(self, *, to: str, **more: Any) -> SentMail:
            sent.append(to)
            if to == "hf1away" and sent.count(to) > 2:
                await reached.wait()
            if to == ADA and sent.count(to) > 1:
                reached.set()
            return await super().send(to=to, **more)

    reached, post = asyncio.Event(), Post()
    async with lab.open(greet, post=post) as hf:
        for to in ("hf1away", ADA, "hf1away"):
            await (await hf.submit(greet, to=to, body="x")).result(10)
        resender = Resender(journal=hf.journal, post=post, log=Log(), first_s=0.0)
        async with asyncio.timeout(10):
            assert await resender.look() == 3


async def test_a_task_that_cannot_be_read_keeps_no_other_message_from_being_sent_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = ScriptedPost()
    async with lab.open(greet, post=post) as hf:
        tasks = [await hf.submit(greet, to=to, body="x") for to in (ADA, "hf1bob")]
        for task in tasks:
            await task.result(10)
        really = hf.journal.read_task

        async def read_task(task_id: TaskId) -> TaskView:
            if task_id == tasks[1].id:
                raise JournalDamaged("a record was changed")
            return await really(task_id)

        monkeypatch.setattr(hf.journal, "read_task", read_task)
        assert await Resender(journal=hf.journal, post=post, log=Log(), first_s=0.0).look() == 1


async def test_messages_of_older_tasks_are_sent_again_and_expire_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy agent has more tasks than one look lists; no look lists more than two pages."""
    post, count = ScriptedPost(), 11
    monkeypatch.setattr(resend, "TASKS_MAX", 3)
    monkeypatch.setattr(resend, "OLDER_MAX", 2)
    async with lab.open(greet, post=post) as hf:
        for number in range(count):
            await (await hf.submit(greet, to=f"hf1{number}", body="x")).result(10)
        really, listed = hf.journal.list_tasks, list[int]()

        async def list_tasks(filter: Filter) -> list[TaskRow]:
            rows = await really(filter)
            listed.append(len(rows))
            return rows

        monkeypatch.setattr(hf.journal, "list_tasks", list_tasks)
        resender = Resender(journal=hf.journal, post=post, log=Log(), first_s=0.0)
        sent: list[int] = []
        for _ in range(5):
            sent.append(await resender.look())
            assert sum(listed) <= 5
            listed.clear()
        assert sent == [5, 5, 5, 5, 3]
        assert len({one.to for one in post.tries[count:]}) == count
        then_ms = hf.journal.now_ms() + (TTL_S + 60) * 1000
        monkeypatch.setattr(hf.journal, "now_ms", lambda: then_ms)
        for _ in range(5):
            await resender.look()
        told = [one for one in await hf.journal.pending_notices(limit=100) if one.kind == "mail-expired"]
    assert len(told) == count


async def test_a_repeat_that_no_file_is_free_for_ends_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    class Post(ScriptedPost):
        async def send(self, *, to: str, **more: Any) -> SentMail:
            if looks and to == ADA:
                raise OSError(EMFILE, "Too many open files", "profile.json")
            return await super().send(to=to, **more)

    post, log = Post(), io.StringIO()
    async with lab.open(greet, post=post) as hf:
        for to in (ADA, "hf1bob"):
            await (await hf.submit(greet, to=to, body="x")).result(10)
        resender = Resender(journal=hf.journal, post=post, log=Log(log), first_s=0.0, look_s=0.01)
        really = hf.journal.list_tasks

        async def list_tasks(filter: Filter) -> list[TaskRow]:
            looks.append(1)
            if len(looks) == 1:
                raise OSError(EMFILE, "Too many open files", "journal.db")
            return await really(filter)

        monkeypatch.setattr(hf.journal, "list_tasks", list_tasks)
        async with running_beside(resender.run()):
            await until(lambda: len(post.tries) > 2)
    assert {one.to for one in post.tries[2:]} == {"hf1bob"}
    assert ("journal.db" in log.getvalue(), "profile.json" in log.getvalue()) == (True, True)


async def test_what_is_known_of_repeats_has_a_bound(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    post = ScriptedPost()
    monkeypatch.setattr(resend, "KEPT_MAX", 2)
    async with lab.open(greet, post=post) as hf:
        for number in range(4):
            await (await hf.submit(greet, to=f"hf1{number}", body="x")).result(10)
        resender = Resender(journal=hf.journal, post=post, log=Log(), first_s=0.0)
        await resender.look()
        assert len(resender._again) == 2
        then_ms = hf.journal.now_ms() + (TTL_S + 60) * 1000
        monkeypatch.setattr(hf.journal, "now_ms", lambda: then_ms)
        await resender.look()
        assert len(resender._told) == 2


async def test_a_repeat_goes_to_the_agent_that_the_first_one_went_to(lab: Lab) -> None:
    """A handle may be another agent's by then, or a relay may say so: that agent would read the message."""
    owner = "hf1bob"

    class Post(ScriptedPost):
        async def send(self, *, to: str, **more: Any) -> SentMail:
            sent = await super().send(to=to, **more)
            return msgspec.structs.replace(sent, to=owner if "@" in to else to)

    post = Post()
    async with lab.open(greet, post=post) as hf:
        await (await hf.submit(greet, to="bob@relay.example", body="for bob")).result(10)
        owner = "hf1mallory"
        assert await Resender(journal=hf.journal, post=post, log=Log(), first_s=0.0).look() == 1
        assert [one.to for one in post.tries] == ["bob@relay.example", "hf1bob"]


async def test_a_repeat_does_not_wait_for_messages_that_came_after_it(lab: Lab) -> None:
    scripted = ScriptedPost()
    post = AgentPost(cast("AgentHome", None))
    post._opened = cast("AgentMail", SimpleNamespace(post=scripted))
    for number in (1, 2, 1, 3):
        await post.send(to=ADA, body="x", key=EffectKey(KEYS[number]), thread="t")
    assert [one.after for one in scripted.tries] == [(), (KEYS[1],), (), (KEYS[2],)]


async def test_words_of_strangers_cannot_write_to_the_terminal(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    relay = MemoryRelay()
    async with lab.open(handle) as hf, taking(lab, hf, relay):
        relay.put(Letter(sender=ADA, key=EffectKey(KEYS[1]), thread="\x1b[2J", body="an \x1b[31manswer"))
        await until(lambda: relay.count("held") == 1)
    assert await asyncio.to_thread(main, ["mail", "inbox", "--journal", str(lab.journal)]) == 0
    assert "\x1b" not in capsys.readouterr().out
