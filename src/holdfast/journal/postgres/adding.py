"""The statement that adds records, by hand: every step passes here, and the driver's general way costs as much again.

Sending is apart from waiting for the answer (`Answer`), and needs no turn of the event loop:

* Of many tasks that run at once, those that are ready first are sent while the others still compute (`Writer.begin`).
* A task that runs alone waits for its commit anyway, and there is no other to share one with. So the answer is awaited
  right there: awake for `LOOK_S` (`Awake`, docs/decisions/0122), then asleep for `BRIEF_MS`. A server on the same
  machine or in the same rack has answered by then, also a busy one. The loop stands still that long and no longer.
  Where the server is often slower, nothing is awaited in this way for a while.

The statement of one task has plain values instead of arrays, so that the server can plan it once. It is prepared only
where the connection leads to the server itself: behind a pooler in transaction mode, the next transaction may run on
another connection, which does not know it. A pooler is recognised by the process number that it gives at the start,
which is not that of the server's process; or else by the first prepared statement that is gone. The name of a prepared
statement is a hash of its text: it can never be another statement. After `PLAN_S` it is prepared again, because a plan
made for a few tasks is a bad one for a million.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import generators
from psycopg.pq import ExecStatus

from holdfast.journal.postgres.links import SETTINGS, SETTINGS_HOLD
from holdfast.journal.postgres.place import PostgresPlace, Row

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from holdfast.journal.postgres.lane import TallyRow
    from holdfast.journal.postgres.links import Link

BRIEF_MS = 5  # as long as a lane keeps the loop anyway (`lane.GIVE_WAY_S`)
SLOW = 8  # so many in a row that took longer: the server is far away, or busy
REST = 256  # then so many are not awaited in this way
LOOK_S = 0.0006
SLEEPS_MAX = 256
RECORDS_MAX = 2  # of one task: a step that ends, and the next one that begins; more go as a batch
PLAN_S = 10.0

# The server does not know the statement, knows it already, or has another table now: nothing was done.
NOT_AS_PREPARED = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement, pg.FeatureNotSupported)

_SETTINGS = f"WITH settings AS MATERIALIZED ({SETTINGS}), "
_RECORD = "t, seq, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, fingerprint, slot, quiet, body, hash"
ADD = (
    f"{_SETTINGS}moved AS (UPDATE $s.task AS k SET seq = w.seq, head = w.head, "
    "changed_ms = greatest(k.changed_ms, $1::bigint), crashes = CASE WHEN w.progress THEN 0 ELSE k.crashes END "
    "FROM settings, unnest($2::bigint[], $3::bigint[], $4::integer[], $5::integer[], $6::bytea[], $7::boolean[]) "
    "AS w(t, epoch, before, seq, head, progress) "
    "WHERE k.t = w.t AND k.epoch = w.epoch AND k.seq = w.before AND k.state = 'running' RETURNING 1), "
    f"kept AS (INSERT INTO $s.record (n, {_RECORD}) SELECT nextval('$s.record_number'), r.* FROM "
    "unnest($8::bigint[], $9::integer[], $10::smallint[], $11::bigint[], $12::text[], $13::bigint[], $14::bigint[], "
    "$15::bigint[], $16::bytea[], $17::bytea[], $18::smallint[], $19::boolean[], $20::bytea[], $21::bytea[]) "
    f"AS r({_RECORD}) RETURNING t, seq, n), counted AS (UPDATE $s.tally SET stamp = stamp + 1, total = $22::bytea, "
    "at_ms = greatest(at_ms, $1), last = greatest(last, (SELECT max(n) FROM kept)) "
    "WHERE w = $23::text AND stamp = $24::bigint RETURNING 1) "
    "SELECT (SELECT array_agg(ARRAY[t, seq, n]) FROM kept), $now, "
    "1 / ((SELECT count(*) FROM moved) = $25::bigint AND EXISTS (SELECT 1 FROM counted))::integer"
)
_ADD_BINARY = (1,) * 25

_COMMON = 9
_OWN = ("smallint", "bigint", "text", "bytea", "bytea", "smallint", "boolean", "bytea", "bytea")
_ONE_BINARY = [(1,) * (_COMMON + count * len(_OWN)) for count in range(1, RECORDS_MAX + 1)]


def _one(count: int) -> str:
    """The statement of one task that adds so many records. Its numbers are drawn by the move of the task and passed on
    by that of the tally. Where either row is not as it was left, there are none, and no record can be without. What the
    commit must be is said where the task is looked for: nothing is written unless all of that is true."""
    rows: list[str] = []
    for nth in range(count):
        kind, what, name, *own = (f"${_COMMON + nth * len(_OWN) + at}::{type_}" for at, type_ in enumerate(_OWN, 1))
        first = f"(SELECT n{nth} FROM counted), $1, $3 + {nth + 1}, {kind}, {what}, {name}, $2, $4, $5::bigint"
        rows.append(f"({first}, {', '.join(own)})")
    drawn = ", ".join(f"nextval('$s.record_number') AS n{nth}" for nth in range(count))
    return (
        f"WITH moved AS (UPDATE $s.task AS k SET seq = $3::integer + {count}, "
        f"head = ${_COMMON + count * len(_OWN)}::bytea, changed_ms = greatest(k.changed_ms, $4::bigint), "
        "crashes = CASE WHEN $6::boolean THEN 0 ELSE k.crashes END WHERE k.t = $1::bigint AND k.epoch = $2::bigint "
        f"AND k.seq = $3 AND k.state = 'running' AND {SETTINGS_HOLD} RETURNING {drawn}), "
        "counted AS (UPDATE $s.tally AS y SET stamp = y.stamp + 1, total = $7::bytea, at_ms = greatest(y.at_ms, $4), "
        f"last = greatest(y.last, moved.n{count - 1}) FROM moved WHERE y.w = $8::text AND y.stamp = $9::bigint "
        f"RETURNING moved.*) INSERT INTO $s.record (n, {_RECORD}) VALUES {', '.join(rows)} RETURNING n, $now"
    )


class Addition(msgspec.Struct, eq=False, gc=False):
    """What one task adds: rows as in `rows.Chained`."""

    t: int
    records: Sequence[Row]
    progress: bool


class Answer(msgspec.Struct, eq=False):
    """What has come of the answer to a statement that was sent."""

    link: Link
    batch: Sequence[Addition] = ()
    results: list[PGresult] = msgspec.field(default_factory=list[Any])
    whole: bool = False  # also that the server is ready again: only then is the commit made
    error: psycopg.Error | None = None  # it may have reached the server all the same

    @property
    def is_good(self) -> bool:
        return self.whole and len(self.results) == 1 and self.results[0].status == ExecStatus.TUPLES_OK

    async def wait(self) -> tuple[int, list[int]]:
        """As `read`, once it is whole. Raises psycopg.Error."""
        if self.error is not None:
            raise self.error
        if not self.whole:
            self.results += await self.link.db.wait(generators.execute(self.link.db.pgconn))
        for one in self.results:
            if one.status != ExecStatus.TUPLES_OK:
                raise psycopg.errors.error_from_result(one)
        return self.read()

    def read(self) -> tuple[int, list[int]]:
        """The time of the database, and the number of each record, in the order in which they were given."""
        (found,) = self.results
        now_ms = int.from_bytes(found.get_value(0, 1) or b"")
        first = found.get_value(0, 0) or b""
        if len(first) == _NUMBER_BYTES:  # of one task: a row for each record
            return now_ms, [int.from_bytes(found.get_value(row, 0) or b"") for row in range(found.ntuples)]
        values = [value for (value,) in _ELEMENT.iter_unpack(first[_MATRIX_HEAD:])]
        numbers = {(t, seq): n for t, seq, n in zip(values[::3], values[1::3], values[2::3], strict=True)}
        return now_ms, [numbers[one.t, record[0]] for one in self.batch for record in one.records]


class Awake:
    """Waiting awake: who sleeps for an answer is woken late, and then runs twice as long as without the sleep.

    So the answer is looked for again and again, and between two looks the processor is offered to everybody else who
    needs it, the server first of all. Where it does not come, the next ones are slept for: twice as many after each
    miss, half as many after each answer that was seen.
    """

    __slots__ = ("_now", "_sleeps", "_sleeps_next")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._sleeps = 0  # answers that are still slept for
        self._sleeps_next = 1

    def sees(self, poll: Callable[[int], object]) -> bool:
        """Whether the answer came while we looked. `poll` waits for so many milliseconds."""
        if self._sleeps:
            self._sleeps -= 1
            return False
        end = self._now() + LOOK_S
        while self._now() < end:
            os.sched_yield()
            if poll(0):
                self._sleeps_next = max(1, self._sleeps_next // 2)
                return True
        self._sleeps = self._sleeps_next
        self._sleeps_next = min(2 * self._sleeps_next, SLEEPS_MAX)
        return False


class Adding:
    """The statements of one place, and the connections over which they are prepared."""

    def __init__(self, place: PostgresPlace) -> None:
        self._add = place.sql(ADD)
        texts = [place.sql(_one(count)) for count in range(1, RECORDS_MAX + 1)]
        self._ones = {b"holdfast_" + sha256(text).hexdigest()[:16].encode(): text for text in texts}
        self._names = list(self._ones)
        self._slow = self._rest = 0
        self._awake = Awake()
        self._looking: tuple[object, select.poll | None] = (None, None)

    # one task

    async def prepare(self, link: Link) -> None:
        """The statements of one task over this connection, unless there is a pooler in between."""
        until = link.db.prepared_until
        if until == 0 or (until is not None and time.monotonic() < until):
            return
        if until is None:
            row = await link.one("SELECT pg_backend_pid()")
            if row is None or row[0] != link.db.info.backend_pid:
                self.avoid(link)
                return
        try:
            for name, text in self._ones.items():
                await self._prepare(link, name, text, again=until is not None)
        except NOT_AS_PREPARED:
            self.avoid(link)
        else:
            link.db.prepared_until = time.monotonic() + PLAN_S

    async def _prepare(self, link: Link, name: bytes, text: bytes, *, again: bool) -> None:
        if again:
            await link.run(f"DEALLOCATE {name.decode()}")
        link.db.pgconn.send_prepare(name, text)
        # Of a connection that the server ends there are two: what the server said, and that it has gone.
        for done in await link.db.wait(generators.execute(link.db.pgconn)):
            if done.status != ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(done)

    def forget(self, link: Link) -> None:
        """They are no longer prepared over this connection."""
        link.db.prepared_until = None

    def avoid(self, link: Link) -> None:
        """What is prepared over this connection does not stay as it was: it is not used any more."""
        link.db.prepared_until = 0

    def is_prepared(self, link: Link) -> bool:
        return (link.db.prepared_until or 0) > time.monotonic()

    def send_one(self, link: Link, one: Addition, tally: TallyRow) -> Answer:
        """Over a connection on which it is prepared. Waits a little for the answer."""
        count, pgconn = len(one.records), link.db.pgconn
        values, answer = _values(one, tally), Answer(link, (one,))
        try:
            pgconn.send_query_prepared(self._names[count - 1], values, _ONE_BINARY[count - 1], 1)
            if pgconn.flush() == 0 and self._comes(link):
                pgconn.consume_input()
                while not (answer.whole or pgconn.is_busy()):
                    result = pgconn.get_result()
                    answer.whole = result is None
                    if result is not None:
                        answer.results.append(result)
        except psycopg.Error as error:
            answer.error = error
        return answer

    def _comes(self, link: Link) -> bool:
        if self._rest:
            self._rest -= 1
            return False
        known, looking = self._looking
        if looking is None or known is not link:
            looking = select.poll()
            looking.register(link.db.pgconn.socket, select.POLLIN)
            self._looking = link, looking
        if self._awake.sees(looking.poll) or looking.poll(BRIEF_MS):
            self._slow = 0
            return True
        self._slow += 1
        if self._slow == SLOW:
            self._slow, self._rest = 0, REST
        return False

    # a batch

    def send(self, link: Link, batch: Sequence[Addition], tally: TallyRow) -> Answer:
        answer, pgconn = Answer(link, batch), link.db.pgconn
        try:
            pgconn.send_query_params(self._add, _arrays(batch, tally), param_formats=_ADD_BINARY, result_format=1)
            pgconn.flush()
        except psycopg.Error as error:
            answer.error = error
        return answer


# values as the server has them on the wire

_pack8, _pack4, _pack2 = (struct.Struct(form).pack for form in ("!q", "!i", "!h"))
_TRUTH: tuple[bytes, bytes] = (b"\0", b"\1")
_ELEMENT = struct.Struct("!4xq")  # of an array: its size, then itself
_NUMBER_BYTES = 8
_MATRIX_HEAD = 28  # bytes: dimensions, nulls, type; of each dimension its size and first index
_WHOLE = {2: (21, "ih"), 4: (23, "ii"), 8: (20, "iq")}  # of a size in bytes: its type in the server, and its form
_BOOLEAN, _BYTES, _TEXT = 16, 17, 25


def _values(one: Addition, tally: TallyRow) -> Sequence[bytes]:
    seq, _, _, _, epoch, at_ms, boot_ms, *_ = one.records[0]
    total, _, w, stamp = tally
    common = (_pack8(one.t), _pack8(epoch), _pack4(seq - 1), _pack8(at_ms), _pack8(boot_ms), _TRUTH[one.progress])
    values = [*common, total, w.encode(), _pack8(stamp)]
    for _, kind, what, ordinal, _, _, _, effect_key, fingerprint, slot, quiet, body, link in one.records:
        values += (_pack2(kind), _pack8(what), ordinal.encode(), effect_key, fingerprint, _pack2(slot))
        values += (_TRUTH[quiet], body, link)
    return values


def _arrays(batch: Sequence[Addition], tally: TallyRow) -> Sequence[bytes]:
    total, at_ms, w, stamp = tally
    first, last = [one.records[0] for one in batch], [one.records[-1] for one in batch]
    records = [record for one in batch for record in one.records]
    seq, kind, what, ordinal, epoch, at, boot, effect_key, fingerprint, slot, quiet, body, link = zip(
        *records, strict=True
    )
    return (
        _pack8(at_ms),
        _whole(8, [one.t for one in batch]),
        _whole(8, [record[4] for record in first]),
        _whole(4, [record[0] - 1 for record in first]),
        _whole(4, [record[0] for record in last]),
        _array(_BYTES, [record[-1] for record in last]),
        _array(_BOOLEAN, [_TRUTH[one.progress] for one in batch]),
        _whole(8, [one.t for one in batch for _ in one.records]),
        _whole(4, seq),
        _whole(2, kind),
        _whole(8, what),
        _array(_TEXT, [name.encode() for name in ordinal]),
        _whole(8, epoch),
        _whole(8, at),
        _whole(8, boot),
        _array(_BYTES, effect_key),
        _array(_BYTES, fingerprint),
        _whole(2, slot),
        _array(_BOOLEAN, [b"\1" if one else b"\0" for one in quiet]),
        _array(_BYTES, body),
        _array(_BYTES, link),
        total,
        w.encode(),
        _pack8(stamp),
        _pack8(len(batch)),
    )


def _whole(size: int, values: Sequence[int]) -> bytes:
    """An array of whole numbers of so many bytes each."""
    type_, form = _WHOLE[size]
    count = len(values)
    return struct.pack(f"!5i{form * count}", 1, 0, type_, count, 1, *chain.from_iterable(zip(repeat(size), values)))


def _array(type_: int, values: Sequence[bytes]) -> bytes:
    sized: Iterable[bytes] = chain.from_iterable((_pack4(len(value)), value) for value in values)
    return struct.pack("!5i", 1, 0, type_, len(values), 1) + b"".join(sized)
