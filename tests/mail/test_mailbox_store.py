"""Mailboxes in the relay's store: numbers and chain, repeats, quotas, held mail, expiry, tombstones."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from correspondents import Agent, key, make_correspondent

from holdfast.core.clock import SystemEntropy
from holdfast.core.ids import effect_key_bytes
from holdfast.core.mail import MailKind
from holdfast.errors import RelayBusy, RelayUnfit
from holdfast.host.sqlite import COMMITS_TIMED, SLOW_COMMIT_S, Db, open_or_create
from holdfast.identity.records.encodings import AgentId, digest_of
from holdfast.identity.records.records import RotationReason
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.statements.certificate import Role
from holdfast.relay.protocol.calls import FOR_NOW, QUOTA, REFUSED, Ack, MailAnswer, StoredItem
from holdfast.relay.protocol.envelope import Envelope, Inner, first_head, next_head, parse_envelope, seal_envelope
from holdfast.relay.server import mail
from holdfast.relay.server.mail import Offered, Quota
from holdfast.relay.server.store import Store

NOW = 1_800_000_000
SMALL = Quota(mails=4, bytes=1 << 20, strange_mails=2, strange_bytes=1 << 20, share=1)


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    return make_correspondent(tmp_path_factory.mktemp("ada"))


@dataclass
class Box:
    store: Store
    sender: Agent
    to: AgentId
    quota: Quota = field(default_factory=Quota)

    def envelope(self, n: int, ttl_s: int = 3_600, body: bytes = b"1") -> Envelope:
        speaker, instance = self.sender.speaker(), KeyPair.new(SystemEntropy())
        crt = speaker.certify(
            inst=instance.public, role=Role.PRIMARY, incarnation=1, host=digest_of(b"here"), life_s=900
        )
        (mk, *_) = speaker.mail_keys()
        inner = Inner(key=effect_key_bytes(key(n)), body=body)
        raw = seal_envelope(
            inner, kind=MailKind.MESSAGE, to=self.to, ttl_s=ttl_s, key=mk.public(), crt=crt, signer=instance
        )
        return parse_envelope(raw)

    def put(self, *numbers: int, strange: bool = False, now: int = NOW, ttl_s: int = 3_600) -> list[StoredItem]:
        offered = [Offered(self.envelope(n, ttl_s), strange) for n in numbers]
        return self.store.write(lambda db: mail.put_mail(db, self.to, offered, now=now, quota=self.quota))

    def ack(self, now: int = NOW, **parts: object) -> mail.AckAnswer:
        """Entries by number, as the page lists them."""
        ids = {one.seq: one.id.hex() for one in self.page().items}
        received = tuple((seq, ids[seq]) for seq in parts.pop("received", ()))  # pyright: ignore
        refused = tuple((seq, ids[seq], why) for seq, why in parts.pop("refused", ()))  # pyright: ignore
        return self.acknowledge(Ack(received=received, refused=refused, **parts), now)  # pyright: ignore - by name

    def acknowledge(self, ack: Ack, now: int = NOW) -> mail.AckAnswer:
        return self.store.write(lambda db: mail.acknowledge(db, self.to, ack, now=now, quota=self.quota))

    def page(self, after: int = 0) -> MailAnswer:
        return self.store.read(lambda db: mail.page_of(db, self.to, after=after))

    def waiting(self) -> list[int]:
        return [one.seq for one in self.page().items if one.envelope]

    def sweep(self, now: int) -> int:
        return self.store.write(lambda db: mail.sweep(db, now=now))


@pytest.fixture
def box(tmp_path: Path, sender: Agent) -> Generator[Box]:
    store = Store(tmp_path / "relay")
    to = sender.log.id
    store.write(lambda db: db.execute("INSERT INTO agent (id, at) VALUES (?, 0)", (to,)).fetchall())
    yield Box(store, sender, to)
    store.close()


def test_numbers_and_heads_are_a_chain_and_a_repeat_gets_what_the_first_got(box: Box) -> None:
    first = box.put(1, 2)
    again = box.put(2, 3, 1)
    assert [one.seq for one in first] == [1, 2]
    assert (again[0], again[2]) == (first[1], first[0])
    assert again[1].seq == 3
    page = box.page()
    head = first_head(box.to)
    for item in page.items:
        head = next_head(head, item.seq, item.id)
    assert [one.seq for one in page.items] == [1, 2, 3]
    assert head.hex() == again[1].head
    assert box.page(3).items == ()
    assert box.page(2).head.hex() == first[1].head


def test_a_store_from_before_the_digest_of_words_opens_and_its_mail_can_be_sent_again(
    tmp_path: Path, sender: Agent
) -> None:
    folder, to = tmp_path / "relay", sender.log.id
    new = files("holdfast.relay.server").joinpath("schema.sql").read_text("utf-8")
    old = "".join(line for line in new.splitlines(keepends=True) if not line.startswith("  bd BLOB"))
    assert old != new
    store = Store(folder)
    box = Box(store, sender, to)
    store.write(lambda db: db.execute("INSERT INTO agent (id, at) VALUES (?, 0)", (to,)).fetchall())
    box.put(1, 2)
    box.ack(received=(1,), mark=1)
    store.close()
    db = open_or_create(folder / "relay.db")
    db.execute("CREATE TEMP TABLE old AS SELECT * FROM mail")
    db.execute("DROP TABLE mail")
    db.execute(old)
    columns = ", ".join(str(row[1]) for row in db.execute("PRAGMA table_info(mail)").fetchall())
    db.execute(f"INSERT INTO mail ({columns}) SELECT {columns} FROM temp.old")
    db.execute("UPDATE meta SET value = '1' WHERE name = 'format'")
    db.close()

    for _ in range(2):
        store = Store(folder)
        box = Box(store, sender, to)
        assert (box.waiting(), box.page().last) == ([], 2)
        assert store.read(lambda db: db.execute("SELECT waiting, held FROM mailbox").fetchall()) == [(0, 1)]
        store.close()
    store = Store(folder)
    box = Box(store, sender, to)
    assert [one.seq for one in box.put(1, 2)] == [1, 3]  # the first was received
    assert box.waiting() == [3]
    store.close()


def test_a_store_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    Store(tmp_path / "relay").close()
    db = open_or_create(tmp_path / "relay" / "relay.db")
    db.execute("UPDATE meta SET value = '4' WHERE name = 'format'")
    db.execute("DROP TABLE contact")
    db.close()
    with pytest.raises(RelayUnfit, match="newer version"):
        Store(tmp_path / "relay")
    db = open_or_create(tmp_path / "relay" / "relay.db")
    assert db.execute("SELECT name FROM sqlite_master WHERE name = 'contact'").fetchall() == []
    db.close()


def test_other_words_under_the_key_of_a_message_are_refused(box: Box) -> None:
    """While it waits, while it is held, and when it is gone; the message itself may come again. The first message is
    shown while the relay has it."""
    first, shown = box.put(1), list[str]()
    for ack in (lambda: box.ack(), lambda: box.ack(received=(1,), mark=1), lambda: box.ack(secured=1)):
        ack()
        offered = [Offered(box.envelope(1, body=b"2"), False), Offered(box.envelope(1), False)]
        other, same = box.store.write(lambda db, o=offered: mail.put_mail(db, box.to, o, now=NOW, quota=box.quota))
        assert (other.code, other.seq, same) == ("key-reused", 0, first[0])
        shown.append(parse_envelope(base64.b64decode(other.proof)).id.hex() if other.proof else "")
    assert shown == [first[0].id, first[0].id, ""]
    assert box.page().last == 1


def test_mail_of_replaced_keys_makes_room_for_the_same_message_under_newer_keys(box: Box, tmp_path: Path) -> None:
    own = make_correspondent(tmp_path / "other")
    box.sender = own
    box.put(1)
    own.rotate(RotationReason.STOLEN)
    assert [one.seq for one in box.put(1, 1)] == [2, 2]
    assert box.waiting() == [2]
    box.ack(received=(2,), mark=1)
    own.rotate(RotationReason.STOLEN)
    assert [one.seq for one in box.put(1)] == [2]  # it was received: no second copy


def test_a_full_mailbox_refuses_and_drops_nothing(box: Box) -> None:
    box.quota = SMALL
    assert [one.code for one in box.put(1, 2, 3, strange=True)] == ["", "", QUOTA]
    assert [one.code for one in box.put(4, 5, 6)] == ["", "", QUOTA]
    assert box.waiting() == [1, 2, 3, 4]
    assert box.put(1)[0].seq == 1  # a repeat needs no room
    box.ack(received=(1, 2), mark=1)
    box.ack(secured=1)
    assert [one.code for one in box.put(7, 8, 9)] == ["", "", QUOTA]
    assert box.ack().waiting == 4


def test_held_mail_comes_again_after_a_restore_until_it_is_secured(box: Box) -> None:
    box.put(1, 2, 3, 4)
    box.ack(received=(1, 2), mark=10)
    box.ack(received=(3,), mark=20)
    assert (box.waiting(), box.ack().held) == ([4], 3)
    box.ack(rewind=10)
    assert box.waiting() == [3, 4]
    box.ack(received=(3,), mark=20)
    box.ack(secured=10)
    assert box.ack().held == 1
    answer = box.ack(rewind=10)
    assert (answer.waiting, answer.held, answer.first) == (2, 0, 3)
    assert box.waiting() == [3, 4]  # not those that a backup covers
    box.ack(rewind=0)
    assert box.waiting() == [3, 4]


def test_where_held_mail_has_no_room_new_mail_is_refused_and_nothing_leaves(box: Box) -> None:
    box.quota = Quota(mails=4, share=1)
    for n in range(1, 5):
        assert box.put(n)[0].seq == n
        assert box.ack(received=(n,), mark=n).full == 100 * n // 8
    assert box.put(9)[0].code == QUOTA  # the share of this sender
    box.quota = Quota(mails=2, share=1)
    (refused,) = box.put(9)
    assert (refused.code, "backup" in refused.message, box.ack().full) == (QUOTA, True, 100)
    box.ack(rewind=0)
    assert box.waiting() == [1, 2, 3, 4]
    box.ack(received=(1, 2, 3, 4), mark=4)
    box.ack(secured=4)
    assert box.put(9)[0].code == ""


def test_a_sender_that_has_its_share_leaves_room_for_others(box: Box, tmp_path: Path) -> None:
    """What it has sent counts while it waits and while it is held."""
    box.quota = Quota(mails=8, share=4)
    assert [one.code for one in box.put(1, 2, 3, 4, 5)] == ["", "", "", "", QUOTA]
    other = Box(box.store, make_correspondent(tmp_path / "other"), box.to, box.quota)
    assert [one.code for one in other.put(1, 2, 3)] == ["", "", QUOTA]
    box.ack(received=(1, 2, 3, 4), mark=1)
    assert [one.code for one in box.put(5)] == [""]  # less than half waits, and less than half is used
    assert [one.code for one in box.put(6, 7)] == ["", QUOTA]
    box.ack(received=(7, 8), mark=1, secured=1)
    assert [one.code for one in box.put(7)] == [""]


def test_the_tombstone_of_held_mail_that_was_never_secured_says_so(box: Box) -> None:
    box.put(1)
    box.ack(received=(1,), mark=1)
    box.sweep(NOW + mail.HELD_S + 1)
    assert box.store.read(lambda db: db.execute("SELECT why FROM mail").fetchall()) == [("held too long",)]


def test_an_acknowledgement_of_another_envelope_under_the_number_changes_nothing(box: Box) -> None:
    """The relay was put back to an older day, and the number was given again."""
    box.put(1, 2)
    entries = [(one.seq, one.id.hex()) for one in box.page().items]
    (_, first), (_, second) = entries
    answer = box.acknowledge(Ack(received=((2, first),), refused=((1, second, "why"),), mark=9, secured=9))
    assert (answer.waiting, answer.held, box.waiting()) == (2, 0, [1, 2])
    assert box.acknowledge(Ack(received=tuple(entries), mark=9)).held == 2


def test_what_the_recipient_refused_stays_refused_for_the_sender(box: Box) -> None:
    box.put(1)
    box.ack(refused=((1, "it cannot be opened"),))
    (again,) = box.put(1)
    assert (again.code, again.message, box.waiting()) == (REFUSED, "it cannot be opened", [])


def test_what_was_refused_is_taken_under_newer_keys(box: Box, tmp_path: Path) -> None:
    box.sender = make_correspondent(tmp_path / "other")
    box.put(1)
    box.ack(refused=((1, "the keys were replaced"),))
    box.sender.rotate(RotationReason.STOLEN)
    assert (box.put(1)[0].seq, box.waiting(), box.ack().waiting) == (2, [2], 1)


def test_what_could_not_be_used_for_now_is_taken_when_it_is_sent_again(box: Box) -> None:
    """Its sender still has it: the recipient may know the sender, or have another mail key, by then."""
    box.put(1, 2)
    box.ack(refused=((1, f"{FOR_NOW}the key log of its sender cannot be found"), (2, "it cannot be opened")))
    assert box.waiting() == []
    again = box.put(1, 2)
    assert [(one.seq, one.code) for one in again] == [(3, ""), (0, "refused")]
    assert (box.waiting(), box.ack().waiting) == ([3], 1)


def test_expired_mail_leaves_a_tombstone_and_the_chain_still_closes(box: Box) -> None:
    stored = box.put(1, ttl_s=60) + box.put(2, ttl_s=86_400)
    assert box.sweep(NOW + 61) == 1
    page = box.page()
    assert [bool(one.envelope) for one in page.items] == [False, True]
    head = next_head(next_head(page.head, 1, page.items[0].id), 2, page.items[1].id)
    assert head.hex() == stored[1].head
    # After its time the tombstone leaves; the chain goes on from its head.
    assert box.sweep(NOW + 61 + mail.TOMBSTONE_S) >= 1
    assert box.sweep(NOW + 2 * 86_400 + mail.TOMBSTONE_S) >= 1
    page = box.page()
    assert (page.after, page.items, page.head.hex(), page.last) == (2, (), stored[1].head, 2)
    assert box.put(3)[0].seq == 3
    assert box.page().head.hex() == stored[1].head


def test_a_mailbox_keeps_a_bounded_number_of_tombstones(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agents that exchange mail for days must not fill the relay's disk with what is gone."""
    monkeypatch.setattr(mail, "ENTRIES_MAX", 4)
    monkeypatch.setattr(mail, "BLOCKED_MAX", 8)
    stored = box.put(*range(1, 8))
    box.ack(received=(1, 2, 3, 5, 6, 7), mark=1)
    box.ack(secured=1)
    assert (box.sweep(NOW), box.page().after) == (3, 3)
    assert box.sweep(NOW) == 0, "the fourth one waits"
    assert [one.code for one in box.put(8, 9, 10, 11, 12)] == ["", "", "", "", QUOTA]
    box.ack(received=(4,), mark=1)
    box.ack(secured=1)
    assert (box.sweep(NOW), box.page().after) == (4, 7)
    assert box.page().head.hex() == stored[6].head
    assert box.put(12)[0].seq == 12


@pytest.mark.parametrize("held", [False, True])
def test_a_repeat_of_mail_that_expired_is_stored_again(box: Box, held: bool) -> None:
    """The relay signs `stored` only for what it has."""
    box.put(1, ttl_s=60)
    if held:
        box.ack(received=(1,), mark=1)
    later = NOW + mail.HELD_S + 1
    box.sweep(later)
    assert [one.seq for one in box.put(1, 1, now=later)] == [2, 2]
    assert (box.waiting(), box.ack(now=later).waiting) == ([2], 1)


def test_a_lower_incarnation_than_was_seen_changes_nothing(box: Box) -> None:
    states = [box.store.write(lambda db, e=e: mail.enter(db, box.to, e=e, crt=b"%d" % e)) for e in (2, 1, 3)]
    assert [(one.e, one.crt) for one in states] == [(2, b"2"), (2, b"2"), (3, b"3")]


def kept(box: Box) -> str:
    """As the relay's memory has it."""
    return box.store.known(("kept",), lambda db: str(db.execute("SELECT value FROM kept").fetchall()[0][0]))


def keep(box: Box, value: str, *, only_mail: bool = False) -> None:
    async def write() -> None:
        await box.store.written(lambda db: db.execute("UPDATE kept SET value = ?", (value,)), only_mail=only_mail)

    asyncio.run(write())


def test_what_is_kept_in_memory_is_read_again_after_a_commit_that_may_have_changed_it(box: Box) -> None:
    box.store.write(lambda db: db.execute("CREATE TABLE kept (value)"))
    box.store.write(lambda db: db.execute("INSERT INTO kept VALUES ('a')"))
    assert kept(box) == "a"
    keep(box, "b", only_mail=True)  # says what is not so: that is how one sees that nothing is read
    assert kept(box) == "a"
    keep(box, "c")
    assert kept(box) == "c"


def test_what_was_read_before_a_commit_is_not_kept_after_it(box: Box) -> None:
    box.store.write(lambda db: db.execute("CREATE TABLE kept (value)"))
    box.store.write(lambda db: db.execute("INSERT INTO kept VALUES ('old')"))

    def slow(db: Db) -> str:
        found = str(db.execute("SELECT value FROM kept").fetchall()[0][0])
        keep(box, "new")  # another thread's commit, before this one has kept what it read
        return found

    assert box.store.known(("kept",), slow) == "old"
    assert kept(box) == "new"


async def results(store: Store, count: int, act: Callable[[Db], object]) -> list[object]:
    """Of acts that are asked for in one turn of the event loop."""
    return await asyncio.gather(*(store.written(act) for _ in range(count)), return_exceptions=True)


def insert(db: Db) -> int:
    db.execute("INSERT INTO agent (id, at) VALUES (?, 0)", (f"a{threading.get_ident()} {time.monotonic_ns()}",))
    return threading.get_ident()


def test_acts_of_one_turn_share_a_commit_on_the_loop_and_those_of_a_slow_disk_a_thread(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, here = box.store.commits, threading.get_ident()
    assert asyncio.run(results(box.store, 300, insert)) == [here] * 300
    assert box.store.commits - before == 2, "a commit has at most 256 acts"
    for _ in range(COMMITS_TIMED):
        box.store._times.add(2 * SLOW_COMMIT_S)
    assert here not in asyncio.run(results(box.store, 3, insert))
    for _ in range(COMMITS_TIMED):
        box.store._times.add(0.0)
    box.store._times.add(100.0)  # a single one says nothing about the disk
    assert asyncio.run(results(box.store, 3, insert)) == [here] * 3


def test_where_the_commit_of_a_turn_fails_none_of_its_acts_has_happened(box: Box) -> None:
    db, count = box.store._db, "SELECT count(*) FROM agent"
    before = box.store.read(lambda db: db.execute(count).fetchall())

    class FullDisk:
        def execute(self, sql: str, *more: Any) -> Any:  # Any: as the connection
            if sql == "COMMIT":
                raise apsw.FullError("disk is full")
            return db.execute(sql, *more)

        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

    box.store._db = cast(Db, FullDisk())
    failed = asyncio.run(results(box.store, 3, insert))
    box.store._db = db
    assert [type(one) for one in failed] == [RelayBusy] * 3
    assert box.store.read(lambda db: db.execute(count).fetchall()) == before
    assert asyncio.run(results(box.store, 1, insert)) == [threading.get_ident()]


def test_an_act_whose_caller_has_left_before_its_turn_is_not_done(box: Box) -> None:
    done: list[str] = []

    async def leave() -> None:
        gone = asyncio.ensure_future(box.store.written(lambda _db: done.append("gone")))
        stays = asyncio.ensure_future(box.store.written(lambda _db: done.append("stays")))
        asyncio.get_running_loop().call_soon(gone.cancel)  # between the question and the end of the turn
        await asyncio.wait((gone, stays))
        assert gone.cancelled()

    asyncio.run(leave())
    assert done == ["stays"]


def test_mail_changes_nothing_that_the_relay_keeps_in_memory(box: Box) -> None:
    def rest() -> list[object]:
        asked = (
            "SELECT id, profile, head, log_lines FROM agent",
            "SELECT agent, e, crt FROM mailbox WHERE e > 0 OR crt IS NOT NULL",
            "SELECT * FROM contact",
            "SELECT * FROM log_line",
        )
        return [box.store.read(lambda db, sql=sql: db.execute(sql).fetchall()) for sql in asked]

    box.store.write(lambda db: mail.enter(db, box.to, e=3, crt=b"crt"))
    before = rest()
    box.put(1, 2, 3)
    box.ack(received=(1,), refused=((2, "no"),), secured=7)
    box.store.write(lambda db: mail.sweep(db, now=NOW + 400 * 86_400))
    assert rest() == before
    box.ack(contacts=(AgentId("hf1peer"),))
    assert rest() != before


def test_an_act_whose_caller_left_is_not_done_and_those_beside_it_are(box: Box) -> None:
    box.store.write(lambda db: db.execute("CREATE TABLE done (name)"))
    begun, go_on = threading.Event(), threading.Event()

    def first(db: Db) -> None:
        begun.set()
        go_on.wait(10)

    def note(name: str) -> Callable[[Db], object]:
        return lambda db: db.execute("INSERT INTO done VALUES (?)", (name,))

    async def leave() -> None:
        slow = asyncio.create_task(box.store.written(first))
        await asyncio.to_thread(begun.wait, 10)
        left, stays = (asyncio.create_task(box.store.written(note(name))) for name in ("left", "stays"))
        await asyncio.sleep(0)  # both wait behind the slow one
        left.cancel()
        await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(10):
            await asyncio.gather(slow, stays)

    asyncio.run(leave())
    assert box.store.read(lambda db: db.execute("SELECT name FROM done").fetchall()) == [("stays",)]
