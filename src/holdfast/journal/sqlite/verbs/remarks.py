"""Remarks: what Holdfast has to write into the agent's memory files, kept until it is there.

True at all times: remarks are numbered without a gap from the oldest that is kept to the newest; each is hashed over
the one before, and `meta.remark_head` is the hash of the newest, so that a changed, moved or missing one is found, also
at the end. A remark of a task is written by the commit that appends its record, and its id is the task's and the
ordinal: code that is run again finds its record and adds none. `remark_mark` says for each agent folder up to which
number they are in its files; only those that all of them have are ever erased, and never the newest, because numbers
must not fall. `meta.remarks_erased` says up to which number some are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.core.ids import TaskId
from holdfast.errors import HoldfastError, JournalDamaged
from holdfast.host.sqlite import Db, Row
from holdfast.journal import rules
from holdfast.journal.chain import first_remark_link, next_remark_link
from holdfast.journal.contract import KeptRemark, Remark, RemarkMark
from holdfast.journal.records import NewRecord
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.rows import BAD_COLUMN
from holdfast.journal.sqlite.txn import Txn

COLUMNS = "n, remark_id, key_id, at_ms, body, prev_hash, hash"
SINCE = 2  # the schema that brought them
HEAD = "remark_head"
MARKS_SINCE = 4
ERASED = "remarks_erased"
ERASED_BEFORE_4 = "remarks_written"  # up to there some might be gone

_encode = msgspec.json.Encoder().encode
_decode = json_decoder(Remark).decode


def add(txn: Txn, remarks: Sequence[Remark], wraps: KeyWraps) -> list[int]:
    """Add those whose id is new; the numbers of all."""
    for remark in remarks:
        rules.check_remark(remark)
    return [_add(txn, remark, wraps) for remark in remarks]


def add_of_task(txn: Txn, task_id: TaskId, entry: NewRecord, wraps: KeyWraps) -> None:
    _add(txn, rules.remark_of(task_id, entry), wraps)


def _add(txn: Txn, remark: Remark, wraps: KeyWraps) -> int:
    db = txn.db
    found = db.execute("SELECT n FROM remark WHERE remark_id = ?", (remark.remark_id,)).fetchone()
    if found is not None:
        return cast(int, found[0])
    newest = db.execute("SELECT n, hash FROM remark ORDER BY n DESC LIMIT 1").fetchone()
    number, before = (0, _first(db)) if newest is None else cast("tuple[int, bytes]", newest)
    number += 1
    key_id = wraps.current
    body = wraps.payload(key_id).seal(_encode(remark), remark_place(number, remark.remark_id))
    link = next_remark_link(
        before, number=number, at_ms=txn.at_ms, key_id=key_id, remark_id=remark.remark_id, body=body
    )
    db.execute(
        f"INSERT INTO remark ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (number, remark.remark_id, key_id, txn.at_ms, body, before, link),
    )
    _set(db, HEAD, link)
    return number


def read_after(db: Db, number: int, limit: int, wraps: KeyWraps) -> list[KeptRemark]:
    """Those with a higher number, in order. Raises JournalDamaged where one was changed."""
    rows = db.execute(f"SELECT {COLUMNS} FROM remark WHERE n > ? ORDER BY n LIMIT ?", (number, limit)).fetchall()
    before = None
    kept: list[KeptRemark] = []
    for row in rows:
        kept.append(open_remark(row, wraps, before=before))
        before = (row[0], row[6])
    return kept


def find_link(db: Db, number: int) -> bytes | None:
    row = db.execute("SELECT hash FROM remark WHERE n = ?", (number,)).fetchone()
    return None if row is None else cast(bytes, row[0])


def marks(db: Db) -> list[RemarkMark]:
    rows = db.execute("SELECT folder, name, n, at_ms FROM remark_mark ORDER BY n, folder").fetchall()
    return [RemarkMark(folder=folder, name=name, number=number, at_ms=at_ms) for folder, name, number, at_ms in rows]


def close(txn: Txn, number: int, folder: str, name: str) -> None:
    """They are in this folder's files up to this one. A lower number than before changes nothing."""
    newest = txn.db.execute("SELECT max(n) FROM remark").fetchone()
    number = min(number, 0 if newest is None or newest[0] is None else cast(int, newest[0]))
    if number:
        txn.db.execute(
            "INSERT INTO remark_mark VALUES (?, ?, ?, ?) ON CONFLICT (folder) DO UPDATE "
            "SET name = excluded.name, n = excluded.n, at_ms = excluded.at_ms WHERE excluded.n > n",
            (folder, name, number, txn.at_ms),
        )


def forget(txn: Txn, folder: str) -> bool:
    txn.db.execute("DELETE FROM remark_mark WHERE folder = ?", (folder,))
    return txn.db.changes() == 1


def erase(txn: Txn, *, keep_ms: int) -> None:
    """Forget those that are in all their files since long; the newest stays."""
    gone = txn.db.execute(
        "DELETE FROM remark WHERE at_ms < ? AND n <= (SELECT min(n) FROM remark_mark) "
        "AND n < (SELECT max(n) FROM remark) RETURNING n",
        (txn.at_ms - keep_ms,),
    ).fetchall()
    if gone:
        _set(txn.db, ERASED, max(cast(int, number) for (number,) in gone))


def find_damage(db: Db, wraps: KeyWraps) -> list[str]:
    """One line for each finding; of a journal whose schema has remarks."""
    findings: list[str] = []
    before: tuple[int, bytes] | None = None
    for row in db.execute(f"SELECT {COLUMNS} FROM remark ORDER BY n"):
        try:
            open_remark(row, wraps, before=before)
            if before is None and row[0] == 1 and row[5] != _first(db):
                raise JournalDamaged("remark 1 belongs to another journal")
            if before is None and row[0] - 1 > _erased(db):
                raise JournalDamaged(f"remark {row[0]}: an earlier remark is missing")
        except (HoldfastError, ValueError, TypeError) as error:
            findings.append(str(error))
        before = (row[0], row[6])
    meta = db.execute("SELECT value FROM meta WHERE key = ?", (HEAD,)).fetchone()
    if (None if meta is None else meta[0]) != (None if before is None else before[1]):
        findings.append("remarks: the newest is missing, or its hash differs from the recorded one")
    newest = 0 if before is None else before[0]
    numbers = [_erased(db), *(one.number for one in (marks(db) if _has_marks(db) else ()))]
    if not all(0 <= number <= newest for number in numbers):
        findings.append("remarks: more are marked as written than exist")
    return findings


def _has_marks(db: Db) -> bool:
    return cast(int, db.pragma("user_version")) >= MARKS_SINCE


def _erased(db: Db) -> int:
    key = ERASED if _has_marks(db) else ERASED_BEFORE_4
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return 0 if row is None else int(str(row[0]))


def open_remark(row: Row, wraps: KeyWraps, *, before: tuple[int, bytes] | None) -> KeptRemark:
    try:
        number, remark_id, key_id, at_ms, body, prev, link = row
        wanted = next_remark_link(prev, number=number, at_ms=at_ms, key_id=key_id, remark_id=remark_id, body=body)
        if wanted != link:
            raise JournalDamaged(f"remark {number} was changed")
        if before is not None and before != (number - 1, prev):
            raise JournalDamaged(f"remark {number} follows remark {before[0]}: a remark is missing")
        remark = _decode(wraps.payload(key_id).open(body, remark_place(number, remark_id)))
        return KeptRemark(number=number, remark=remark, at_ms=at_ms, link=link)
    except BAD_COLUMN as error:
        raise JournalDamaged(f"remark {row[0]} cannot be read: {error}") from error


def _first(db: Db) -> bytes:
    row = db.execute("SELECT value FROM meta WHERE key = 'journal_id'").fetchone()
    if row is None:
        raise JournalDamaged("the journal's table `meta` has no row 'journal_id'")
    return first_remark_link(str(row[0]))


def _set(db: Db, key: str, value: int | bytes) -> None:
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def remark_place(number: int, remark_id: str) -> bytes:
    return b"remark\0%d\0%s" % (number, remark_id.encode())
