"""Mailboxes in the relay's store. Each function is one act: it reads, decides and writes, and the store syncs it.

True at all times: an envelope for which `stored` was signed is in its mailbox under that number, or a tombstone says
where it went (secured, expired, held too long, refused by the recipient, replaced by the same message sent again).
Entries are only ever added, so the chain's heads that were signed stay true. A full mailbox refuses; nothing is dropped
in silence.

One message of one sender has one entry, however often it comes: a repeat gets the number that the first one got, and
other words under its key are refused (`bd` is a digest of them, under a key that no relay has). If the
sender was recovered meanwhile, the recipient refuses what the old keys signed; so a repeat under newer keys gets a new
entry, if the old one still waits or was refused. So does a repeat of mail that expired unread, that its recipient
never secured, or that its recipient could not use `for now`: the relay no longer has it, and the recipient's journal
knows what it has.

Held mail was received and may still be needed: a recipient that is restored from a backup asks for all of it that came
after that backup. With each entry the relay keeps the recipient's mark (a number of its journal), so it can do so. It
leaves when its recipient says that it is secured, or after HELD_S, and never to make room: where there is none, new
mail is refused, and with each acknowledgement the recipient learns how full its mailbox is. One sender cannot take the
room of others: above half of it, each has a share.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.host.sqlite import Db
from holdfast.identity.records.encodings import AgentId
from holdfast.relay.protocol.calls import (
    CONTACTS_MAX,
    FOR_NOW,
    KEY_REUSED,
    PAGE_BYTES_MAX,
    PAGE_MAX,
    QUOTA,
    REASON_CHARS_MAX,
    REFUSED,
    Ack,
    AckAnswer,
    MailAnswer,
    MailItem,
    StoredItem,
)
from holdfast.relay.protocol.envelope import Envelope, first_head, next_head

WAITING, HELD, GONE = 0, 1, 2
EXPIRED, HELD_TOO_LONG = "expired", "held too long"
HELD_S = 7 * 86_400
TOMBSTONE_S = 8 * 86_400  # a repeat that comes later is a new entry; the recipient's journal knows it
SWEEP_MAX = 1_000  # entries in one act
ENTRIES_MAX = 100_000  # of a mailbox: above it tombstones leave before their time
BLOCKED_MAX = 10 * ENTRIES_MAX  # where they cannot, because an older entry waits or is held, new mail is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Of one mailbox: what may wait. Mail that waits and held mail together have twice the room."""

    mails: int = 10_000
    bytes: int = 64 * 1024 * 1024
    strange_mails: int = 100
    strange_bytes: int = 1024 * 1024
    share: int = 4  # a sender may have this part of `mails` and `bytes`, once the mailbox is half full


@dataclass(slots=True)
class _Box:
    head: bytes
    agent: int
    seq: int
    folded: int  # entries up to this one have left the table
    waiting: int
    waiting_bytes: int
    strange: int
    strange_bytes: int
    held: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Offered:
    """An envelope whose sender was checked; `strange`: no contact of the recipient."""

    envelope: Envelope
    strange: bool


def put_mail(db: Db, id: AgentId, offered: Sequence[Offered], *, now: int, quota: Quota) -> list[StoredItem]:
    """What became of each envelope, in order."""
    box = _open_box(db, id)
    before = box.seq
    found = [_put(db, box, one, now=now, quota=quota) for one in offered]
    if box.seq != before:
        db.execute(
            "UPDATE mailbox SET seq = ?, head = ?, waiting = ?, waiting_bytes = ?, strange = ?, strange_bytes = ? "
            "WHERE agent = ?",
            (box.seq, box.head, box.waiting, box.waiting_bytes, box.strange, box.strange_bytes, box.agent),
        )
    return found


def _put(db: Db, box: _Box, one: Offered, *, now: int, quota: Quota) -> StoredItem:
    envelope, size = one.envelope, len(one.envelope.raw)
    dk = hashlib.sha256(envelope.sender.encode() + b"\0" + envelope.outer.mk).digest()[:16]
    sender = hashlib.sha256(envelope.sender.encode()).digest()[:16]
    position = envelope.certificate.record.position
    row = db.execute(
        "SELECT seq, id, head, at, state, g, s, bytes, strange, why, bd FROM mail WHERE agent = ? AND dk = ?",
        (box.agent, dk),
    ).fetchone()
    seq, id_, head, at, state, g, s, old_size, strange, why, bd = row or (0, b"", b"", 0, GONE, 0, 0, 0, 0, "", b"")
    refused, lapsed = why.startswith(REFUSED), why in (EXPIRED, HELD_TOO_LONG) or why.startswith(FOR_NOW)
    if row is not None and not lapsed and ((g, s) >= (position.g, position.s) or not (state == WAITING or refused)):
        if refused:
            return StoredItem(id=bytes(id_).hex(), code=REFUSED, message=why.removeprefix(f"{REFUSED}: "))
        if bd and bytes(bd) != envelope.outer.bd:  # an entry from before `bd` has none
            text = "the mailbox has a message of this sender with this key, and other words"
            sql = "SELECT envelope FROM mail WHERE agent = ? AND seq = ?"
            ((raw,),) = db.execute(sql, (box.agent, seq)).fetchall()
            proof = base64.b64encode(raw or b"").decode()
            return StoredItem(id=envelope.id.hex(), code=KEY_REUSED, message=text, proof=proof)
        return StoredItem(id=bytes(id_).hex(), seq=seq, head=bytes(head).hex(), at=at)
    fault = _find_full(box, size, one.strange, quota) or _find_over_share(db, box, sender, size, quota)
    if fault:
        return StoredItem(id=envelope.id.hex(), code=QUOTA, message=fault, wait_s=60)
    if row is not None:
        # The trigger counts in the table, `box` is written over it afterwards: both must say the same.
        db.execute(
            "UPDATE mail SET state = ?, envelope = NULL, dk = NULL, why = ? WHERE agent = ? AND seq = ?",
            (GONE, why if lapsed else "replaced", box.agent, seq),
        )
        _count(box, -1 if state == WAITING else 0, old_size, bool(strange))
    box.seq += 1
    box.head = next_head(box.head, box.seq, envelope.id)
    _count(box, 1, size, one.strange)
    db.execute(
        "INSERT INTO mail (agent, seq, id, head, dk, bd, sender, g, s, envelope, bytes, at, exp, strange) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(box.agent, box.seq, envelope.id, box.head, dk, envelope.outer.bd, sender, position.g, position.s),
            *(envelope.raw, size, now, now + envelope.outer.ttl, int(one.strange)),
        ),
    )
    return StoredItem(id=envelope.id.hex(), seq=box.seq, head=box.head.hex(), at=now)


def _count(box: _Box, count: int, size: int, strange: bool) -> None:
    box.waiting += count
    box.waiting_bytes += count * size
    box.strange += count * strange
    box.strange_bytes += count * size * strange


def _find_full(box: _Box, size: int, strange: bool, quota: Quota) -> str:
    if box.waiting >= quota.mails or box.waiting_bytes + size > quota.bytes:
        return "the mailbox is full: its agent has not taken its mail"
    if box.waiting + box.held >= 2 * quota.mails or box.waiting_bytes + box.held_bytes + size > 2 * quota.bytes:
        return "the mailbox is full: its agent has no backup yet of the mail that it has taken"
    if box.seq - box.folded >= BLOCKED_MAX:
        return f"the mailbox got {BLOCKED_MAX:,} mails since its agent took the oldest one"
    if strange and (box.strange >= quota.strange_mails or box.strange_bytes + size > quota.strange_bytes):
        return "the mailbox takes no more mail from agents that its agent does not know"
    return ""


def _find_over_share(db: Db, box: _Box, sender: bytes, size: int, quota: Quota) -> str:
    """Counted in the table, and only where the mailbox is half full: what waits, or all together."""
    mails, size_all = (
        box.waiting + max(box.waiting, box.held),
        box.waiting_bytes + max(box.waiting_bytes, box.held_bytes),
    )
    if mails < quota.mails and size_all + size <= quota.bytes:
        return ""
    its, its_bytes = db.execute(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM mail INDEXED BY mail_sender "
        "WHERE agent = ? AND sender = ? AND state < 2",
        (box.agent, sender),
    ).fetchall()[0]
    if its < max(1, quota.mails // quota.share) and its_bytes + size <= quota.bytes // quota.share:
        return ""
    return "the mailbox is more than half full, and this sender's share of it is used up"


def _open_box(db: Db, id: AgentId) -> _Box:
    sql = (
        "SELECT mailbox.head, mailbox.agent, seq, folded, waiting, waiting_bytes, strange, strange_bytes, held, "
        "held_bytes FROM mailbox "
        "JOIN agent ON agent.number = mailbox.agent WHERE agent.id = ?"
    )
    row = db.execute(sql, (id,)).fetchone()
    if row is None:
        head = first_head(id)
        db.execute(
            "INSERT INTO mailbox (agent, head, folded_head) SELECT number, ?, ? FROM agent WHERE id = ?",
            (head, head, id),
        )
        row = db.execute(sql, (id,)).fetchall()[0]
    return _Box(bytes(row[0]), *row[1:])


def page_of(db: Db, id: AgentId, *, after: int, most: int = PAGE_MAX) -> MailAnswer:
    """At most so many entries after a number; those that have left the table are not listed, and `after` says so."""
    row = db.execute(
        "SELECT mailbox.agent, seq, mailbox.head, folded, folded_head FROM mailbox "
        "JOIN agent ON agent.number = mailbox.agent WHERE agent.id = ?",
        (id,),
    ).fetchone()
    if row is None:
        return MailAnswer(to=id, after=0, head=first_head(id), items=(), last=0)
    agent, last, newest, folded, folded_head = row
    after = max(after, folded)
    if after >= last:
        return MailAnswer(to=id, after=last, head=bytes(newest), items=(), last=last)
    if after == folded:
        head = bytes(folded_head)
    else:
        head = bytes(db.execute("SELECT head FROM mail WHERE agent = ? AND seq = ?", (agent, after)).fetchall()[0][0])
    items: list[MailItem] = []
    size = 0
    for seq, env_id, at, state, raw in db.execute(
        "SELECT seq, id, at, state, CASE state WHEN 0 THEN envelope END FROM mail WHERE agent = ? AND seq > ? "
        "ORDER BY seq LIMIT ?",
        (agent, after, most),
    ):
        size += len(raw) if state == WAITING else 0
        if size > PAGE_BYTES_MAX and items:
            break
        items.append(MailItem(seq, bytes(env_id), at, bytes(raw) if state == WAITING else b""))
    return MailAnswer(to=id, after=after, head=head, items=tuple(items), last=last)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxState:
    e: int
    crt: bytes | None
    first: int  # that waits
    last: int
    head: bytes


def enter(db: Db, id: AgentId, *, e: int, crt: bytes) -> BoxState:
    """A login: its incarnation counts from now on. A lower one than was seen changes nothing."""
    box = _open_box(db, id)
    db.execute("UPDATE mailbox SET e = ?, crt = ? WHERE agent = ? AND (e < ? OR crt IS NULL)", (e, crt, box.agent, e))
    row = db.execute("SELECT e, crt FROM mailbox WHERE agent = ?", (box.agent,)).fetchall()[0]
    return BoxState(e=row[0], crt=bytes(row[1]), first=_first(db, box.agent, box.seq), last=box.seq, head=box.head)


def find_incarnation(db: Db, id: AgentId) -> tuple[int, bytes]:
    """The highest incarnation that has logged in, and its certificate."""
    row = db.execute(
        "SELECT e, crt FROM mailbox JOIN agent ON agent.number = mailbox.agent WHERE agent.id = ?", (id,)
    ).fetchone()
    return (0, b"") if row is None else (row[0], bytes(row[1] or b""))


def acknowledge(db: Db, id: AgentId, ack: Ack, *, now: int, quota: Quota) -> AckAnswer:
    agent = _open_box(db, id).agent
    if ack.rewind is not None:
        db.execute(
            "UPDATE mail SET state = ?, exp = max(exp, ?) WHERE agent = ? AND state = ? AND mark > ?",
            (WAITING, now + HELD_S, agent, HELD, ack.rewind),
        )
    for seq, entry in ack.received:
        db.execute(
            "UPDATE mail SET state = ?, mark = ?, exp = ? WHERE agent = ? AND seq = ? AND id = ? AND state = ?",
            (HELD, ack.mark, now + HELD_S, agent, seq, bytes.fromhex(entry), WAITING),
        )
    for seq, entry, why in ack.refused:
        reason = why if why.startswith(FOR_NOW) else f"{REFUSED}: {why}"
        db.execute(
            "UPDATE mail SET state = ?, envelope = NULL, why = ? WHERE agent = ? AND seq = ? AND id = ? AND state < ?",
            (GONE, reason[:REASON_CHARS_MAX], agent, seq, bytes.fromhex(entry), GONE),
        )
    if ack.secured is not None:
        db.execute(
            "UPDATE mail SET state = ?, envelope = NULL, why = 'secured' WHERE agent = ? AND state = ? AND mark <= ?",
            (GONE, agent, HELD, ack.secured),
        )
    if ack.contacts:
        count = db.execute("SELECT count(*) FROM contact WHERE agent = ?", (agent,)).fetchall()[0][0]
        for peer in ack.contacts[: max(0, CONTACTS_MAX - count)]:
            db.execute("INSERT OR IGNORE INTO contact VALUES (?, ?)", (agent, peer))
    box = _open_box(db, id)
    full = _percent(box, quota)
    return AckAnswer(to=id, waiting=box.waiting, held=box.held, full=full, first=_first(db, agent, box.seq))


def _percent(box: _Box, quota: Quota) -> int:
    """How much of the room is used, where the least is left."""
    return max(
        100 * box.waiting // quota.mails,
        100 * box.waiting_bytes // quota.bytes,
        50 * (box.waiting + box.held) // quota.mails,
        50 * (box.waiting_bytes + box.held_bytes) // quota.bytes,
    )


def is_contact(db: Db, id: AgentId, peer: str) -> bool:
    return (
        db.execute(
            "SELECT 1 FROM contact JOIN agent ON agent.number = contact.agent WHERE agent.id = ? AND peer = ?",
            (id, peer),
        ).fetchone()
        is not None
    )


def sweep(db: Db, *, now: int) -> int:
    """Expired mail becomes a tombstone; tombstones at the beginning of a chain leave after their time, or when there
    are too many. How many entries changed; SWEEP_MAX: there may be more."""
    rows = db.execute(
        "UPDATE mail SET state = ?, envelope = NULL, why = CASE state WHEN 0 THEN ? ELSE ? END "
        "WHERE n IN (SELECT n FROM mail WHERE state < ? AND exp < ? LIMIT ?) RETURNING n",
        (GONE, EXPIRED, HELD_TOO_LONG, GONE, now, SWEEP_MAX),
    ).fetchall()
    folded = 0
    boxes = db.execute(
        "SELECT mailbox.agent, folded, mailbox.seq FROM mailbox "
        "JOIN mail ON mail.agent = mailbox.agent AND mail.seq = folded + 1 "
        "WHERE mail.state = ? AND (max(mail.at, mail.exp) < ? OR mailbox.seq - folded > ?) LIMIT ?",
        (GONE, now - TOMBSTONE_S, ENTRIES_MAX, SWEEP_MAX),
    ).fetchall()
    for agent, before, last in boxes:
        folded += _fold(db, agent, before, last - ENTRIES_MAX, now=now, most=SWEEP_MAX - folded)
    return len(rows) + folded


def _fold(db: Db, agent: int, before: int, over: int, *, now: int, most: int) -> int:
    """`over`: entries up to this one leave without waiting for their time."""
    seq, head = before, b""
    for one, state, at, exp, its_head in db.execute(
        "SELECT seq, state, at, exp, head FROM mail WHERE agent = ? AND seq > ? ORDER BY seq LIMIT ?",
        (agent, before, most),
    ).fetchall():
        if state != GONE or (one > over and max(at, exp) >= now - TOMBSTONE_S):
            break
        seq, head = one, bytes(its_head)
    if seq > before:
        db.execute("DELETE FROM mail WHERE agent = ? AND seq <= ?", (agent, seq))
        db.execute("UPDATE mailbox SET folded = ?, folded_head = ? WHERE agent = ?", (seq, head, agent))
    return seq - before


def _first(db: Db, agent: int, last: int) -> int:
    row = db.execute(
        "SELECT min(seq) FROM mail INDEXED BY mail_waiting WHERE agent = ? AND state = 0", (agent,)
    ).fetchall()[0]
    return last + 1 if row[0] is None else row[0]
