"""The append of a task that runs alone in its process: one prepared statement, no turn of the event loop.

Such a task waits for its commit anyway, and there is no other to share one with. So the statement is sent at once, and
the answer awaited right there for `BRIEF_MS`: a server on the same machine or in the same rack has answered by then. The
loop stands still that long and no longer; what has not come is awaited as everything else is (`Answer.wait`). Where the
server is often slower than that, nothing is waited for in this way for a while.

The statement does what `writer.ADD` does for a batch, with plain values instead of arrays: the server then plans it
once. It is prepared only where the connection leads to the server itself. Behind a pooler in transaction mode the next
transaction may run on another connection of the server, which does not know the statement. A pooler is recognised by the
process number that it gives at the start: not that of the server's process. The statement's name is a hash of its text,
so that it can never be another statement.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus

from holdfast.journal.postgres.place import PostgresPlace, Row

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from holdfast.journal.postgres.lane import TallyRow
    from holdfast.journal.postgres.links import Link

BRIEF_MS = 2
SLOW = 8  # so many in a row that took longer: the server is far away, or busy
REST = 256  # then so many are not waited for in this way

RECORDS_MAX = 2  # a step that ends, and the next one that begins; more go as a batch

_ONE = (
    "WITH settings AS MATERIALIZED (SELECT set_config('synchronous_commit', 'on', true) AS synced, "
    "set_config('lock_timeout', '10000', true) AS waits), "
    "moved AS (UPDATE $s.task AS k SET seq = $3::integer + {count}, head = {head}, "
    "changed_ms = greatest(k.changed_ms, $4::bigint), crashes = CASE WHEN $6::boolean THEN 0 ELSE k.crashes END "
    "FROM settings WHERE k.t = $1::bigint AND k.epoch = $2::bigint AND k.seq = $3 AND k.state = 'running' RETURNING 1), "
    "kept AS (INSERT INTO $s.record (n, t, seq, epoch, at_ms, boot_ms, kind, what, ordinal, effect_key, fingerprint, "
    "slot, quiet, body, hash) VALUES {records} RETURNING n, seq), "
    "counted AS (UPDATE $s.tally SET stamp = stamp + 1, total = $7::bytea, at_ms = greatest(at_ms, $4), "
    "last = greatest(last, (SELECT max(n) FROM kept)) WHERE w = $8::text AND stamp = $9::bigint RETURNING 1) "
    "SELECT 1 / (EXISTS (SELECT 1 FROM moved) AND EXISTS (SELECT 1 FROM counted))::integer, $now, {numbers}"
)
_COMMON = 9
_RECORD = ("smallint", "bigint", "text", "bytea", "bytea", "smallint", "boolean", "bytea", "bytea")


def _statement(count: int) -> str:
    """For so many records."""
    rows: list[str] = []
    for nth in range(count):
        own = (f"${_COMMON + nth * len(_RECORD) + column}::{kind}" for column, kind in enumerate(_RECORD, 1))
        rows.append(f"(nextval('$s.record_number'), $1, $3 + {nth + 1}, $2, $4, $5::bigint, {', '.join(own)})")
    return _ONE.format(
        count=count,
        head=f"${_COMMON + count * len(_RECORD)}::bytea",
        records=", ".join(rows),
        numbers=", ".join(f"(SELECT n FROM kept WHERE seq = $3 + {nth + 1})" for nth in range(count)),
    )


_pack8, _pack4, _pack2 = (struct.Struct(form).pack for form in ("!q", "!i", "!h"))
_TRUTH = (b"\0", b"\1")


@dataclass(slots=True)
class Answer:
    """What has come of the answer to a statement that was sent."""

    link: Link
    results: list[PGresult] = field(default_factory=list[Any])
    whole: bool = False  # also that the server is ready again: only then is the commit made
    error: psycopg.Error | None = None

    @property
    def is_good(self) -> bool:
        return self.whole and all(one.status == ExecStatus.TUPLES_OK for one in self.results)

    async def wait(self) -> tuple[int, list[int]]:
        """The time of the database, and the numbers of the records. Raises psycopg.Error."""
        if self.error is not None:
            raise self.error
        if not self.whole:
            self.results += await self.link.db.wait(generators.execute(self.link.db.pgconn))
            self.whole = True
        return self.read()

    def read(self) -> tuple[int, list[int]]:
        """The same of an answer that is whole."""
        for one in self.results:
            if one.status != ExecStatus.TUPLES_OK:
                raise psycopg.errors.error_from_result(one)
        (row,) = self.results
        now_ms, *numbers = (int.from_bytes(row.get_value(0, column) or b"") for column in range(1, row.nfields))
        return now_ms, numbers


class Lone:
    """The statements, and the connections over which they are prepared."""

    def __init__(self, place: PostgresPlace) -> None:
        self._texts = [place.sql(_statement(count)) for count in range(1, RECORDS_MAX + 1)]
        self._names = [b"holdfast_" + sha256(text).hexdigest()[:16].encode() for text in self._texts]
        self._formats = [(1,) * (_COMMON + count * len(_RECORD)) for count in range(1, RECORDS_MAX + 1)]
        self._known: WeakKeyDictionary[object, bool] = WeakKeyDictionary()
        self._slow = self._rest = 0

    async def prepare(self, link: Link) -> None:
        """Over a new connection: prepare the statements, unless there is a pooler in between."""
        if link.db in self._known:
            return
        row = await link.one("SELECT pg_backend_pid()")
        direct = row is not None and row[0] == link.db.info.backend_pid
        if direct:
            for name, text in zip(self._names, self._texts, strict=True):
                link.db.pgconn.send_prepare(name, text)
                (done,) = await link.db.wait(generators.execute(link.db.pgconn))
                if done.status != ExecStatus.COMMAND_OK:
                    raise psycopg.errors.error_from_result(done)
        self._known[link.db] = direct

    def is_prepared(self, link: Link) -> bool:
        return self._known.get(link.db, False)

    def send(self, link: Link, *, t: int, records: Sequence[Row], progress: bool, tally: TallyRow) -> Answer:
        """Send it, and wait a little. What fails is in the answer: it may have reached the server."""
        answer, pgconn, which = Answer(link), link.db.pgconn, len(records) - 1
        values = _values(t, records, progress, tally)
        try:
            pgconn.send_query_prepared(self._names[which], values, self._formats[which], 1)
            if pgconn.flush() == 0 and self._comes(pgconn.socket):
                pgconn.consume_input()
                while not (answer.whole or pgconn.is_busy()):
                    result = pgconn.get_result()
                    answer.whole = result is None
                    if result is not None:
                        answer.results.append(result)
        except psycopg.Error as error:
            answer.error = error
        return answer

    def _comes(self, socket: int) -> bool:
        if self._rest:
            self._rest -= 1
            return False
        looking = select.poll()
        looking.register(socket, select.POLLIN)
        if looking.poll(BRIEF_MS):
            self._slow = 0
            return True
        self._slow += 1
        if self._slow == SLOW:
            self._slow, self._rest = 0, REST
        return False


def _values(t: int, records: Sequence[Row], progress: bool, tally: TallyRow) -> Sequence[bytes]:
    seq, epoch, at_ms, boot_ms = (records[0][column] for column in (0, 4, 5, 6))
    total, _, w, stamp = tally
    common = (_pack8(t), _pack8(epoch), _pack4(seq - 1), _pack8(at_ms), _pack8(boot_ms), _TRUTH[progress])
    values = [*common, total, w.encode(), _pack8(stamp)]
    for _, kind, what, ordinal, _, _, _, effect_key, fingerprint, slot, quiet, body, link in records:
        own = (_pack2(kind), _pack8(what), ordinal.encode(), effect_key, fingerprint, _pack2(slot), _TRUTH[quiet])
        values += (*own, body, link)
    return values
