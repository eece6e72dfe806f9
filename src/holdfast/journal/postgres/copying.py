"""A logical copy: the journal as one embedded journal's file, from one consistent read.

It holds the same journal id, incarnation, tasks, records, seals and hashes, so that paper and one backup bring the
agent back without any server. A copy is made without keys, and putting the parts of the running total together takes
them. So the file has the schema of before the total, and the parts as they are; whoever opens it raises the schema, and
makes one total of them. Tables of Transactional tools are not in it: they are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
from psycopg import Connection

from holdfast.errors import JournalDamaged
from holdfast.host.sqlite import WRITE, open_db
from holdfast.journal.admin import JournalPosition
from holdfast.journal.postgres import totals
from holdfast.journal.postgres.links import BEGIN_READING
from holdfast.journal.postgres.place import PostgresPlace, Row
from holdfast.journal.postgres.sql_errors import in_our_words
from holdfast.journal.postgres.verbs import statements
from holdfast.journal.sqlite.opening.open import APPLICATION_ID
from holdfast.journal.sqlite.schema import schema_step
from holdfast.journal.sqlite.totals import PARTS

SCHEMA = 2  # with remarks, without a running total
_PLAIN = {
    "session": "s, session_id, worker, pid, boot_id, until_boot_ms, begun_ms, ended",
    "inbox": "n, t, ordinal, kind, body, at_ms, applied::integer",
    "notice": "notice_id, key_id, body, at_ms, told_ms",
    "blob": "digest, size, key_id, at_ms, body",
    "blob_use": "digest, t",
    "remark": "n, remark_id, key_id, at_ms, body, prev_hash, hash",
}
_TASKS = (
    "SELECT k.t, k.task_id, k.name, k.fingerprint, k.state, coalesce(r.epoch, k.epoch), k.seq, k.head, "
    "coalesce(r.n, 0), k.session, k.due_ms, k.created_ms, k.changed_ms, k.crashes, k.cancel_asked::integer, "
    "k.keep_until_ms, k.key_id, k.data_key, k.erased_ms "
    "FROM $s.task k LEFT JOIN $s.record r ON r.t = k.t AND r.seq = k.seq"
)
_RECORDS = (
    "SELECT n, t, seq, coalesce(lag(n) OVER (PARTITION BY t ORDER BY seq), 0), kind, what, ordinal, epoch, at_ms, "
    "boot_ms, effect_key, fingerprint, slot, quiet::integer, body, hash FROM $s.record"
)


def copy_journal(place: PostgresPlace, to: Path) -> tuple[JournalPosition, Row]:
    """Into the empty file `to`; also a value that changes with every commit. Raises JournalDamaged and what a database
    that cannot be reached raises."""
    with in_our_words(), closing(place.connect_at_once()) as source:
        source.execute(BEGIN_READING)
        try:
            with closing(open_db(str(to), flags=WRITE)) as db:
                return _copy(source, place, db), source.execute(place.sql(totals.VERSION)).fetchall()[0]
        except apsw.Error as error:
            raise JournalDamaged(f"the copy of {place.shown} cannot be written: {error}") from error


def _copy(source: Connection[Row], place: PostgresPlace, db: Any) -> JournalPosition:
    def read(query: str) -> Iterator[Row]:
        with source.cursor("copy", binary=True) as cursor:
            cursor.itersize = 1_000
            yield from cursor.execute(place.sql(query))

    db.pragma("synchronous", "FULL")
    db.execute("BEGIN IMMEDIATE")
    db.execute("".join(schema_step(number) for number in range(1, SCHEMA + 1))).fetchall()
    for table, columns in _PLAIN.items():
        _insert(db, table, read(f"SELECT {columns} FROM $s.{table}"))
    _insert(db, "task", read(_TASKS))
    _insert(db, "record", read(_RECORDS))
    meta = {str(key): str(value) for key, value in read("SELECT key, value FROM $s.meta")}
    (incarnation,) = read("SELECT number, lost_after_ms, restored_ms FROM $s.incarnation")
    parts = {str(w): bytes(total).hex() for w, total in read("SELECT w, total FROM $s.tally")}
    _, tools = statements.names(place.schema, meta["journal_id"])
    left = [str(name) for (name,) in read(f"SELECT tablename FROM pg_tables WHERE schemaname = '{tools}' ORDER BY 1")]
    (newest,) = read("SELECT coalesce(max(last), 0) FROM $s.tally")
    counters = {str(name): (value, head) for name, value, head in read("SELECT name, value, head FROM $s.counter")}
    values: dict[str, object] = {
        "journal_id": meta["journal_id"],
        "incarnation": incarnation[0],
        "created_ms": int(meta["created_ms"]),
        "key_check": bytes.fromhex(meta["key_check"]),
    }
    values[PARTS] = msgspec.json.encode(parts).decode()
    if "task_salt" in meta:
        values["task_salt"] = bytes.fromhex(meta["task_salt"])
    if incarnation[2]:
        values |= {"lost_after_ms": incarnation[1], "restored_ms": incarnation[2]}
    if counters["remark"][1]:
        values["remark_head"] = counters["remark"][1]
    if counters["remarks erased"][0]:
        values["remarks_written"] = counters["remarks erased"][0]
    _insert(db, "meta", iter(values.items()))
    db.pragma("application_id", APPLICATION_ID)
    db.pragma("user_version", SCHEMA)
    db.execute("COMMIT")
    return JournalPosition(
        journal_id=meta["journal_id"],
        incarnation=incarnation[0],
        sequence=newest[0],
        tables_left=tuple(f"{tools}.{name}" for name in left),
    )


def _insert(db: Any, table: str, rows: Iterator[Any]) -> None:
    for row in rows:
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row))
