"""Acts on tasks: submit, append, confirm; and the list.

Statements of Transactional tools are applied in the commit that closes their step, or not at all. They may do what they
like with the user's own tables. They may not touch the journal's tables or anything by which those could be reached
later (a trigger, an index, a renamed or shadowed table, raw pages), and they may not end, nest or leave the transaction
they are part of.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Sequence
from typing import Any, cast

import apsw
import msgspec

from holdfast.core.ids import TaskId, task_id_bytes, task_id_from_bytes
from holdfast.core.step import Event
from holdfast.errors import InvariantViolated, LeaseLost, RequestConflict, StatementFailed
from holdfast.host.sqlite import Db
from holdfast.journal import rules
from holdfast.journal.admin import is_suspected
from holdfast.journal.bodies import RestoredFrom
from holdfast.journal.builds import MARK
from holdfast.journal.chain import first_link
from holdfast.journal.contract import Change, Filter, Hold, Statement, Submission, Submitted, TaskRow
from holdfast.journal.durability import Life
from holdfast.journal.records import NewRecord, RecordKind, TaskState
from holdfast.journal.seal import DataKeySealer, KeyWraps
from holdfast.journal.sqlite.rows import TASK_COLUMNS, TASK_FROM, Tail, add_records, make_rows, task_row
from holdfast.journal.sqlite.schema import own_tables
from holdfast.journal.sqlite.txn import Txn
from holdfast.journal.sqlite.verbs import remarks, upkeep


def apply_statements(db: Db, statements: Sequence[Statement]) -> None:
    """All or none. Raises StatementFailed, having undone them."""
    db.execute("SAVEPOINT tool")
    db.authorizer = _authorize
    try:
        for statement in statements:
            rows = db.execute(statement.sql, tuple(cast("Sequence[Any]", statement.params)))
            for _ in rows:  # a second statement in the same text runs only when this is read
                pass
    except _OF_THE_DISK:
        raise
    except Exception as error:  # the statement is the user's: it may raise anything
        db.authorizer = None
        db.execute("ROLLBACK TO tool")
        db.execute("RELEASE tool")
        raise StatementFailed(f"the journal rejected the SQL statement: {error}") from error
    finally:
        db.authorizer = None
    db.execute("RELEASE tool")


_OF_THE_DISK = (apsw.FullError, apsw.IOError, apsw.CorruptError)
_FORBIDDEN = frozenset(
    (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_PRAGMA)
)
_HARMLESS = frozenset((apsw.SQLITE_FUNCTION, apsw.SQLITE_SELECT))
_WRITES = frozenset((apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE))
_TABLE_SECOND = frozenset(
    (
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TEMP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TRIGGER,
    )
)
_INNER_TABLES = frozenset(("sqlite_sequence", "sqlite_dbpage"))  # inbox numbers; the raw file


def _authorize(operation: int, first: str | None, second: str | None, _database: str | None, _by: str | None) -> int:
    if operation in _FORBIDDEN:
        return apsw.SQLITE_DENY
    if operation in _HARMLESS:
        return apsw.SQLITE_OK
    table = (second if operation in _TABLE_SECOND else first) or ""
    name = table.lower()  # a name is ours in any spelling: a temporary TASK would hide the real one
    if name in own_tables() or (operation in _WRITES and name in _INNER_TABLES):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK


CLOSING = frozenset(
    (Event.SUCCEED, Event.FAIL, Event.REFUSE, Event.FIND, Event.ADOPT, Event.SETTLE_DONE, Event.SETTLE_SKIP, Event.SKIP)
)


@functools.lru_cache(256)
def _closes(events: tuple[Event, ...]) -> bool:
    return not CLOSING.isdisjoint(events)


MOVING = (
    "SELECT task_id FROM task WHERE task_id IN (SELECT unhex(value) FROM json_each(?)) "
    "AND state IN ('queued', 'running', 'sleeping', 'waiting')"
)


def submit(txn: Txn, submission: Submission, wrapped: tuple[int, bytes, DataKeySealer]) -> Submitted:
    for task_id in (submission.task_id, *submission.also):
        row = txn.db.execute(
            "SELECT fingerprint, state FROM task WHERE task_id = ?", (task_id_bytes(task_id),)
        ).fetchone()
        if row is not None:
            if row[0] != submission.args_fingerprint:
                raise RequestConflict(task_id=task_id, request_id=submission.request_id, name=submission.name)
            return Submitted(task_id=task_id, created=False, state=TaskState(str(row[1])))
    raw = task_id_bytes(submission.task_id)
    key_id, data_key, sealer = wrapped
    head, now_ms = first_link(raw), txn.at_ms
    txn.db.execute(
        "INSERT INTO task (task_id, name, fingerprint, state, epoch, seq, head, last, due_ms, "
        "created_ms, changed_ms, key_id, data_key) VALUES (?, ?, ?, 'queued', 0, -1, ?, 0, ?, ?, ?, ?, ?)",
        (raw, submission.name, submission.args_fingerprint, head, now_ms, now_ms, now_ms, key_id, data_key),
    )
    number = txn.db.last_insert_rowid()
    tail = Tail(seq=-1, head=head, last=0)
    body = {"name": submission.name, "args": submission.args, "request_id": submission.request_id, **submission.body}
    entries = [NewRecord(kind=RecordKind.ACCEPTED, body=body)]
    if submission.request_id:
        entries.extend(_suspicion(txn, submission.since))
    add_records(txn, tail, entries, row=number, task_id=raw, epoch=0, sealer=sealer)
    txn.db.execute("UPDATE task SET seq = ?, head = ?, last = ? WHERE t = ?", (tail.seq, tail.head, tail.last, number))
    return Submitted(task_id=submission.task_id, created=True, state=TaskState.QUEUED)


def _suspicion(txn: Txn, since: Life | None) -> list[NewRecord]:
    """After a restore a task with a request id may have run in the timeline that is lost."""
    lost_ms, restored_ms = find_restore(txn.db)
    if not is_suspected(restored_ms, now_ms=txn.at_ms) or since == find_life(txn.db):
        return []
    return [NewRecord(kind=RecordKind.RESTORED, body=RestoredFrom(max(lost_ms, 1)).body())]


def find_life(db: Db) -> Life:
    ((incarnation,),) = db.execute("SELECT value FROM meta WHERE key = 'incarnation'").fetchall()
    return Life(int(str(incarnation)), find_restore(db)[1])


def find_restore(db: Db) -> tuple[int, int]:
    """Since when anything may be lost, and when the journal was restored; zeros where it never was."""
    rows = db.execute("SELECT key, value FROM meta WHERE key IN ('lost_after_ms', 'restored_ms')").fetchall()
    found = {str(key): int(str(value)) for key, value in rows}
    return found.get("lost_after_ms", 0), found.get("restored_ms", 0)


HELD = "SELECT epoch, seq, state FROM task WHERE t = ?"


class Addition(msgspec.Struct, eq=False, gc=False):
    """Records to be appended under a hold, and what changes with them."""

    hold: Hold
    entries: Sequence[NewRecord]
    change: Change | None
    applied: Sequence[int]
    statements: Sequence[Statement]
    wraps: KeyWraps
    adds_only: bool
    tail: Tail | None = None  # where the hold's chain ends once it is committed

    def write(self, txn: Txn) -> list[int]:
        """Check the hold, then write; `move` takes the hold along after the commit."""
        hold, db = self.hold, txn.db
        if hold.sealer is None:
            raise InvariantViolated("sealed", "a hold of this journal has a sealer")
        tail = self.tail = Tail(hold.seq, hold.head, hold.last)
        raw = task_id_bytes(hold.task_id)
        rows = make_rows(txn, tail, self.entries, row=hold.row, task_id=raw, epoch=hold.epoch, sealer=hold.sealer)
        if self.statements:
            _check_held(txn, hold)
            apply_statements(db, self.statements)
        progress = remarked = False
        for entry in self.entries:
            if entry.kind is RecordKind.STEP:
                progress = progress or _closes(entry.events)
            elif entry.kind is RecordKind.REMARK:
                remarked = True
        place = (tail.seq, tail.head, tail.last, txn.at_ms, progress, hold.row, hold.epoch, hold.seq)
        if not txn.move(place, at_once=not self.adds_only):
            _check_held(txn, hold)
        txn.add_rows(rows, before=hold.head)
        if remarked:
            for entry in self.entries:
                if entry.kind is RecordKind.REMARK:
                    remarks.add_of_task(txn, hold.task_id, entry, self.wraps)
        for number in self.applied:
            db.execute("UPDATE inbox SET applied = 1 WHERE n = ? AND t = ?", (number, hold.row))
        if self.change is not None:
            _change(txn, hold, self.change, wraps=self.wraps)
        return [row[0] for row in rows]

    def move(self, _numbers: list[int]) -> None:
        hold, tail = self.hold, self.tail
        if tail is not None:
            hold.seq, hold.head, hold.last = tail.seq, tail.head, tail.last


def confirm(txn: Txn, hold: Hold, seq: int) -> bool:
    """Inside a write transaction, so that it waits for and sees every commit before it."""
    epoch, newest, _ = _held(txn, hold)
    if epoch != hold.epoch:
        raise LeaseLost(task_id=hold.task_id, epoch=hold.epoch)
    txn.db.execute("UPDATE task SET changed_ms = ? WHERE t = ?", (txn.at_ms, hold.row))
    return newest >= seq


def find_effect(db: Db, effect_key: bytes) -> tuple[TaskId, str] | None:
    # From the newest on: no index has the keys, because each step would pay for it, and most that is asked is new.
    query = "SELECT task_id, ordinal FROM record CROSS JOIN task USING (t) WHERE effect_key = ? ORDER BY n DESC LIMIT 1"
    raw, ordinal = db.execute(query, (effect_key,)).fetchone() or (None, None)
    return (task_id_from_bytes(raw), str(ordinal)) if isinstance(raw, bytes) else None


def find_over(db: Db, task_ids: Collection[TaskId]) -> list[TaskId]:
    asked = {task_id_bytes(task_id): task_id for task_id in task_ids}
    listed = json.dumps([raw.hex() for raw in asked])
    moving = {row[0] for row in db.execute(MOVING, (listed,))}
    return [task_id for raw, task_id in asked.items() if raw not in moving]


def list_tasks(db: Db, filter: Filter) -> list[TaskRow]:
    where, values = ["1"], cast("list[Any]", [])
    if filter.states is not None:
        where.append(f"t.state IN ({', '.join('?' * len(filter.states))})")
        values.extend(state.value for state in filter.states)
    if filter.name is not None:
        where.append("(t.name = ? OR substr(t.name, 1, length(?)) = ?)")  # of any build
        values.extend((filter.name, *(2 * [filter.name + MARK])))
    if filter.prefix:
        where.append("t.task_id BETWEEN ? AND ?")
        values.extend(prefix_range(filter.prefix))
    if filter.after is not None:
        where.append(f"t.t {'<' if filter.newest_first else '>'} (SELECT t FROM task WHERE task_id = ?)")
        values.append(task_id_bytes(filter.after))
    order = "DESC" if filter.newest_first else "ASC"
    rows = db.execute(
        f"SELECT {TASK_COLUMNS} {TASK_FROM} WHERE {' AND '.join(where)} ORDER BY t.t {order} LIMIT ?",
        (*values, filter.limit),
    ).fetchall()
    return [task_row(row) for row in rows]


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """The lowest and highest raw id whose text form begins with the prefix."""
    if prefix[0] > "7":  # 26 letters hold 130 bits, an id has 128
        return b"\xff", b""
    return task_id_bytes(TaskId(prefix.ljust(26, "0"))), task_id_bytes(TaskId(prefix.ljust(26, "Z")))


def _held(txn: Txn, hold: Hold) -> tuple[int, int, str]:
    row = txn.db.execute(HELD, (hold.row,)).fetchone()
    if row is None:
        raise LeaseLost(task_id=hold.task_id, epoch=hold.epoch)
    return cast("tuple[int, int, str]", row)


def _check_held(txn: Txn, hold: Hold) -> None:
    """Raise what makes the hold stale, if anything does."""
    epoch, seq, state = _held(txn, hold)
    if state != "running" or epoch != hold.epoch:
        raise LeaseLost(task_id=hold.task_id, epoch=hold.epoch)
    if seq != hold.seq:
        raise InvariantViolated("I8", f"task {hold.task_id}: record {seq} was added under this very epoch")


def _change(txn: Txn, hold: Hold, change: Change, *, wraps: KeyWraps) -> None:
    if change.state in rules.RESTING and _has_unseen(txn, hold):
        change = rules.roused(change)
    found = txn.db.execute("SELECT due_ms FROM task WHERE t = ?", (hold.row,)).fetchone()
    due_ms = rules.NEVER_MS if found is None else cast(int, found[0])
    due = rules.due_after_change(change, due_ms=due_ms, now_ms=txn.at_ms)
    running = change.state is TaskState.RUNNING
    txn.db.execute(
        "UPDATE task SET state = ?, due_ms = ?, session = CASE WHEN ? THEN session END, "
        "crashes = CASE WHEN ? THEN crashes ELSE 0 END, keep_until_ms = max(keep_until_ms, ?) WHERE t = ?",
        (change.state.value, due, running, running, change.keep_until_ms, hold.row),
    )
    if change.notice is not None:
        upkeep.add_notice(txn, change.notice, wraps)


def _has_unseen(txn: Txn, hold: Hold) -> bool:
    query = "SELECT 1 FROM inbox WHERE t = ? AND applied = 0 AND n > ? LIMIT 1"
    return txn.db.execute(query, (hold.row, hold.seen)).fetchone() is not None
