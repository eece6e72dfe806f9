"""Taking mail in: each (sender, key) is handled once, and nothing is acknowledged before it is committed."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from intake_stage import ADA, KEYS, taking, until

import holdfast
from holdfast.app.mail import intake as intake_module
from holdfast.app.mail.mail_room import find_fill, find_mail_trouble, keep_fill, keep_mail_trouble
from holdfast.core.ids import EffectKey, effect_key_bytes
from holdfast.core.mail import Delivery, DeliveryNote, Letter
from holdfast.core.step import StepState
from holdfast.core.values import INT_MAX
from holdfast.errors import JournalBusy, MailUnconfirmed
from holdfast.host.log import Log
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter, Submission, Submitted
from holdfast.journal.records import TaskState
from holdfast.layout.journal_location import journal_address
from holdfast.runtime.task.mail_task import DEAD_NAME, MAIL_NAME, note_of
from holdfast.testing.lab import Lab, wait_state, wait_step
from holdfast.testing.mail import MemoryMailbox, MemoryRelay, ScriptedPost


def letter(number: int = 0, body: Any = "hello", after: tuple[int, ...] = ()) -> Letter:
    return Letter(sender=ADA, key=KEYS[number], thread="t", body=body, after=tuple(KEYS[one] for one in after))


class Handled:
    """The handler of the tests, and what it saw."""

    def __init__(self) -> None:
        self.seen: list[Letter] = []

        @holdfast.on_mail
        async def handle(run: holdfast.Run, letter: holdfast.Letter) -> Any:
            self.seen.append(letter)
            return letter.body

        self.task = handle


async def test_a_letter_is_handled_acknowledged_and_noted_to_its_sender(lab: Lab) -> None:
    handled, relay, post = Handled(), MemoryRelay(), ScriptedPost()
    async with lab.open(handled.task) as hf, taking(lab, hf, relay, post=post):
        relay.put(letter(body={"n": [1, "ü"]}))
        await until(lambda: bool(handled.seen and post.notes and relay.count("held")))
    assert handled.seen == [letter(body={"n": [1, "ü"]})]
    assert post.notes == [(ADA, (KEYS[0],))]


async def test_one_note_is_for_all_messages_since_the_last_one(lab: Lab) -> None:
    relay, post = MemoryRelay(), ScriptedPost()
    async with lab.open(Handled().task) as hf, taking(lab, hf, relay, post=post, note_every_s=3_600.0) as intake:
        relay.put(letter(0))
        await until(lambda: len(post.notes) == 1)
        for number in (1, 2):
            relay.put(letter(number))
            await until(lambda number=number: relay.count("held") == number + 1)
        assert len(post.notes) == 1
        intake._note_due.clear()  # the time is over
        intake._owes.set()
        await until(lambda: len(post.notes) == 2)
    assert post.notes == [(ADA, (KEYS[0],)), (ADA, (KEYS[1], KEYS[2]))]


async def test_senders_that_began_together_get_their_next_notes_apart(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    senders, at = [f"hf1{n:061d}" for n in range(20)], dict[str, list[float]]()

    class TimedPost(ScriptedPost):
        async def note(self, *, to: str, keys: Sequence[EffectKey]) -> None:
            at.setdefault(to, []).append(time.monotonic())
            await super().note(to=to, keys=keys)

    relay = MemoryRelay()
    async with lab.open(Handled().task) as hf, taking(lab, hf, relay, post=TimedPost(), note_every_s=2.0):
        for number in range(2):
            for sender in senders:
                relay.put(msgspec.structs.replace(letter(number), sender=sender))
            await until(lambda number=number: sum(map(len, at.values())) == (number + 1) * len(senders))
    second = [times[1] - times[0] for times in at.values()]
    assert min(second) > 0.9
    assert max(second) - min(second) > 0.3  # without chance it is the time of a few commits


async def test_a_note_that_can_name_no_more_messages_does_not_wait(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    relay, post = MemoryRelay(), ScriptedPost()
    monkeypatch.setattr(intake_module, "NOTE_KEYS_MAX", 2)
    async with lab.open(Handled().task) as hf, taking(lab, hf, relay, post=post, note_every_s=3_600.0):
        for number in range(4):
            relay.put(letter(number))
            await until(lambda number=number: relay.count("held") == number + 1)
        await until(lambda: len(post.notes) == 2)
    assert post.notes[:2] == [(ADA, (KEYS[0],)), (ADA, (KEYS[1], KEYS[2]))]


async def test_a_process_that_ends_acknowledges_what_it_has_and_sends_the_notes_that_wait(lab: Lab) -> None:
    handled, relay, post = Handled(), MemoryRelay(), ScriptedPost()
    async with lab.open(handled.task) as hf:
        async with taking(lab, hf, relay, post=post, note_every_s=3_600.0, ack_wait_s=3_600.0):
            for number in range(2):
                relay.put(letter(number))
                await until(lambda number=number: len(handled.seen) == number + 1)
            assert (relay.count("held"), len(post.notes)) == (0, 1)
        assert relay.count("held") == 2
    assert post.notes == [(ADA, (KEYS[0],)), (ADA, (KEYS[1],))]


async def test_a_sender_that_cannot_be_reached_holds_up_no_note_of_another(lab: Lab) -> None:
    relay, reached = MemoryRelay(), list[str]()

    class Post(ScriptedPost):
        async def note(self, *, to: str, keys: Sequence[EffectKey]) -> None:
            if to == ADA:
                await asyncio.Event().wait()
            reached.append(to)

    async with lab.open(Handled().task) as hf, taking(lab, hf, relay, post=Post()):
        relay.put(letter(0))
        await until(lambda: relay.count("held") == 1)
        for number in (1, 2):
            relay.put(Letter(sender="hf1eve", key=KEYS[number], body="x"))
            await until(lambda number=number: len(reached) == number)
    assert reached == ["hf1eve", "hf1eve"]


async def test_what_is_received_together_is_acknowledged_together(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    handled, relay, together = Handled(), MemoryRelay(), list[int]()
    received = MemoryMailbox.received

    async def counted(self: MemoryMailbox, deliveries: Sequence[Delivery], *, mark: int) -> None:
        together.append(len(deliveries))
        await received(self, deliveries, mark=mark)

    monkeypatch.setattr(MemoryMailbox, "received", counted)
    monkeypatch.setattr(intake_module, "ACKS_MAX", 3)
    async with lab.open(handled.task) as hf, taking(lab, hf, relay, ack_wait_s=3_600.0):
        for number in range(3):
            relay.put(letter(number))
            await until(lambda number=number: len(handled.seen) == number + 1)
        await until(lambda: relay.count("held") == 3)
    assert together == [3]


async def test_a_letter_that_comes_again_with_other_words_is_handled_once(lab: Lab) -> None:
    handled, relay, post = Handled(), MemoryRelay(), ScriptedPost()
    async with lab.open(handled.task) as hf, taking(lab, hf, relay, post=post):
        relay.put(letter())
        await until(lambda: relay.count("held") == 1)
        relay.put(letter())
        relay.put(letter(body="other words"))
        await until(lambda: relay.count("held") == 3)
        rows = await hf.journal.list_tasks(Filter(name=MAIL_NAME))
        await wait_state(hf.task(rows[0].task_id), TaskState.SUCCEEDED)
    assert len(rows) == 1
    assert handled.seen == [letter()]
    assert post.notes == [(ADA, (KEYS[0],))]


async def test_nothing_is_acknowledged_before_it_is_committed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    handled, relay = Handled(), MemoryRelay()
    async with lab.open(handled.task) as hf:
        may = asyncio.Event()
        refused = asyncio.Event()
        submit = hf.journal.submit

        async def busy(submission: Submission) -> Submitted:
            if not may.is_set():
                refused.set()
                raise JournalBusy("locked")
            return await submit(submission)

        monkeypatch.setattr(hf.journal, "submit", busy)
        monkeypatch.setattr("holdfast.app.mail.intake.JOURNAL_AGAIN_S", 0.01)
        async with taking(lab, hf, relay):
            relay.put(letter())
            await refused.wait()
            assert relay.count("stored") == 1
            may.set()
            await until(lambda: relay.count("held") == 1)


async def test_an_intake_that_ended_before_it_acknowledged_handles_nothing_twice(lab: Lab) -> None:
    """As by a kill between the commit and the acknowledgement."""
    handled, relay = Handled(), MemoryRelay()
    async with lab.open(handled.task) as hf:
        async with taking(lab, hf, relay) as intake:
            delivery = relay.put(letter())
            await until(lambda: relay.count("held") == 1)
        relay.mail[0].state = "stored"
        async with taking(lab, hf, relay) as intake:
            await until(lambda: relay.count("held") == 1)
        assert intake is not None
        assert delivery.letter is not None
        await until(lambda: len(handled.seen) == 1)
    assert handled.seen == [letter()]


async def test_mail_is_kept_where_no_worker_has_a_handler(lab: Lab) -> None:
    relay, handled = MemoryRelay(), Handled()
    async with lab.open() as hf, taking(lab, hf, relay):
        relay.put(letter())
        await until(lambda: relay.count("held") == 1)
    async with lab.open(handled.task) as hf:
        await until(lambda: len(handled.seen) == 1)


async def test_what_cannot_be_read_is_told_to_a_person_and_does_not_come_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, handled, post, acked = MemoryRelay(), Handled(), ScriptedPost(), list[Delivery]()
    received = MemoryMailbox.received

    async def recorded(self: MemoryMailbox, deliveries: Sequence[Delivery], *, mark: int) -> None:
        acked.extend(deliveries)
        await received(self, deliveries, mark=mark)

    monkeypatch.setattr(MemoryMailbox, "received", recorded)
    async with lab.open(handled.task) as hf, taking(lab, hf, relay, post=post):
        relay.put("no key opens it")
        relay.put(letter(body=INT_MAX + 1))
        relay.put(letter(1))
        await until(lambda: relay.count("held") == 3)
        told = [one for one in await hf.journal.pending_notices(limit=10) if one.kind == "dead-letter"]
        await until(lambda: len(handled.seen) == 1 and bool(post.notes))
    assert sorted("no key opens it" in one.text for one in told) == [False, True]
    assert sorted(bool(one.fault) for one in acked) == [False, True, True]  # refused at the relays
    assert post.notes == [(ADA, (KEYS[1],))]


async def test_a_message_waits_for_those_before_it_in_its_thread(lab: Lab) -> None:
    """They come in the wrong order, one of them later, and another agent's mail does not wait for them."""
    handled, relay = Handled(), MemoryRelay()
    other = Letter(sender="hf1eve", key=KEYS[1], thread="t", body="other")
    async with lab.open(handled.task) as hf, taking(lab, hf, relay):
        for one in (letter(3, 3, after=(2, 1)), letter(2, 2, after=(1,)), other):
            relay.put(one)
        await until(lambda: relay.count("held") == 1)
        assert relay.count("stored") == 2
        relay.put(letter(1, 1))
        await until(lambda: relay.count("held") == 4)
        relay.put(letter(4, 4, after=(3,)))
        await until(lambda: len(handled.seen) == 5)
    assert [one.body for one in handled.seen] == ["other", 1, 2, 3, 4]
    assert not any(one.missing for one in handled.seen)


async def test_a_message_that_has_waited_long_enough_is_handled_with_a_mark(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.app.mail.intake.GAP_LOOK_S", 0.01)
    handled, relay = Handled(), MemoryRelay()
    async with lab.open(handled.task) as hf, taking(lab, hf, relay) as intake:
        intake.thread_wait_s = 0.05
        relay.put(letter(3, 3, after=(2,)))
        relay.put(msgspec.structs.replace(letter(4, 4, after=(3,)), missing=(KEYS[9],)))
        await until(lambda: len(handled.seen) == 2)
        relay.put(letter(2, 2))
        await until(lambda: len(handled.seen) == 3)
    assert [(one.body, one.missing) for one in handled.seen] == [(3, (KEYS[2],)), (4, ()), (2, ())]


async def test_false_predecessors_of_one_sender_hold_up_a_limited_number(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "GAPS_MAX", 2)
    handled, relay = Handled(), MemoryRelay()
    async with lab.open(handled.task) as hf, taking(lab, hf, relay):
        for number in range(4):
            relay.put(letter(number, number, after=(9,)))
        relay.put(Letter(sender="hf1eve", key=KEYS[1], thread="t", body="other", after=(KEYS[9],)))
        await until(lambda: len(handled.seen) == 2)
        assert relay.count("stored") == 3
    assert sorted((one.sender, one.body, one.missing) for one in handled.seen) == [
        (ADA, number, (KEYS[9],)) for number in range(2)
    ]


async def test_dead_letters_of_strangers_do_not_fill_the_journal(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.app.mail.intake.DEAD_MAX", 2)
    relay = MemoryRelay()
    async with lab.open() as hf, taking(lab, hf, relay) as intake:
        intake._dead = deque(maxlen=2)
        for number in range(5):
            relay.put(f"broken {number}")
        await until(lambda: relay.count("held") == 5)
        assert len(await hf.journal.list_tasks(Filter(name=DEAD_NAME))) == 2
        told = await hf.journal.pending_notices(limit=10)
        assert [one.kind for one in told if one.notice_id.startswith("dead-letters/")] == ["dead-letter"]


async def test_secured_follows_the_rule_and_ends_held_mail(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    handled, relay = Handled(), MemoryRelay()
    allowed = 0
    async with lab.open(handled.task) as hf, taking(lab, hf, relay, secured=lambda _received: allowed) as intake:
        relay.put(letter())
        await until(lambda: relay.count("held") == 1)
        mark = relay.mail[0].mark
        assert mark == journal_at(journal_address(lab.journal)).newest_record() or mark > 0
        allowed = mark - 1
        assert await intake.secure() == mark - 1
        assert relay.count("held") == 1
        allowed = mark
        await intake.secure()
        assert relay.count("deleted") == 1


async def test_a_relay_with_little_room_for_mail_is_told_to_a_person(lab: Lab, tmp_path: Path) -> None:
    async with lab.open() as hf, taking(lab, hf, MemoryRelay()) as intake:
        intake.keep_fill = partial(keep_fill, tmp_path)
        intake.mailbox.fill.update({"https://a.example": 49, "https://b.example": 50})  # pyright: ignore - a dictionary
        await intake.tell_full()
        told = [one for one in await hf.journal.pending_notices(limit=10) if one.kind == "mail-room"]
    assert ["https://b.example has used 50 %" in one.text for one in told] == [True]
    assert find_fill(tmp_path) == {"https://a.example": 49, "https://b.example": 50}


async def test_trouble_with_a_relay_is_logged_once_and_kept_until_it_is_over(lab: Lab, tmp_path: Path) -> None:
    url, told = "https://a.example", io.StringIO()

    def events() -> list[tuple[str, ...]]:
        found = [json.loads(line) for line in told.getvalue().splitlines()]
        return [(one["event"], one["relay"], one.get("error", "")) for one in found if "trouble" in one["event"]]

    async with lab.open() as hf, taking(lab, hf, MemoryRelay()) as intake:
        intake.log, intake.keep_trouble = Log(told), partial(keep_mail_trouble, tmp_path)
        state = cast("dict[str, str]", intake.mailbox.state)
        state.update({url: f"{url}: the certificate has expired" + "x" * 10_000, "https://b.example": ""})
        intake.tell_trouble()
        intake.tell_trouble()
        ((relay, text),) = find_mail_trouble(tmp_path).items()
        assert (relay, text[:27], len(text)) == (url, "the certificate has expired", 300)
        assert find_mail_trouble(tmp_path, now_s=time.time() + 3_600) == {}, "no worker says so any more"
        assert len(events()) == 1
        state[url] = ""
        intake.tell_trouble()
        intake.tell_trouble()
    assert find_mail_trouble(tmp_path) == {}
    assert [(name, at) for name, at, _ in events()] == [("mail-trouble", url), ("mail-trouble-over", url)]


async def test_after_a_restore_held_mail_comes_again_and_is_handled(lab: Lab, tmp_path: Any) -> None:
    """The restored journal lacks one letter and has another: the first is handled, the second is not repeated."""
    handled, relay = Handled(), MemoryRelay()
    async with lab.open(handled.task) as hf, taking(lab, hf, relay):
        relay.put(letter(0))
        await until(lambda: len(handled.seen) == 1 and relay.count("held") == 1)
    other = Lab(tmp_path / "restored")
    for name in ("journal.db", "keys.json"):
        (other.folder / name).write_bytes((lab.folder / name).read_bytes())
        (other.folder / name).chmod(0o600)
    async with lab.open(handled.task) as hf, taking(lab, hf, relay):
        relay.put(letter(1))
        await until(lambda: len(handled.seen) == 2 and relay.count("held") == 2)
    handled.seen.clear()
    async with other.open(handled.task) as hf, taking(other, hf, relay, rewind=True):
        await until(lambda: len(handled.seen) == 1 and relay.count("held") == 2)
    assert handled.seen == [letter(1)]


@pytest.mark.parametrize("sent_here", [False, True])
async def test_a_delivery_note_is_kept_as_evidence_of_the_step(lab: Lab, sent_here: bool) -> None:
    relay, post = MemoryRelay(), ScriptedPost()

    @holdfast.task
    async def greet(run: holdfast.Run) -> Any:
        return await run.send(ADA, "hello")

    async with lab.open(greet, post=post) as hf, taking(lab, hf, relay, sent_to=lambda _key: ADA if sent_here else ""):
        handle = await hf.submit(greet)
        await handle.result(10)
        key = post.tries[0].key
        for _ in range(2):
            relay.put(DeliveryNote(sender=ADA, keys=(key, KEYS[0]), proof="signed"))
        await until(lambda: relay.count("held") == 2)
        items = await hf.journal.inbox_of(handle.id)
    found = note_of(items, "1")
    assert len(items) == 1
    assert found is not None
    assert found.body["result"]["note"] == "signed"


async def test_a_note_of_a_new_message_costs_the_same_in_a_long_journal(lab: Lab) -> None:
    post, steps = ScriptedPost(), list[int]()

    @holdfast.task
    async def greet(run: holdfast.Run) -> None:
        for number in range(200):
            await run.send(ADA, number)

    async with lab.open(greet, post=post) as hf:
        await (await hf.submit(greet)).result(20)
        journal: Any = hf.journal  # its connection has no type
        counted = 0

        def count() -> bool:
            nonlocal counted
            counted += 1
            return False

        journal._reader.set_progress_handler(count, 10)
        for one in (post.tries[-1], post.tries[0]):
            counted = 0
            assert await journal.find_effect(effect_key_bytes(one.key)) is not None
            steps.append(counted)
    assert steps[0] * 10 < steps[1], steps


async def test_notes_of_strangers_do_not_keep_the_journal_busy(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody has sent must be looked for in all of it. A message of this process is found meanwhile."""
    relay, post, asked = MemoryRelay(), ScriptedPost(), list[bytes]()

    @holdfast.task
    async def greet(run: holdfast.Run) -> Any:
        return await run.send(ADA, "hello")

    def sent_to(key: EffectKey) -> str:
        return ADA if any(one.key == key for one in post.tries) else ""

    async with lab.open(greet, post=post) as hf, taking(lab, hf, relay, sent_to=sent_to):
        find = hf.journal.find_effect

        async def slow(key: bytes) -> Any:
            asked.append(key)
            await asyncio.sleep(0.1)
            return await find(key)

        monkeypatch.setattr(hf.journal, "find_effect", slow)
        handle = await hf.submit(greet)
        await handle.result(10)
        relay.put(DeliveryNote(sender="hf1mallory", keys=tuple(KEYS), proof="signed"))
        await until(lambda: relay.count("held") == 1)
        relay.put(DeliveryNote(sender=ADA, keys=(post.tries[0].key,), proof="signed"))
        await until(lambda: relay.count("held") == 2)
        items = await hf.journal.inbox_of(handle.id)
    assert len(asked) == 2
    assert note_of(items, "1") is not None


@pytest.mark.parametrize("sent_here", [False, True])
async def test_a_note_of_another_agent_than_the_recipient_says_nothing(lab: Lab, sent_here: bool) -> None:
    """Mallory has seen the key: her note does not say that Ada has the message, and does not keep Ada's out."""
    relay, post = MemoryRelay(), ScriptedPost()

    @holdfast.task
    async def greet(run: holdfast.Run) -> Any:
        return await run.send(ADA, "hello")

    async with lab.open(greet, post=post) as hf, taking(lab, hf, relay, sent_to=lambda _key: ADA if sent_here else ""):
        handle = await hf.submit(greet)
        await handle.result(10)
        key = post.tries[0].key
        for number, sender in enumerate(("hf1mallory", ADA), 1):
            relay.put(DeliveryNote(sender=sender, keys=(key,), proof=f"signed by {sender}"))
            await until(lambda number=number: relay.count("held") == number)
        items = await hf.journal.inbox_of(handle.id)
    assert [one.body["result"]["note"] for one in items] == [f"signed by {ADA}"]


@pytest.mark.parametrize("to", [ADA, f"hf:{ADA}?r=https://relay.example%23z6Mk", "ada@relay.example"])
async def test_a_delivery_note_closes_a_message_in_doubt(lab: Lab, to: str) -> None:
    relay, post = MemoryRelay(), ScriptedPost(*(MailUnconfirmed("one of two") for _ in range(10_000)))

    @holdfast.task
    async def greet(run: holdfast.Run) -> Any:
        return await run.send(to, "hello")

    async with lab.open(greet, post=post) as hf, taking(lab, hf, relay, known_id=lambda to: ADA if "@" in to else ""):
        handle = await hf.submit(greet)
        await wait_step(handle, "1", StepState.UNKNOWN)
        relay.put(DeliveryNote(sender=ADA, keys=(post.tries[0].key,), proof="signed"))
        result = await handle.result(10)
    assert result["to"] == ADA


async def test_a_note_says_nothing_about_a_step_of_another_tool(lab: Lab) -> None:
    relay, keys = MemoryRelay(), list[str]()

    @holdfast.tool(effect=holdfast.Idempotent())
    async def other(call: holdfast.Call) -> None:
        keys.append(call.effect_key)

    @holdfast.task
    async def acts(run: holdfast.Run) -> None:
        await run.call(other)

    async with lab.open(acts) as hf, taking(lab, hf, relay):
        handle = await hf.submit(acts)
        await handle.result(10)
        relay.put(DeliveryNote(sender=ADA, keys=(EffectKey(keys[0]),), proof="signed"))
        await until(lambda: relay.count("held") == 1)
        assert await hf.journal.inbox_of(handle.id) == []


async def test_no_submitter_can_make_a_task_that_claims_to_be_mail(lab: Lab) -> None:
    handled = Handled()
    async with lab.open(handled.task) as hf:
        with pytest.raises(holdfast.HoldfastError, match="@"):
            await hf.submit(MAIL_NAME, letter={"sender": "hf1boss", "key": KEYS[0]})
