"""Mail between agents over real relay processes."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Correspondent, key, make_correspondent, take
from intake_stage import until

from holdfast.app.mail.agent_post import AgentPost
from holdfast.core.mail import Delivery, MailKind
from holdfast.errors import (
    AgentElsewhere,
    KeysReplaced,
    MailKeyReused,
    MailRefused,
    MailUnconfirmed,
    RelayBusy,
    RelayRefused,
)
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.records import RotationReason
from holdfast.identity.speaker.open_speaker import VaultSpeaker
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.certificate import parse_certificate
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client import mailbox
from holdfast.relay.client import post as post_module
from holdfast.relay.client.address_book import AddressBook, Peer
from holdfast.relay.client.channel import Answered, FencedByRelay, RelayChannel, ReplacedHere, SessionOver
from holdfast.relay.client.health import HealthBook
from holdfast.relay.client.open_mail import AgentMail, open_mail
from holdfast.relay.client.post import _Sending
from holdfast.relay.client.profile import find_own_profile
from holdfast.relay.client.sender_logs import OF_SENDER_MAX
from holdfast.relay.protocol import calls
from holdfast.relay.protocol.calls import Ack, AckAnswer, StoredItem
from holdfast.relay.protocol.envelope import Envelope, Inner, open_envelope
from holdfast_proofs.relay_proof import NoProof, verify
from holdfast_proofs.support.relays import RelayProcess, relays

LIAR = ("-m", "holdfast_proofs.relay_lab.lying_relay")
INNER = Inner(key=bytes(16), body=b"1")
HONEST = ("-m", "holdfast", "relay", "serve")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[RelayProcess]]:
    with relays(tmp_path_factory.mktemp("relays"), "r1", "r2", "r3") as started:
        yield started


@pytest.fixture
def three(running: list[RelayProcess]) -> list[RelayProcess]:
    for one in running:
        if one.process is None:
            one.start()
    return running


class StaleSpeaker:
    """The speaker of a machine that has not heard of the newest keys."""

    def __init__(self, speaker: VaultSpeaker, log: KeyLog) -> None:
        self._log = log
        self.id = log.id
        self.mail_keys = speaker.mail_keys
        self._certificates: list[object] = []
        self._speaker = speaker

    def log(self) -> KeyLog:
        return self._log

    def certify(self, **facts: object) -> object:
        """What it was given once, as long as it lasts."""
        if not self._certificates:
            self._certificates.append(self._speaker.certify(**facts))  # pyright: ignore[reportArgumentType]
        return self._certificates[0]


async def until_stopped(mail: AgentMail, most: int = 99) -> None:
    """Takes at most so many letters."""
    found = 0
    async with asyncio.timeout(20):
        while True:
            found += sum(one.letter is not None for one in await mail.mailbox.next())
            assert found <= most


async def entered(mail: AgentMail) -> None:
    """It has logged in at its relays."""
    async with asyncio.timeout(20):
        await mail.mailbox.next()
        while not all(box.token for box in mail.mailbox._boxes.values()):
            await mail.mailbox.next()


async def contacts_known(mail: AgentMail) -> None:
    """Its relays hear of a new contact before they are asked for mail again."""
    for up_to in range(100):
        await mail.mailbox.secured(up_to=up_to)
        if all(box.contacts for box in mail.mailbox._boxes.values()):
            return
        await mail.mailbox.next()
    raise AssertionError


async def some(mail: AgentMail) -> list[Delivery]:
    """All deliveries that come, at least one."""
    found: list[Delivery] = []
    async with asyncio.timeout(20):
        while (got := await mail.mailbox.next()) or not found:
            found += got
    return found


def in_order(_: HealthBook, relays: Sequence[WitnessRelay], _now: float, **_more: str) -> list[WitnessRelay]:
    return list(relays)


def stored_items(raw: str) -> list[dict[str, int]]:
    return json.loads(raw.partition("\n")[2])["items"]


async def a_pair(tmp_path: Path, three: list[RelayProcess]) -> tuple[Correspondent, Correspondent]:
    ada, bob = (Correspondent(make_correspondent(tmp_path / name, name)) for name in ("ada", "bob"))
    await ada.register(three)
    await bob.register(three)
    return ada, bob


def test_mail_is_sent_to_the_relay_where_its_recipient_waits(tmp_path: Path, three: list[RelayProcess]) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as his:
            await entered(his)
            (first,) = (box.relay.url for box in his.mailbox._boxes.values() if box.is_first)
            for number in range(10):
                assert first in (await hers.post.send(to=bob.id, body=number, key=key(number))).relays

    asyncio.run(story())


def test_a_relay_that_does_not_answer_a_check_holds_up_no_mail(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message may show an answer of that relay which the recipient has not seen, and makes it ask."""
    really, asked = RelayChannel.take, list[str]()

    async def take_or_wait(self: RelayChannel, *given: Any, nonce: str = "", **more: Any) -> Any:
        if nonce:
            asked.append(nonce)
            await asyncio.Event().wait()
        return await really(self, *given, **more)

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers:
            sent = [await hers.post.send(to=bob.id, body=number, key=key(number)) for number in (1, 2)]
            async with bob.open() as his:
                await take(his, 2)
            monkeypatch.setattr(RelayChannel, "take", take_or_wait)
            async with bob.open() as his:
                await his.mailbox.next()
                hers.post._shown[bob.id] = (0.0, tuple(one.encode() for one in sent[0].stored))
                await hers.post.send(to=bob.id, body=3, key=key(3))
                await hers.post.send(to=bob.id, body=4, key=key(4))
                await take(his, 2)
        assert asked

    asyncio.run(story())


def test_mail_that_had_no_room_while_the_log_of_its_sender_was_looked_up_comes_at_once_afterwards(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the question that waits at the relay ends, 20 seconds later."""
    really, may_look = AddressBook.log_of, asyncio.Event()

    async def log_later(self: AddressBook, *given: Any) -> KeyLog:
        await may_look.wait()
        return await really(self, *given)

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        count = 2 * OF_SENDER_MAX + 1
        async with ada.open() as hers:
            for number in range(count):
                await hers.post.send(to=bob.id, body=number, key=key(number))
        monkeypatch.setattr(AddressBook, "log_of", log_later)
        async with bob.open() as his:
            await entered(his)
            await until(lambda: all(box.poll for box in his.mailbox._boxes.values()))
            may_look.set()
            await take(his, count, within_s=4.0)

    asyncio.run(story())


def test_a_login_that_is_refused_again_and_again_is_tried_after_pauses(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one with a certificate that is not valid by the relay's clock."""
    tried: list[RelayChannel] = []

    async def refused(self: RelayChannel, *_: object) -> None:
        tried.append(self)
        await asyncio.sleep(0)
        raise SessionOver("the certificate has expired")

    async def story() -> None:
        bob = Correspondent(make_correspondent(tmp_path / "bob", "bob"))
        await bob.register(three[:1])
        monkeypatch.setattr(RelayChannel, "login", refused)
        async with bob.open(wait_s=1.0) as his:
            await his.mailbox.next()
            assert any("expired" in why for why in his.mailbox.state.values())
        assert 2 <= len(tried) < 20

    asyncio.run(story())


def test_a_relay_that_never_waits_with_an_empty_answer_is_asked_after_pauses(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    really, asked = RelayChannel.take, list[int]()

    async def take_at_once(self: RelayChannel, *given: Any, wait_s: int, **more: Any) -> Any:
        asked.append(wait_s)
        return await really(self, *given, wait_s=0, **more)

    async def story() -> None:
        bob = Correspondent(make_correspondent(tmp_path / "bob", "bob"))
        await bob.register(three[:1])
        monkeypatch.setattr(RelayChannel, "take", take_at_once)
        async with bob.open(wait_s=1.0) as his:
            await his.mailbox.next()
        assert 2 <= len(asked) <= 1 / mailbox.EMPTY_S + 2

    asyncio.run(story())


def test_a_relay_that_lists_old_mail_again_is_asked_after_pauses(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    really, first = RelayChannel.take, list[Any]()
    asked = list[int]()

    async def again(self: RelayChannel, *given: Any, **named: Any) -> Any:
        asked.append(named["after"])
        await asyncio.sleep(0)
        if not first:
            first.append(await really(self, *given, **named))
        return first[0]

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three[:1])
        async with ada.open() as hers:
            await hers.post.send(to=bob.id, body=1, key=key(1))
        monkeypatch.setattr(RelayChannel, "take", again)
        async with bob.open(wait_s=5.0) as his:
            while not (got := await his.mailbox.next()):
                pass
            assert {one.letter and one.letter.body for one in got} == {1}
            await asyncio.sleep(1)
        assert 2 <= len(asked) < 20

    asyncio.run(story())


def test_few_connections_to_relays_are_kept_open(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers whose relays were all different once took all files of the process, one for each delivery note."""
    made: list[RelayChannel] = []

    class Channel(RelayChannel):
        def __init__(self, address: WitnessRelay, port: Signatures) -> None:
            super().__init__(address, port)
            made.append(self)

    monkeypatch.setattr(post_module, "RelayChannel", Channel)
    monkeypatch.setattr(post_module, "CHANNELS_MAX", 1)

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as his:
            for number in range(4):
                assert len((await hers.post.send(to=bob.id, body=number, key=key(number))).relays) == 2
            assert len(made) > 2
            assert sum(len(one._idle) for one in made) <= 1
            await take(his, 4)

    asyncio.run(story())


def test_a_message_arrives_once_and_its_note_comes_back(tmp_path: Path, three: list[RelayProcess]) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as his:
            marked: list[int] = []
            sent = await hers.post.send(
                to=bob.id, body={"hello": 1}, key=key(1), thread="t", first_byte=lambda: marked.append(1)
            )
            assert (len(sent.relays), marked) == (2, [1])
            (letter,) = await take(his, 1)
            assert (letter.sender, letter.key, letter.thread, letter.body) == (ada.id, key(1), "t", {"hello": 1})
            await his.post.note(to=ada.id, keys=[key(1)])
            got = await some(hers)
            assert {one.note and (one.note.sender, one.note.keys) for one in got} == {(bob.id, (key(1),))}
            await hers.mailbox.received(got, mark=1)

    asyncio.run(story())


def test_the_copy_of_a_second_relay_is_not_opened_again(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bytes] = []

    def counted(envelope: Envelope, private: X25519PrivateKey) -> Inner:
        opened.append(envelope.id)
        return open_envelope(envelope, private)

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as his:
            await hers.post.send(to=bob.id, body="once", key=key(1))
            found = await some(his)
            while len(found) < 2:
                found += await some(his)
        assert [one.letter and one.letter.body for one in found] == ["once", "once"]
        assert len({at for one in found for at in one.at}) == 2
        assert len(opened) == 1

    monkeypatch.setattr(mailbox, "open_envelope", counted)
    asyncio.run(story())


def test_any_one_relay_may_be_down_or_lose_its_disk(tmp_path: Path, three: list[RelayProcess]) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers:
            three[0].kill()
            for n in range(3):
                assert len((await hers.post.send(to=bob.id, body=n, key=key(n))).relays) == 2
            three[0].start()
            for n in range(3, 6):
                assert len((await hers.post.send(to=bob.id, body=n, key=key(n))).relays) == 2
        three[1].kill()
        shutil.rmtree(three[1].folder)
        try:
            async with bob.open() as his:
                letters = await take(his, 6)
                assert sorted(int(str(one.body)) for one in letters) == list(range(6))
        finally:
            three[1].address = ""
            three[1].start()

    asyncio.run(story())


def test_a_repeat_after_a_lost_answer_is_the_same_message(tmp_path: Path) -> None:
    """Two relays commit the message and are killed before they answer; the step sends it again."""

    async def story() -> None:
        with relays(tmp_path, "d1", "d2") as two:
            ada, bob = await a_pair(tmp_path, two)
            for one in two:
                one.stop()
                one.program = (*LIAR, "dies")
                one.start()
            async with ada.open(give_up_s=1.0) as hers:
                with pytest.raises(MailUnconfirmed):
                    await hers.post.send(to=bob.id, body="once", key=key(1))
                assert [one.process and one.process.wait(10) for one in two] == [-9, -9]
                for one in two:
                    one.stop()
                    one.program = HONEST
                    one.start()
                sent = await hers.post.send(to=bob.id, body="once", key=key(1))
                assert [item["seq"] for raw in sent.stored for item in stored_items(raw)] == [1, 1]
            async with bob.open() as his:
                (letter,) = await take(his, 1)
                assert letter.body == "once"

    asyncio.run(story())


def test_an_acknowledgement_for_a_relay_that_was_put_back_hides_no_new_mail(tmp_path: Path) -> None:
    """The number that the agent still owes an acknowledgement for belongs to another message now."""

    async def story() -> None:
        with relays(tmp_path, "p1") as (relay,):
            ada, bob = await a_pair(tmp_path, [relay])
            relay.stop()
            shutil.copytree(relay.folder, tmp_path / "old")
            relay.start()
            async with ada.open() as hers, bob.open() as his:
                await hers.post.send(to=bob.id, body="first", key=key(1))
                got = await some(his)
                relay.kill()
                shutil.rmtree(relay.folder)
                shutil.copytree(tmp_path / "old", relay.folder)
                await his.mailbox.received(got, mark=5)  # the relay is away: it is owed
                relay.start()
                await hers.post.send(to=bob.id, body="second", key=key(2))
                assert [one.body for one in await take(his, 1)] == ["second"]

    asyncio.run(story())


def test_other_words_under_one_key_are_refused_by_the_relays(tmp_path: Path, three: list[RelayProcess]) -> None:
    async def main() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as his:
            await hers.post.send(to=bob.id, body={"a": 1, "b": 2}, key=key(1), thread="t")
            await hers.post.send(to=bob.id, body={"b": 2, "a": 1}, key=key(1), thread="t")
            with pytest.raises(MailKeyReused, match="other words"):
                await hers.post.send(to=bob.id, body={"a": 2}, key=key(1), thread="t")
            await hers.post.send(to=bob.id, body=3, key=key(2), thread="t", number=2, after=[key(1)])
            one, two = sorted(await take(his, 2), key=lambda one: one.number)
        assert one.body in ({"a": 1, "b": 2}, {"a": 2})  # the third relay took other words, and one of both counts
        assert (two.body, two.after) == (3, (key(1),))

    asyncio.run(main())


@pytest.mark.parametrize("shown", ["", "AAAA", "its own envelope"])
def test_one_relay_that_says_the_key_is_used_stops_no_message_that_two_others_hold(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    really = RelayChannel.submit

    async def lying(self: RelayChannel, to: AgentId, envelopes: Sequence[bytes], **more: Any) -> Any:
        answer, answered = await really(self, to, envelopes, **more)
        if self.address == three[0].at:
            proof = base64.b64encode(envelopes[0]).decode() if shown.startswith("its") else shown
            item = StoredItem(id=answer.items[0].id, code=calls.KEY_REUSED, message="so it says", proof=proof)
            answer = msgspec.structs.replace(answer, items=(item,))
        return answer, answered

    async def main() -> None:
        ada, bob = await a_pair(tmp_path, three)
        monkeypatch.setattr(RelayChannel, "submit", lying)
        monkeypatch.setattr(HealthBook, "ranked", in_order)
        async with ada.open() as hers, bob.open() as his:
            for number in range(4):
                sent = await hers.post.send(to=bob.id, body=number, key=key(number))
                assert set(sent.relays) == {one.at.url for one in three[1:]}
                assert "so it says" in sent.trouble[three[0].at.url]
            await take(his, 4)

    asyncio.run(main())


def test_one_relay_that_shows_the_first_message_proves_that_the_key_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two others never had it, and take the new words."""

    async def main() -> None:
        monkeypatch.setattr(HealthBook, "ranked", in_order)
        with relays(tmp_path, "r1", "r2", "r3") as three:
            ada, bob = await a_pair(tmp_path, three[:1])
            async with ada.open() as hers:
                await hers.post.send(to=bob.id, body="first", key=key(1))
                await bob.register(three)
                hers.post.book.forget(await hers.post.book.find(bob.id))
                for _ in range(2):  # the second time two relays hold the new words
                    with pytest.raises(MailKeyReused, match="other words"):
                        await hers.post.send(to=bob.id, body="second", key=key(1))

    asyncio.run(main())


def test_a_restored_agent_gets_its_held_mail_again_and_the_old_one_is_fenced(
    tmp_path: Path, three: list[RelayProcess]
) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as old:
            await hers.post.send(to=bob.id, body="early", key=key(1))
            await take(old, 1, mark=10)
            # Two acknowledgements that leave together have the higher mark.
            await until(lambda: not any(box.owed for box in old.mailbox._boxes.values()))
            await hers.post.send(to=bob.id, body="late", key=key(2))
            await take(old, 1, mark=20)
            await old.mailbox.secured(up_to=10)
            await hers.post.send(to=bob.id, body="waits", key=key(3))
            got = await some(old)
            # A backup had the journal up to record 15. The old machine still runs, and acknowledges too late.
            new = Correspondent(bob.agent, e=2)
            async with new.open() as his:
                await his.mailbox.rewind(after=15)
                await old.mailbox.received(got, mark=30)
                letters = await take(his, 2, mark=16)
                assert sorted(str(one.body) for one in letters) == ["late", "waits"]
                with pytest.raises(AgentElsewhere):
                    await until_stopped(old)
                await his.mailbox.secured(up_to=16)
                await take(his, 0)

    asyncio.run(story())


def test_a_relay_that_was_away_after_a_restore_is_asked_for_held_mail_when_it_is_back(tmp_path: Path) -> None:
    """The restored agent was started again meanwhile: only what a relay has done is not asked for again."""

    async def story() -> None:
        with relays(tmp_path, "a1", "a2") as two:
            ada, bob = await a_pair(tmp_path, two)
            async with ada.open() as hers, bob.open() as old:
                await hers.post.send(to=bob.id, body="held", key=key(1))
                await take(old, 1, mark=10)
            new, done = Correspondent(bob.agent, e=2), list[str]()
            two[1].kill()
            async with new.open() as his:
                await his.mailbox.rewind(after=0, done=done, on_done=done.append)
                await take(his, 1, mark=10)
            assert done == [two[0].at.key]
            two[1].start()
            async with new.open() as his:
                await his.mailbox.rewind(after=0, done=done, on_done=done.append)
                (letter,) = await take(his, 1, mark=10)
            assert (letter.body, done) == ("held", [one.at.key for one in two])
            async with new.open() as his:
                await his.mailbox.rewind(after=0, done=done, on_done=done.append)
                await take(his, 0)

    asyncio.run(story())


def test_a_relay_that_fails_when_it_is_asked_for_held_mail_is_asked_again_and_deletes_none(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of the restored agent may be verified meanwhile: its marks are not those of the mail."""
    really, failed = RelayChannel.acknowledge, list[Ack]()

    async def busy_once(self: RelayChannel, id: AgentId, token: str, ack: Ack) -> AckAnswer:
        if ack.rewind is not None and not failed:
            failed.append(ack)
            raise RelayBusy("too many changes wait to be written")
        return await really(self, id, token, ack)

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three[:1])
        async with ada.open() as hers, bob.open() as old:
            await hers.post.send(to=bob.id, body="held", key=key(1))
            await take(old, 1, mark=10)
        monkeypatch.setattr(RelayChannel, "acknowledge", busy_once)
        done: list[str] = []
        async with Correspondent(bob.agent, e=2).open() as his:
            await his.mailbox.rewind(after=0, on_done=done.append)
            assert (len(failed), done) == (1, [])
            await his.mailbox.secured(up_to=20)
            (letter,) = await take(his, 1, mark=21)
        assert (letter.body, done) == ("held", [three[0].at.key])

    asyncio.run(story())


def test_of_two_copies_of_one_agent_the_later_one_gets_the_mail_and_both_know(
    tmp_path: Path, three: list[RelayProcess]
) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as old:
            await entered(old)
            async with bob.open() as new:
                await entered(new)
                with pytest.raises(AgentElsewhere, match="logged in later"):
                    await until_stopped(old, most=0)
                assert list(old.mailbox.others) == [new.mailbox.instance.key.public]
                with pytest.raises(AgentElsewhere):  # it asks again, as its worker does after a pause
                    await old.mailbox.next()
                await hers.post.send(to=bob.id, body="once", key=key(1))
                (letter,) = await take(new, 1)
                assert letter.body == "once"
                async with asyncio.timeout(20):
                    while not new.mailbox.others:
                        await hers.post.send(to=bob.id, body="wakes it", key=key(2))
                        await new.mailbox.received(await new.mailbox.next(), mark=2)
                assert list(new.mailbox.others) == [old.mailbox.instance.key.public]

    asyncio.run(story())


def test_a_relay_that_shows_a_certificate_of_a_killed_instance_stops_no_mail(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every relay has certificates of earlier instances: one that lies must not stop the mail of the others."""
    really, liar = RelayChannel.take, three[0].at.key

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with bob.open() as earlier:
            killed = await earlier.post.instance.certificate()

        async def take_or_lie(self: RelayChannel, *given: Any, **more: Any) -> Any:
            if self.address.key == liar and given[0] == bob.id:
                lies.append(1)
                error = ReplacedHere("another instance takes the mail")
                error.proof = killed.line()
                raise error
            return await really(self, *given, **more)

        lies: list[int] = []
        monkeypatch.setattr(RelayChannel, "take", take_or_lie)
        async with ada.open() as hers, bob.open() as his:
            his.mailbox.instance.began = killed.record.iat + 1
            for number in range(3):
                await hers.post.send(to=bob.id, body=number, key=key(number))
                await take(his, 1)
        assert lies

    asyncio.run(story())


async def test_mail_that_is_opened_again_is_of_the_same_instance(tmp_path: Path) -> None:
    post = AgentPost(Correspondent(make_correspondent(tmp_path / "bob", "bob")).home)
    first = (await post._mail()).mailbox.instance
    await post.renew()
    await post.renew()
    again = (await post._mail()).mailbox.instance
    await post.close()
    assert again is not first
    assert (again.key.public, again.began) == (first.key.public, first.began)


def test_a_machine_whose_keys_were_replaced_takes_no_more_mail(tmp_path: Path, three: list[RelayProcess]) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        stale_log = bob.agent.log
        async with ada.open() as hers:
            old = open_mail(
                bob.home,
                cast("Speaker", StaleSpeaker(bob.agent.speaker(), stale_log)),
                incarnation=lambda: 1,
                port=Sodium(),
            )
            old.mailbox.wait_s = 1.0
            assert await old.mailbox.next() == []
            bob.agent.rotate(RotationReason.STOLEN)
            await bob.register(three)
            await hers.post.send(to=bob.id, body="for the new one", key=key(1))
            with pytest.raises(KeysReplaced):
                await until_stopped(old, most=0)
            await old.close()
            async with bob.open() as his:
                await take(his, 1)

    asyncio.run(story())


def test_mail_signed_by_keys_that_the_owner_evicted_is_a_dead_letter(tmp_path: Path, three: list[RelayProcess]) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers:
            await hers.post.send(to=bob.id, body="by a thief?", key=key(1))
        ada.agent.rotate(RotationReason.STOLEN)
        await ada.register(three)
        async with bob.open() as his:
            got = await some(his)
            assert all("replaced" in one.fault and one.letter is None for one in got)
            await his.mailbox.received(got, mark=1)
        async with ada.open() as hers:  # the owner, recovered, sends the same step again
            await hers.post.send(to=bob.id, body="by the owner", key=key(1))
        async with bob.open() as his:
            (letter,) = await take(his, 1)
            assert letter.body == "by the owner"

    asyncio.run(story())


def test_an_agent_that_moved_is_followed_and_mail_at_its_old_relays_is_still_taken(
    tmp_path: Path, three: list[RelayProcess]
) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three[:1])
        async with ada.open() as hers:
            await hers.post.send(to=bob.id, body="to the old relay", key=key(1))
            await bob.register(three[1:])
            sent = await hers.post.send(to=bob.id, body="to the new ones", key=key(2))
            assert set(sent.relays) == {one.at.url for one in three[1:]}
        async with bob.open() as his:
            assert len(await take(his, 2)) == 2

    asyncio.run(story())


def test_strangers_have_a_small_quota_and_a_closed_mailbox_refuses_them(
    tmp_path: Path, three: list[RelayProcess]
) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        await bob.register(three, policy=(("mail", "contacts"),))
        async with ada.open() as hers, bob.open() as his:
            with pytest.raises(MailRefused, match="contacts only"):
                await hers.post.send(to=bob.id, body=1, key=key(1))
            await his.post.send(to=ada.id, body="write to me", key=key(1))
            await take(his, 0)
            await his.mailbox.received([], mark=0)
            await contacts_known(his)
            await hers.post.send(to=bob.id, body=2, key=key(2))

    asyncio.run(story())


def test_calls_of_others_are_refused(tmp_path: Path, three: list[RelayProcess]) -> None:
    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        channel = RelayChannel(three[0].at, Sodium())
        async with ada.open() as hers, bob.open() as his:
            crt, key_ = await hers.mailbox.instance.certificate(), hers.mailbox.instance.key
            login, answered = await channel.login(crt, key_)
            assert (await channel.take(ada.id, login.token, after=0, wait_s=0))[0].last == 0
            with pytest.raises(SessionOver):  # ada's session is none of bob's
                await channel.take(bob.id, login.token, after=0, wait_s=0)
            with pytest.raises(SessionOver):
                await channel.take(ada.id, "x" * 43, after=0, wait_s=0)
            with pytest.raises(RelayRefused):  # another key than the certificate's
                await channel.login(crt, his.mailbox.instance.key)
            sent: list[tuple[str, bytes]] = []
            call = channel.call

            async def recorded(method: str, target: str, body: bytes = b"", **more: object) -> Answered:
                sent.append((target, body))
                return await call(method, target, body, **more)  # pyright: ignore[reportArgumentType]

            channel.call = recorded
            await channel.login(crt, key_)
            with pytest.raises(RelayRefused, match="too late"):  # a login is good once
                await call("POST", *sent[-1])
            with pytest.raises(RelayRefused, match="bytes"):
                await call("POST", f"/v1/mail/{ada.id}", bytes(2 << 20))
            answer, _ = await channel.submit(ada.id, [b"x"])
            assert answer.items[0].code == "malformed"
            assert answered.raw
            ours = await his.post._sealed(_Sending(await his.post.book.find(ada.id), MailKind.MESSAGE, INNER, 1, print))
            answer, _ = await channel.submit(ada.id, [ours[:-1] + bytes((ours[-1] ^ 1,))])  # its signature
            assert (answer.items[0].code, answer.items[0].seq) == ("malformed", 0)
            assert "did not sign" in answer.items[0].message
            # Once a higher incarnation has logged in, an older session takes nothing and acknowledges nothing.
            async with Correspondent(ada.agent, e=2).open() as newer:
                await channel.login(await newer.mailbox.instance.certificate(), newer.mailbox.instance.key)
            with pytest.raises(FencedByRelay) as fenced:
                await channel.take(ada.id, login.token, after=0, wait_s=0)
            assert parse_certificate(fenced.value.proof).record.e == 2
            with pytest.raises(FencedByRelay):
                await channel.login(crt, key_)
        await channel.close()

    asyncio.run(story())


@pytest.mark.parametrize("lie", ["keeps-none", "drops-first"])
def test_a_relay_that_confirms_and_drops_loses_nothing_and_is_proven_to_lie(tmp_path: Path, lie: str) -> None:
    async def story() -> None:
        with relays(tmp_path, "l1", "h2") as two:
            ada, bob = await a_pair(tmp_path, two)
            two[0].stop()
            two[0].program = (*LIAR, lie)
            two[0].start()
            async with ada.open() as hers, bob.open() as his:
                await his.mailbox.next()
                for n in range(3):
                    hers.post._shown = type(hers.post._shown)(
                        (id_, (-1e9, raws)) for id_, (_, raws) in hers.post._shown.items()
                    )
                    await hers.post.send(to=bob.id, body=n, key=key(n))
                    assert [one.body for one in await take(his, 1)] == [n]
                assert his.mailbox.state[two[1].at.url] == ""
                assert his.mailbox.state[two[0].at.url] != ""

    asyncio.run(story())
    proofs = list((tmp_path / "bob").glob("*/relay-proofs/*.json"))
    assert proofs
    for path in proofs:
        words = [sys.executable, "-m", "holdfast_proofs.relay_proof", str(path)]
        done = subprocess.run(words, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        forged = json.loads(path.read_text())
        forged["answers"] = forged["answers"][:1] * 2
        with pytest.raises(NoProof):
            verify(json.dumps(forged).encode())


BAD_UTF8 = b'{"x":"\xff",'


@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        ("/login", rb'"token":"[^"]*"', rb'"token":"a\\nb"'),
        ("/login", rb'"token":"[^"]*"', b'"token":"\xc3\xa9"'),
        ("/login", rb"^{", BAD_UTF8),
        ("/login", rb'"first":1', b'"first":1' + 30 * b"0"),
        ("/ack", rb'"full":0', b'"full":1' + 30 * b"0"),
    ],
)
def test_a_relay_that_signs_a_strange_answer_to_its_agent_stops_no_mail_of_the_others(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch, call: str, before: bytes, after: bytes
) -> None:
    monkeypatch.setattr(RelayChannel, "call", _answering(three[0], call, before, after))

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as his:
            await his.mailbox.rewind(after=0)
            for n in range(3):
                await hers.post.send(to=bob.id, body=n, key=key(n))
            assert {str(one.body) for one in await take(his, 3)} == {"0", "1", "2"}
            await his.mailbox.secured(up_to=1)
            assert max(his.mailbox.fill.values()) <= 100
            if call == "/login":
                assert "its answer cannot be read" in his.mailbox.state[three[0].at.url]

    asyncio.run(story())


def test_a_relay_that_signs_a_strange_answer_to_a_sender_is_passed_over(
    tmp_path: Path, three: list[RelayProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RelayChannel, "call", _answering(three[0], "/v1/mail/", rb"^{", BAD_UTF8))
    monkeypatch.setattr(HealthBook, "ranked", in_order)

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three)
        async with ada.open() as hers, bob.open() as his:
            sent = await hers.post.send(to=bob.id, body=1, key=key(1))
            assert set(sent.relays) == {one.at.url for one in three[1:]}
            assert [one.body for one in await take(his, 1)] == [1]

    asyncio.run(story())


def _answering(relay: RelayProcess, call: str, before: bytes, after: bytes) -> Any:
    """RelayChannel.call; what this relay answers to this call is changed, as if the relay had signed it so."""
    really = RelayChannel.call

    async def changed(self: RelayChannel, method: str, target: str, *given: Any, **more: Any) -> Answered:
        answered = await really(self, method, target, *given, **more)
        if self.address != relay.at or call not in target:
            return answered
        content, count = re.subn(before, lambda _: after, answered.content)
        assert count == 1, answered.content
        line, _, _ = answered.raw.partition(b"\n")
        return Answered(content, line + b"\n" + content, answered.target, answered.nonce)

    return changed


def test_an_older_or_forged_profile_moves_no_mail(tmp_path: Path, three: list[RelayProcess]) -> None:
    """What a relay gives with `moved` counts only if the recipient's keys signed it, and it is newer."""

    async def story() -> None:
        ada, bob = await a_pair(tmp_path, three[:1])
        old = find_own_profile(bob.home)
        assert old is not None
        await bob.register(three[1:])
        new = find_own_profile(bob.home)
        hers = find_own_profile(ada.home)
        assert new is not None
        assert hers is not None
        async with ada.open() as mail:
            peer = await mail.post.book.find(bob.id)
            assert peer.profile.digest == new.digest
            changed = new.line().replace(b"operator-0", b"operator-9").decode()
            for line in (old.line().decode(), hers.line().decode(), changed, "x"):
                assert mail.post.book.moved(peer, line) is None
            behind = Peer(profile=old, log=peer.log)
            followed = mail.post.book.moved(behind, new.line().decode())
            assert followed is not None
            assert followed.profile.digest == new.digest

    asyncio.run(story())
