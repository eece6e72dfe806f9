"""Records as rows: sealing, chaining and reading back."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.core.ids import TaskId, task_id_bytes, task_id_from_bytes
from holdfast.core.ports import Sealer
from holdfast.core.step import Event
from holdfast.errors import InvariantViolated, JournalDamaged
from holdfast.host.sqlite import Db, Row
from holdfast.journal.builds import name_and_build
from holdfast.journal.chain import first_link, next_link, place
from holdfast.journal.contract import TaskRow
from holdfast.journal.records import RECORDS_MAX, Body, NewRecord, Record, RecordKind, TaskState, TaskView, fold
from holdfast.journal.seal import PACK_MIN, packed, unpacked
from holdfast.journal.sqlite.txn import NO_TOTAL, Txn

_encode = msgspec.json.Encoder().encode
_decode = json_decoder(Body).decode

COLUMNS = "n, seq, prev, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, fingerprint, slot, quiet, body, hash"

_LINKED = ", ".join(f"r.{column}" for column in COLUMNS.split(", "))
ONE = f"SELECT {COLUMNS} FROM record WHERE n = ?"
CHAIN = (
    f"WITH RECURSIVE back AS (SELECT {COLUMNS} FROM record WHERE n = ? UNION ALL "
    f"SELECT {_LINKED} FROM back JOIN record r ON r.n = back.prev) SELECT {COLUMNS} FROM back LIMIT ?"
)

# What a damaged column can break: SQLite gives back whatever its bytes say.
BAD_COLUMN = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)


class Tail(msgspec.Struct, gc=False, eq=False):
    """The end of a task's chain while records are added to it."""

    seq: int
    head: bytes
    last: int


def add_records(
    txn: Txn, tail: Tail, entries: Sequence[NewRecord], *, row: int, task_id: bytes, epoch: int, sealer: Sealer
) -> list[int]:
    """Insert the entries behind the tail, with the commit at the latest, and move it along; returns their numbers."""
    before = tail.head if tail.last else b""
    rows = make_rows(txn, tail, entries, row=row, task_id=task_id, epoch=epoch, sealer=sealer)
    txn.add_rows(rows, before=before)
    txn.write_part()
    return [made[0] for made in rows]


def make_rows(
    txn: Txn, tail: Tail, entries: Sequence[NewRecord], *, row: int, task_id: bytes, epoch: int, sealer: Sealer
) -> list[Row]:
    """The entries as rows behind the tail, which moves along; nothing is written yet."""
    rows: list[Row] = []
    number, at_ms, boot_ms, nonces = txn.number, txn.at_ms, txn.boot_ms, txn.nonces
    seq, head, last = tail.seq, tail.head, tail.last
    if seq + len(entries) >= RECORDS_MAX:
        raise InvariantViolated("limit", f"a task has at most {RECORDS_MAX:,} records")
    for entry in entries:
        seq, number, before = seq + 1, number + 1, last
        kind, ordinal, slot, quiet = int(entry.kind), entry.ordinal, entry.slot, int(entry.quiet)
        what, key, mark = pack_events(entry.events), entry.effect_key, entry.fingerprint
        plain = _encode(entry.body)
        if len(plain) >= PACK_MIN:
            plain = packed(plain)
        body = sealer.seal(plain, place(task_id, seq, kind, ordinal, epoch), nonces.next())
        # Positions, not names, in the order of the chain: every record passes here.
        head = next_link(head, seq, kind, what, epoch, at_ms, boot_ms, slot, quiet, ordinal, key, mark, body)
        place_in = (number, row, seq, before, kind, what, ordinal, epoch, at_ms, boot_ms)
        rows.append((*place_in, key, mark, slot, quiet, body, head, NO_TOTAL))
        last = number
    tail.seq, tail.head, tail.last = seq, head, last
    return rows


@functools.lru_cache(256)
def pack_events(events: tuple[Event, ...]) -> int:
    what = 0
    for event in reversed(events):
        what = what << 8 | event
    return what


def unpack_events(what: int) -> tuple[Event, ...]:
    events: list[Event] = []
    while what:
        events.append(Event(what & 0xFF))
        what >>= 8
    return tuple(events)


def read_view(db: Db, *, task_id: TaskId, seq: int, head: bytes, last: int, sealer: Sealer) -> TaskView:
    """Walk the chain back from its head, verify each link, fold it forward.
    Raises JournalDamaged at the first record that is missing, changed or out of place."""
    # Most tasks are claimed first with one record: to find it, no walk is needed.
    rows = (db.execute(CHAIN, (last, seq + 2)) if seq else db.execute(ONE, (last,))).fetchall()
    if rows and rows[-1][2]:
        raise JournalDamaged(f"task {task_id}: record number {rows[-1][2]} is missing")
    if len(rows) != seq + 1:
        raise JournalDamaged(f"task {task_id}: the journal has {len(rows)} of its {seq + 1} records")
    raw_id = task_id_bytes(task_id)
    link = first_link(raw_id)
    view = TaskView(task_id)
    for row in reversed(rows):
        link = verify_link(link, row, where=f"task {task_id}")
        fold(view, open_record(row, raw_id, sealer))
    if link != head:
        raise JournalDamaged(f"task {task_id}: its records do not match the hash that the journal keeps of them")
    return view


def verify_link(before: bytes, row: Row, *, where: str) -> bytes:
    try:
        link = next_link(
            before,
            seq=row[1],
            kind=row[3],
            what=row[4],
            ordinal=row[5],
            epoch=row[6],
            at_ms=row[7],
            boot_ms=row[8],
            effect_key=row[9],
            fingerprint=row[10],
            slot=row[11],
            quiet=bool(row[12]),
            body=row[13],
        )
    except Exception as error:  # a damaged column can break any of the conversions
        raise JournalDamaged(f"{where}: record {row[1]} (number {row[0]}) is malformed") from error
    if link != row[14]:
        raise JournalDamaged(f"{where}: record {row[1]} (number {row[0]}) was changed")
    return link


def open_record(row: Row, task_id: bytes, sealer: Sealer) -> Record:
    try:
        number, seq, _, kind, what, ordinal, epoch, at_ms, boot_ms, key, mark, slot, quiet, sealed, _ = row
        where = place(task_id, seq, kind, ordinal, epoch)
        body, events = _decode(unpacked(sealer.open(sealed, where))), unpack_events(what)
        kind, quiet = RecordKind(kind), bool(quiet)
        return Record(number, seq, kind, ordinal, events, epoch, at_ms, boot_ms, key, mark, slot, quiet, body)
    except BAD_COLUMN as error:
        raise JournalDamaged(f"record number {row[0]} cannot be read: {error}") from error


TASK_COLUMNS = (
    "t.task_id, t.name, t.state, t.epoch, coalesce(s.session_id, ''), t.created_ms, t.changed_ms, "
    "t.due_ms, t.seq + 1, t.crashes, t.cancel_asked, t.erased_ms"
)
TASK_FROM = "FROM task t LEFT JOIN session s ON s.s = t.session"


def task_row(row: Row) -> TaskRow:
    try:
        name, build = name_and_build(row[1])
        return TaskRow(
            task_id=task_id_from_bytes(row[0]),
            name=name,
            build=build,
            state=TaskState(row[2]),
            epoch=row[3],
            session_id=row[4],
            created_ms=row[5],
            changed_ms=row[6],
            due_ms=row[7],
            records=row[8],
            crashes=row[9],
            cancel_asked=bool(row[10]),
            erased=row[11] is not None,
        )
    except BAD_COLUMN as error:
        raise JournalDamaged(f"the row of a task cannot be read: {error}") from error
