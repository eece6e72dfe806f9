"""The running total in the database: one row of `tally` for each lane, compared with the tasks that are there.

The sum of all rows is the total. Rows of lanes whose processes are long gone are put together by retention, so that
their number stays small; a lane that finds its row gone begins a new one. A row whose own columns are damaged is not a
row that was put back: where a head is not the hash of the record that it names, that record's hash is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from psycopg import Connection

from holdfast.errors import RowsPutBack
from holdfast.journal.postgres.links import BEGIN_READING, Link
from holdfast.journal.postgres.place import PostgresPlace, Row
from holdfast.journal.sqlite.totals import PUT_BACK
from holdfast.journal.total import MODULUS, RunningTotal

VERSION = (
    "SELECT (SELECT sum(stamp) FROM $s.tally), (SELECT sum(value) FROM $s.counter), (SELECT max(s) FROM $s.session)"
)
_PART = 2_000  # heads at a time
_TASKS = "SELECT head, erased_ms IS NOT NULL FROM $s.task"
_TASKS_BY_RECORD = (
    "SELECT coalesce(r.hash, k.head), k.erased_ms IS NOT NULL FROM $s.task k "
    "LEFT JOIN $s.record r ON r.t = k.t AND r.seq = k.seq AND k.erased_ms IS NULL"
)


async def version(link: Link) -> Row | None:
    """Another one after every commit that others may wait for; a small read."""
    return await link.one(VERSION)


async def check(link: Link, running: RunningTotal) -> None:
    """Raises RowsPutBack. In small parts: the loop goes on meanwhile."""
    await link.db.execute(BEGIN_READING)
    try:
        wanted = _wanted(await link.run("SELECT w, total FROM $s.tally"), running)
        for query in (_TASKS, _TASKS_BY_RECORD):
            total = 0
            async for rows in link.parts(query, rows=_PART):
                total += running.of(rows)
            if total % MODULUS == wanted:
                return
    finally:
        await link.roll_back()
    raise RowsPutBack(PUT_BACK)


def is_put_back(db: Connection[Row], place: PostgresPlace, running: RunningTotal) -> bool:
    """Whether tasks are missing or older than the journal left them. In a transaction of the caller's."""
    wanted = _wanted(db.execute(place.sql("SELECT w, total FROM $s.tally"), binary=True), running)
    return all(running.of(_heads(db, place, query)) != wanted for query in (_TASKS, _TASKS_BY_RECORD))


def _wanted(rows: Iterable[Row], running: RunningTotal) -> int:
    return sum(running.show(bytes(stored), w.encode()) for w, stored in rows) % MODULUS


def _heads(db: Connection[Row], place: PostgresPlace, query: str) -> Iterator[Any]:
    with db.cursor("heads", binary=True) as cursor:
        cursor.itersize = _PART
        yield from cursor.execute(place.sql(query))
