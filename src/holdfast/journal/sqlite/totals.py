"""The running total in the file: stored beside the newest record, compared with the tasks that are there.

A row whose own columns are damaged is not a row that was put back: where a head is not the hash of the record that it
names, that record's hash is counted. The task is then found and parked by its chain, and the others go on.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import RowsPutBack
from holdfast.host.sqlite import Db, open_to_read
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.sql_errors import in_our_words
from holdfast.journal.total import MODULUS, NONCE_BYTES, RunningTotal

SINCE = 3  # the schema that brought it
PARTS = "total_parts"  # in `meta` of a copy that was made without keys: the totals of a journal with several writers
PUT_BACK = (
    "the running total of this journal does not match its tasks: rows of a task were put back to an older state, "
    "or a task was deleted, by something other than Holdfast"
)
_NEWEST = "SELECT hash, total FROM record ORDER BY n DESC LIMIT 1"
_TASKS = "SELECT head, erased_ms NOTNULL FROM task"
_TASKS_BY_RECORD = (
    "SELECT coalesce(r.hash, t.head), t.erased_ms NOTNULL FROM task t "
    "LEFT JOIN record r ON r.n = t.last AND r.t = t.t AND t.erased_ms IS NULL"
)
_SET = "UPDATE record SET total = ? WHERE n = (SELECT max(n) FROM record)"


def running_total(db: Db, wraps: KeyWraps) -> RunningTotal:
    row = db.execute("SELECT value FROM meta WHERE key = 'journal_id'").fetchone()
    return wraps.running_total("" if row is None else str(row[0]))


def read_total(db: Db, running: RunningTotal) -> int:
    """The total that is stored; never raises over a row of ours: what is no total fits nothing."""
    row = db.execute(_NEWEST).fetchone()
    if row is None:
        return 0
    newest, stored = (one if isinstance(one, bytes) else b"" for one in row)
    return running.show(stored, newest)


def joined(parts: str, running: RunningTotal) -> int:
    """The total of which these are the parts: each with its name, in JSON. What is no part fits nothing."""
    try:
        found = decode_json(parts, dict[str, str])
        return sum(running.show(bytes.fromhex(stored), name.encode()) for name, stored in found.items()) % MODULUS
    except (msgspec.MsgspecError, ValueError):
        return 0


def count_total(db: Db, running: RunningTotal) -> int:
    """The total of the tasks that are there."""
    return running.of((head, bool(erased)) for head, erased in db.execute(_TASKS))


def is_put_back(db: Db, running: RunningTotal) -> bool:
    """Whether tasks are missing or older than the journal left them. In a transaction of the caller's."""
    wanted = read_total(db, running)
    if count_total(db, running) == wanted:
        return False
    return running.of((head, bool(erased)) for head, erased in db.execute(_TASKS_BY_RECORD)) != wanted


def store_total(db: Db, running: RunningTotal, total: int) -> bytes:
    """Store it beside the newest record; what was stored."""
    row = db.execute(_NEWEST).fetchone()
    if row is None:
        return b""
    stored = running.hide(total, cast(bytes, row[0]), os.urandom(NONCE_BYTES))
    db.execute(_SET, (stored,))
    return stored


def check_not_put_back(db: Db, running: RunningTotal) -> None:
    """Raises RowsPutBack."""
    db.execute("BEGIN")  # one moment for both sides
    try:
        found = is_put_back(db, running)
    finally:
        db.execute("COMMIT")
    if found:
        raise RowsPutBack(PUT_BACK)


def check_file(path: Path, running: RunningTotal) -> float:
    """The same with a connection of its own, for a thread; the processor time that it took.
    Raises RowsPutBack, JournalDamaged."""
    began = time.thread_time()
    with in_our_words(), closing(open_to_read(path)) as db:
        check_not_put_back(db, running)
    return time.thread_time() - began
