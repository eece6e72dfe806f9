"""An embedded journal's file into an empty schema: the way back from `copying.py`, and the way in from SQLite.

One transaction makes the schema and fills it, reads every row back and compares it with the file. `ready` is called
then, as the last act before the commit: whoever moves the journal here takes the old one out of use in it, so that
there is no moment at which both can be opened. A kill before the commit leaves the schema as empty as it was.

Ids, record numbers, seals, hashes and the salt are those of the file. Not taken over: sessions count as ended, and
tables of Transactional tools stay where they are; they are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.errors import DuplicateSchema, DuplicateTable, UniqueViolation

from holdfast.core.ports import KeyRing
from holdfast.errors import CommitUnknown, JournalDamaged, NotNow
from holdfast.host.sqlite import Db, open_alone
from holdfast.journal.admin import JournalPosition
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.links import InDoubt, Link, transact
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.restoring import RAISE, begin_total
from holdfast.journal.postgres.sql_errors import translated
from holdfast.journal.postgres.verbs.guards import new_meta
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite.admin import prepare_copy
from holdfast.journal.sqlite.schema import find_tool_tables

# Of each table: the columns here, and what fills them from the file, in the order of a key.
_TABLES = {
    "session": (
        "s, session_id, worker, pid, host_id, boot_id, until_ms, until_boot_ms, ttl_ms, begun_ms, ended",
        "SELECT s, session_id, worker, pid, '', boot_id, 0, until_ms, 0, begun_ms, ended FROM session ORDER BY s",
    ),
    "task": (
        "t, task_id, name, fingerprint, state, epoch, seq, head, session, due_ms, created_ms, changed_ms, crashes, "
        "cancel_asked, keep_until_ms, key_id, data_key, erased_ms",
        "SELECT {} FROM task ORDER BY t",
    ),
    "record": (
        "t, seq, n, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, fingerprint, slot, quiet, body, hash",
        "SELECT {} FROM record ORDER BY t, seq",
    ),
    "inbox": (
        "n, mark, t, ordinal, kind, body, at_ms, applied",
        "SELECT n, CAST('copied ' || n AS BLOB), t, ordinal, kind, body, at_ms, applied FROM inbox ORDER BY n",
    ),
    "notice": ("notice_id, key_id, body, at_ms, told_ms", 'SELECT {} FROM notice ORDER BY notice_id COLLATE "BINARY"'),
    "blob": ("digest, size, key_id, at_ms, body", "SELECT {} FROM blob ORDER BY digest"),
    "blob_use": ("digest, t", "SELECT {} FROM blob_use ORDER BY digest, t"),
    "remark": ("n, remark_id, key_id, at_ms, body, prev_hash, hash", "SELECT {} FROM remark ORDER BY n"),
    "remark_mark": ("folder, name, number, at_ms", "SELECT folder, name, n, at_ms FROM remark_mark ORDER BY folder"),
}
_BOOLEAN = {"cancel_asked", "quiet", "applied"}
_PART = 500  # rows that are read back at a time


async def load_journal(
    place: PostgresPlace, copy: Path, *, keys: KeyRing, ready: Callable[[], object]
) -> JournalPosition:
    """Raises NotNow where there is a journal."""
    prepare_copy(copy, keys)
    try:
        link = await Link.open(place)
        try:
            with closing(open_alone(copy)) as db:
                return await transact(link, lambda link: _load(link, db, keys, ready))
        finally:
            await link.close()
    except InDoubt as error:
        raise CommitUnknown(f"the connection was lost while the copy was committed: {error}") from error
    except (DuplicateTable, DuplicateSchema, UniqueViolation) as error:
        raise NotNow(f"there is a journal at {place.shown} already") from error
    except psycopg.Error as error:
        raise translated(error) from error


async def _load(link: Link, db: Db, keys: KeyRing, ready: Callable[[], object]) -> JournalPosition:
    meta: dict[str, Any] = dict(db.execute("SELECT key, value FROM meta").fetchall())  # Any: SQLite's types
    journal_id, incarnation = str(meta["journal_id"]), int(meta["incarnation"])
    own = {**new_meta(keys, journal_id), "created_ms": str(meta["created_ms"])}
    if "task_salt" in meta:
        own["task_salt"] = bytes(meta["task_salt"]).hex()
    await schema.build(link, own, incarnation=incarnation, lost_after_ms=0)
    for table, (columns, query) in _TABLES.items():
        async with link.db.cursor().copy(link.place.sql(f"COPY $s.{table} ({columns}) FROM STDIN")) as target:
            for row in _rows(db, columns, query):
                await target.write_row(row)
        await _compare(link, db, table)
    newest = await _set_numbers(link, db, meta)
    await link.run(
        "UPDATE $s.incarnation SET lost_after_ms = %s, restored_ms = %s",
        (int(meta.get("lost_after_ms", 0)), int(meta.get("restored_ms", 0))),
    )
    await link.run(RAISE, (incarnation,))
    row = await link.one("SELECT coalesce(max(at_ms), 0) FROM $s.record")
    await begin_total(
        link, KeyWraps(keys).running_total(journal_id), last=newest, at_ms=0 if row is None else int(row[0])
    )
    position = JournalPosition(
        journal_id=journal_id, incarnation=incarnation, sequence=newest, tables_left=tuple(find_tool_tables(db))
    )
    ready()
    return position


def _rows(db: Db, columns: str, query: str) -> Iterator[tuple[Any, ...]]:
    names = columns.split(", ")
    booleans = [at for at, name in enumerate(names) if name in _BOOLEAN]
    for row in db.execute(query.format(columns)):
        if not booleans:
            yield row
            continue
        values = list(row)
        for at in booleans:
            values[at] = bool(values[at])
        yield tuple(values)


async def _compare(link: Link, db: Db, table: str) -> None:
    """Every row as it is in the database now against the file. Raises JournalDamaged."""
    columns, query = _TABLES[table]
    order = query.rpartition("ORDER BY ")[2].replace('COLLATE "BINARY"', 'COLLATE "C"')
    order = f'{order} COLLATE "C"' if order == "folder" else order
    wanted = _rows(db, columns, query)
    async for rows in link.parts(f"SELECT {columns} FROM $s.{table} ORDER BY {order}", rows=_PART):
        if [next(wanted, None) for _ in rows] != rows:
            raise JournalDamaged(f"a row of the table {table} is not the same in the database as in the copy")
    if next(wanted, None) is not None:
        raise JournalDamaged(f"the database has fewer rows of the table {table} than the copy")


async def _set_numbers(link: Link, db: Db, meta: dict[str, Any]) -> int:
    """What is drawn next follows what is there; the number of the newest record."""
    query = "SELECT (SELECT coalesce(max(n), 0) FROM record), (SELECT coalesce(max(n), 0) FROM remark)"
    newest, remark = cast("tuple[int, int]", db.execute(query).fetchone())
    drawn = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'inbox'").fetchone()
    await link.run("SELECT setval('$s.record_number', greatest(%s, 1), %s > 0)", (newest, newest))
    for table, column in (("task", "t"), ("session", "s")):
        await link.run(
            f"SELECT setval(pg_get_serial_sequence('$s.{table}', '{column}'), greatest(max({column}), 1), "
            f"max({column}) IS NOT NULL) FROM $s.{table}"
        )
    values = {
        "inbox": (0 if drawn is None else int(drawn[0]), b""),
        "remark": (remark, meta.get("remark_head", b"")),
        "remarks erased": (int(meta.get("remarks_erased", 0)), b""),
    }
    for name, (value, head) in values.items():
        await link.run("UPDATE $s.counter SET value = %s, head = %b WHERE name = %s", (value, head, name))
    return newest
