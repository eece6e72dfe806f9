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

VERSION_OF = "(SELECT sum(stamp) FROM $s.tally), (SELECT sum(value) FROM $s.counter), (SELECT max(s) FROM $s.session)"
VERSION = f"SELECT {VERSION_OF}"
_VERSION_BUT = VERSION.replace("$s.tally", "$s.tally WHERE w <> %s")
_PART = 2_000  # heads at a time
_TASKS = "SELECT head, erased_ms IS NOT NULL FROM $s.task"
_AT_ONCE = f"SELECT w, total, NULL, NULL FROM $s.tally UNION ALL (SELECT NULL, NULL, q.* FROM ({_TASKS} LIMIT {{}}) q)"
_TASKS_BY_RECORD = (
    "SELECT coalesce(r.hash, k.head), k.erased_ms IS NOT NULL FROM $s.task k "
    "LEFT JOIN $s.record r ON r.t = k.t AND r.seq = k.seq AND k.erased_ms IS NULL"
)


async def version(link: Link, *, but: str = "") -> Row | None:
    """Another one after every commit that others may wait for; a small read. `but`: a lane that does not count."""
    return await link.one(_VERSION_BUT, (but,))


async def check(link: Link, running: RunningTotal, *, tasks: int = 0) -> int:
    """How many tasks there are. `tasks`: how many there were; few are read at once, many in small parts: the loop goes
    on meanwhile. Raises RowsPutBack."""
    if tasks < _PART:
        rows = await link.run(_AT_ONCE.format("%s"), (_PART,))
        heads = [row[2:] for row in rows if row[0] is None]
        if len(heads) < _PART and running.of(heads) == _wanted(
            (row[:2] for row in rows if row[0] is not None), running
        ):
            return len(heads)
    return await _check_in_parts(link, running)


async def _check_in_parts(link: Link, running: RunningTotal) -> int:
    await link.db.execute(BEGIN_READING)
    try:
        wanted = _wanted(await link.run("SELECT w, total FROM $s.tally"), running)
        for query in (_TASKS, _TASKS_BY_RECORD):
            total = tasks = 0
            async for rows in link.parts(query, rows=_PART):
                total, tasks = total + running.of(rows), tasks + len(rows)
            if total % MODULUS == wanted:
                return tasks
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
