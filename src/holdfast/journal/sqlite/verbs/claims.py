"""Acts of sessions and claims: leases, candidates, taking, parking of damaged tasks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from holdfast.core.ids import TaskId, task_id_bytes, task_id_from_bytes
from holdfast.core.notices import Notice, poison_notice
from holdfast.errors import InvariantViolated, JournalDamaged, SessionLost
from holdfast.host.sqlite import Db
from holdfast.journal import rules
from holdfast.journal.bodies import ClaimedBy
from holdfast.journal.builds import MARK, build_when_claimed, name_and_build, names_claimed, pinned_name
from holdfast.journal.contract import Claimed, Hold, Submission, Submitted, TaskNames, WaitingTasks
from holdfast.journal.records import NewRecord, Record, RecordKind, TaskState, TaskView, as_kept
from holdfast.journal.seal import DataKeySealer, KeyWraps
from holdfast.journal.sqlite.rows import Tail, add_records, read_view
from holdfast.journal.sqlite.txn import Txn
from holdfast.journal.sqlite.verbs import tasks, upkeep
from holdfast.journal.sqlite.verbs.sessions import SERVES, DeadSession, SqliteSession


def begin_session(txn: Txn, session: SqliteSession, *, worker: str, asked_boot_ms: int, serves: TaskNames) -> int:
    until = rules.lease_until_boot_ms(asked_boot_ms, session.ttl_ms)
    txn.db.execute(
        "INSERT INTO session (session_id, worker, pid, boot_id, until_ms, begun_ms) VALUES (?, ?, ?, ?, ?, ?)",
        (session.session_id, worker, os.getpid(), session.boot_id, until, txn.at_ms),
    )
    row = txn.db.last_insert_rowid()
    live = "SELECT ? || session_id FROM session WHERE ended = 0"
    txn.db.execute(f"DELETE FROM meta WHERE key GLOB ? || '*' AND key NOT IN ({live})", (SERVES, SERVES))
    if serves is not None:
        claimed = json.dumps(names_claimed(serves, session.build))
        txn.db.execute("INSERT INTO meta VALUES (?, ?)", (SERVES + session.session_id, claimed))
    return row


def count_waiting(db: Db, *, now_ms: int, dead: Sequence[DeadSession], parked: bool) -> list[WaitingTasks]:
    rows = db.execute(
        "SELECT name, count(*), min(iif(due_ms <= :now, due_ms, changed_ms)) FROM task "
        "WHERE (state IN ('queued', 'sleeping', 'waiting') AND (due_ms <= :now OR instr(name, :mark))) "
        "OR (state = 'running' AND session IN (SELECT value FROM json_each(:dead))) "
        + ("OR (state = 'parked' AND instr(name, :mark)) " if parked else "")
        + "GROUP BY name",
        {"now": now_ms, "mark": MARK, "dead": json.dumps([one.row for one in dead])},
    ).fetchall()
    return [waiting_row(row) for row in rows]


def waiting_row(row: Sequence[Any]) -> WaitingTasks:
    name, build = name_and_build(row[0])
    return WaitingTasks(name=name, build=build, tasks=row[1], since_ms=row[2])


def extend_session(txn: Txn, row: int, until_ms: int) -> bool:
    txn.db.execute("UPDATE session SET until_ms = ? WHERE s = ? AND ended = 0", (until_ms, row))
    return txn.db.changes() == 1


def end_session(txn: Txn, row: int) -> None:
    """Tasks still held go back to the queue under their old due time."""
    txn.db.execute("UPDATE session SET ended = 1 WHERE s = ? AND ended = 0", (row,))
    txn.db.execute(
        "UPDATE task SET state = 'queued', session = NULL, crashes = 0, changed_ms = ? "
        "WHERE session = ? AND state = 'running'",
        (txn.at_ms, row),
    )


def release(txn: Txn, hold: Hold) -> bool:
    """The task goes back to the queue unless a newer hold has it or it rests."""
    txn.db.execute(
        "UPDATE task SET state = 'queued', session = NULL, changed_ms = ? "
        "WHERE t = ? AND epoch = ? AND state = 'running'",
        (txn.at_ms, hold.row, hold.epoch),
    )
    return txn.db.changes() == 1


@dataclass(slots=True, eq=False)
class Candidate:
    """A task that looked claimable when it was read: the columns of _CANDIDATE, in their order."""

    row: int
    raw: bytes
    name: str
    state: TaskState
    epoch: int
    seq: int
    head: bytes
    last: int
    session: int | None
    due_ms: int
    crashes: int
    key_id: int
    data_key: bytes
    view: TaskView | None = None
    sealer: DataKeySealer | None = None
    task_id: TaskId = field(init=False)

    def __post_init__(self) -> None:
        self.state = TaskState(self.state)
        self.task_id = task_id_from_bytes(self.raw)

    def load(self, db: Db, wraps: KeyWraps) -> None:
        """Read and verify the whole chain. Raises JournalDamaged."""
        self.sealer = wraps.open_data_key(self.key_id, self.data_key, self.raw)
        self.view = read_view(
            db, task_id=self.task_id, seq=self.seq, head=self.head, last=self.last, sealer=self.sealer
        )
        if self.view.epoch != self.epoch:
            raise JournalDamaged(
                f"task {self.task_id}: its row has epoch {self.epoch}, its records have {self.view.epoch}"
            )


_CANDIDATE = "t, task_id, name, state, epoch, seq, head, last, session, due_ms, crashes, key_id, data_key"


def find_candidates(
    db: Db,
    *,
    now_ms: int,
    dead: Sequence[DeadSession],
    names: TaskNames,
    limit: int,
    task_id: TaskId | None,
    alone: bool,
) -> list[Candidate]:
    known = "1" if names is None else f"name IN ({', '.join('?' * len(names))})"
    values: tuple[Any, ...] = tuple(names or ())
    if task_id is not None:
        known, values = f"{known} AND task_id = ?", (*values, task_id_bytes(task_id))
    orphaned = f"session IN ({', '.join(str(one.row) for one in dead)})" if dead else "0"
    rows = db.execute(
        f"SELECT {_CANDIDATE} FROM task WHERE state IN ('queued', 'sleeping', 'waiting') "
        f"AND due_ms <= ? AND {known} AND {_willing('crashes', alone)} UNION ALL "
        f"SELECT {_CANDIDATE} FROM task WHERE {orphaned} AND state = 'running' AND {known} "
        f"AND {_willing('crashes + 1', alone)} "
        "ORDER BY due_ms, t LIMIT ?",
        (now_ms, *values, *values, limit * 4),
    ).fetchall()
    found: list[Candidate] = []
    for row in rows:
        candidate = Candidate(*row)
        if _decide(candidate, alone=alone, now_ms=now_ms).verdict is not rules.Claimable.NO:
            found.append(candidate)
        if len(found) >= limit:
            break
    return found


def _willing(crashes: str, alone: bool) -> str:
    """Leaves out, before the limit counts, what is only handed out alone."""
    return "1" if alone else f"NOT ({crashes} >= {rules.CRASHES_ALONE} AND {crashes} < {rules.CRASHES_MAX})"


def take(
    txn: Txn, candidates: Sequence[Candidate], session: SqliteSession, *, dead: Sequence[DeadSession], wraps: KeyWraps
) -> list[tuple[Claimed, Record]]:
    """Claim those that have not changed since they were read. The record of the claim is for the caller to fold, once
    it is committed: where the disk is full this runs a second time."""
    row = txn.db.execute("SELECT ended, until_ms FROM session WHERE s = ?", (session.row,)).fetchone()
    if row is None or row[0] != 0:
        raise SessionLost("another process has declared this session dead")
    if row[1] <= txn.boot_ms:
        raise SessionLost("the lease ended before the claim")
    buried = _bury(txn, dead)
    taken: list[tuple[Claimed, Record]] = []
    for candidate in candidates:
        if candidate.state is TaskState.RUNNING and candidate.session not in buried:
            continue
        claimed = _take_one(txn, candidate, session, wraps)
        if claimed is not None:
            taken.append(claimed)
    return taken


def submit(
    txn: Txn,
    submission: Submission,
    wrapped: tuple[int, bytes, DataKeySealer],
    session: SqliteSession | None,
    wraps: KeyWraps,
) -> tuple[Submitted, tuple[Claimed, Record] | None]:
    """Accept a task; where it is new, and may be claimed, it is claimed for the session. As with `take`, the caller
    folds the record."""
    done = tasks.submit(txn, submission, wrapped)
    if session is None or not done.created:
        return done, None
    txn.write_out()
    names = names_claimed([submission.name], session.build)
    found = find_candidates(
        txn.db, now_ms=txn.at_ms, dead=(), names=names, limit=1, task_id=submission.task_id, alone=False
    )
    with contextlib.suppress(SessionLost, JournalDamaged, InvariantViolated):  # it is accepted all the same
        for one in found:
            one.load(txn.db, wraps)
        return done, next(iter(take(txn, found, session, dead=(), wraps=wraps)), None)
    return done, None


def _bury(txn: Txn, dead: Sequence[DeadSession]) -> set[int]:
    """Mark dead sessions, unless one has renewed its lease since it was looked at."""
    buried: set[int] = set()
    for one in dead:
        still = "1" if one.proven else "until_ms = :until"
        txn.db.execute(
            f"UPDATE session SET ended = CASE ended WHEN 0 THEN 2 ELSE ended END WHERE s = :s AND {still}",
            {"s": one.row, "until": one.until_ms},
        )
        if txn.db.changes() == 1:
            buried.add(one.row)
    return buried


def _take_one(txn: Txn, candidate: Candidate, session: SqliteSession, wraps: KeyWraps) -> tuple[Claimed, Record] | None:
    decision = _decide(candidate, alone=True, now_ms=txn.at_ms)
    view, sealer = candidate.view, candidate.sealer
    if view is None or sealer is None or decision.verdict is rules.Claimable.NO:
        return None
    row = txn.db.execute(
        "SELECT 1 FROM task WHERE t = ? AND epoch = ? AND seq = ? AND state = ? AND session IS ? AND due_ms = ?",
        (candidate.row, candidate.epoch, candidate.seq, candidate.state.value, candidate.session, candidate.due_ms),
    ).fetchone()
    if row is None:
        return None
    epoch = rules.next_epoch(candidate.epoch, incarnation=session.incarnation)
    name, _ = name_and_build(candidate.name)
    build = build_when_claimed(name, session.build)
    by = ClaimedBy(session.session_id, session.boot_id, worker=str(os.getpid()), build=build or UNSET)
    entries = [NewRecord(kind=RecordKind.CLAIMED, body=by.body())]
    poison = decision.verdict is rules.Claimable.POISON
    if poison:
        entries.append(rules.poison_entry())
    tail = Tail(seq=candidate.seq, head=candidate.head, last=candidate.last)
    numbers = add_records(txn, tail, entries, row=candidate.row, task_id=candidate.raw, epoch=epoch, sealer=sealer)
    rest = ("parked", None, rules.NEVER_MS) if poison else ("running", session.row, candidate.due_ms)
    txn.db.execute(
        "UPDATE task SET name = ?, state = ?, session = ?, due_ms = ?, epoch = ?, seq = ?, head = ?, last = ?, "
        "crashes = ?, changed_ms = ? WHERE t = ?",
        (
            pinned_name(name, build),
            *rest,
            epoch,
            tail.seq,
            tail.head,
            tail.last,
            decision.crashes,
            txn.at_ms,
            candidate.row,
        ),
    )
    if poison:
        notice = poison_notice(candidate.task_id, rules.POISON_QUESTION, epoch=epoch, now_ms=txn.at_ms)
        upkeep.add_notice(txn, notice, wraps)
        return None
    record = as_kept(
        entries[0], number=numbers[0], seq=candidate.seq + 1, epoch=epoch, at_ms=txn.at_ms, boot_ms=txn.boot_ms
    )
    hold = Hold(
        task_id=candidate.task_id,
        epoch=epoch,
        session=session,
        row=candidate.row,
        seq=tail.seq,
        head=tail.head,
        last=tail.last,
        sealer=sealer,
    )
    return Claimed(hold=hold, view=view, crashes=decision.crashes, inbox=[]), record


def _decide(candidate: Candidate, *, alone: bool, now_ms: int) -> rules.Decision:
    # The row's count is reset by each step that closes, so progress needs no second look here.
    return rules.decide_claim(
        state=candidate.state,
        due_ms=candidate.due_ms,
        crashes=candidate.crashes,
        epoch=candidate.epoch,
        progress_epoch=-1,
        holder_dead=True,
        alone=alone,
        now_ms=now_ms,
    )


def park_damaged(txn: Txn, candidate: Candidate, notice: Notice, wraps: KeyWraps) -> None:
    """Only the row says so: nothing can be appended to a chain that is broken."""
    txn.db.execute(
        "UPDATE task SET state = 'parked', due_ms = ?, session = NULL, changed_ms = ? "
        "WHERE t = ? AND epoch = ? AND seq = ?",
        (rules.NEVER_MS, txn.at_ms, candidate.row, candidate.epoch, candidate.seq),
    )
    upkeep.add_notice(txn, notice, wraps)
