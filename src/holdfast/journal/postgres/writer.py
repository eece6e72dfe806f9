"""The lane of submissions and appends: every step passes here.

Appends that only add records are one statement, which is its own transaction: it compares epoch, sequence and state of
every task as it moves them (`UPDATE task ... WHERE epoch = ...`), inserts the records and moves the tally. One round
trip, one commit. Where one of the holds is stale the statement fails as a whole (it divides by zero, or has no number
for its records), and the batch is made again in steps: tasks locked, stale holds refused, the rest written. So are
batches in which a task changes its state, an inbox item is applied, a statement of a tool is run or a task is
submitted.

A record's number is drawn from a sequence in the statement that inserts it (docs/decisions/0054).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from psycopg import errors as pg

from holdfast.core.ids import TaskId, task_id_bytes, task_id_from_bytes
from holdfast.errors import InvariantViolated, LeaseLost, RequestConflict, StatementFailed
from holdfast.journal import rules
from holdfast.journal.admin import is_suspected
from holdfast.journal.bodies import RestoredFrom
from holdfast.journal.builds import name_and_build
from holdfast.journal.chain import first_link
from holdfast.journal.contract import Change, CommitOutcome, Hold, Statement, Submission, Submitted
from holdfast.journal.durability import Life
from holdfast.journal.postgres.adding import NOT_AS_PREPARED, RECORDS_MAX, Adding, Addition, Answer
from holdfast.journal.postgres.lane import Act, Lane
from holdfast.journal.postgres.links import BEGIN, Link, Links, transact
from holdfast.journal.postgres.place import Row
from holdfast.journal.postgres.rows import Chained, chained
from holdfast.journal.postgres.times import CarriedTime
from holdfast.journal.postgres.verbs import inbox, remarks, upkeep
from holdfast.journal.postgres.verbs.seen import note_folded
from holdfast.journal.postgres.verbs.sessions import longest_lease_ms
from holdfast.journal.postgres.verbs.statements import AFTER_STATEMENTS, apply_statements
from holdfast.journal.records import NewRecord, RecordKind, TaskState
from holdfast.journal.seal import DataKeySealer, KeyWraps
from holdfast.journal.sqlite.verbs.tasks import CLOSING
from holdfast.journal.total import RunningTotal

BATCH_MAX = 500
_JUST_RESTORED_MS = 3_600_000  # far above every lease
SENT_EARLY_MIN = 8  # of fewer tasks than twice that, all share a commit

_RECORD = "t, seq, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, fingerprint, slot, quiet, body, hash"
_RECORDS = (
    "unnest(%b::bigint[], %b::integer[], %b::smallint[], %b::bigint[], %b::text[], %b::bigint[], %b::bigint[], "
    f"%b::bigint[], %b::bytea[], %b::bytea[], %b::smallint[], %b::boolean[], %b::bytea[], %b::bytea[]) AS r({_RECORD})"
)
KEEP = (
    f"INSERT INTO $s.record (n, {_RECORD}) SELECT nextval('$s.record_number'), r.* FROM {_RECORDS} RETURNING t, seq, n"
)
MOVE = (
    "UPDATE $s.task AS k SET seq = w.seq, head = w.head, changed_ms = greatest(k.changed_ms, %b), "
    "crashes = CASE WHEN w.progress THEN 0 ELSE k.crashes END "
    "FROM unnest(%b::bigint[], %b::bigint[], %b::integer[], %b::integer[], %b::bytea[], %b::boolean[]) "
    "AS w(t, epoch, before, seq, head, progress) "
    "WHERE k.t = w.t AND k.epoch = w.epoch AND k.seq = w.before AND k.state = 'running' RETURNING k.t"
)
LOCK = "SELECT t, epoch, seq, state, due_ms FROM $s.task WHERE t = ANY(%b::bigint[]) ORDER BY t FOR UPDATE"
CHANGE = (
    "UPDATE $s.task AS k SET state = w.state, due_ms = w.due_ms, "
    "session = CASE WHEN w.state = 'running' THEN k.session END, "
    "crashes = CASE WHEN w.state = 'running' THEN k.crashes ELSE 0 END, "
    "keep_until_ms = greatest(k.keep_until_ms, w.keep_until_ms) "
    "FROM unnest(%b::bigint[], %b::text[], %b::bigint[], %b::bigint[]) AS w(t, state, due_ms, keep_until_ms) "
    "WHERE k.t = w.t"
)


@functools.lru_cache(256)
def _closes(events: tuple[Any, ...]) -> bool:
    return not CLOSING.isdisjoint(events)


class Append(Act, eq=False, kw_only=True):
    hold: Hold
    made: Chained
    progress: bool
    remarks: Sequence[NewRecord]
    change: Change | None
    applied: Sequence[int]
    statements: Sequence[Statement]
    adds_only: bool
    due_ms: int = rules.NEVER_MS  # of the task, as it was when it was locked


class Submit(Act, eq=False, kw_only=True):
    submission: Submission
    wrapped: tuple[int, bytes, DataKeySealer]


class Retain(Act, eq=False, kw_only=True):
    keep_ms: int
    tombstone_ms: int


class Confirm(Act, eq=False, kw_only=True):
    """Asked in the lane, which first settles what it has in doubt: else a statement that is still on its way could
    arrive after the answer."""

    hold: Hold
    seq: int


Write = Append | Submit | Retain | Confirm


class Writer(Lane[Write]):
    def __init__(
        self,
        links: Links,
        running: RunningTotal,
        *,
        time: CarriedTime,
        wraps: KeyWraps,
        boot_ms: Any,
        raise_mark: Callable[[int], None],
    ) -> None:
        super().__init__(links, running, raise_mark)
        self._running = running
        self._time = time
        self._wraps = wraps
        self._boot_ms = boot_ms
        self.statements_off = ""  # why no statement of a tool can be run
        self.tasks = 0  # that run here
        self._adding = Adding(links.place)
        self._sent: Answer | None = None

    def append(
        self,
        hold: Hold,
        entries: Sequence[NewRecord],
        *,
        change: Change | None,
        applied: Sequence[int],
        statements: Sequence[Statement],
    ) -> Append:
        """Seals at once: a body that cannot be kept disturbs nobody else."""
        if hold.sealer is None:
            raise InvariantViolated("sealed", "a hold of this journal has a sealer")
        if statements and self.statements_off:
            raise StatementFailed(self.statements_off)
        made = chained(
            entries,
            seq=hold.seq,
            head=hold.head,
            task_id=task_id_bytes(hold.task_id),
            epoch=hold.epoch,
            at_ms=self._time.now_ms(),
            boot_ms=self._boot_ms(),
            sealer=hold.sealer,
        )
        progress, told = False, list[NewRecord]()
        for entry in entries:
            progress = progress or _closes(entry.events)
            if entry.kind is RecordKind.REMARK:
                told.append(entry)
        act = Append(
            hold=hold,
            made=made,
            progress=progress,
            remarks=told,
            change=change,
            applied=applied,
            statements=statements,
            adds_only=not (change or applied or statements or told),
        )
        if entries:
            act.move = self._running.moved(made.before, made.head)
        return act

    def ended(self, act: Write) -> None:
        if act.error is None and isinstance(act, Append):
            act.hold.seq, act.hold.head = act.made.seq, act.made.head
            act.hold.last = act.result[-1] if act.result else act.hold.last

    def next_batch(self, queue: deque[Write]) -> list[Write]:
        """Two acts of one task do not share a batch: the second follows what the first has written."""
        taken: list[Write] = []
        tasks: set[object] = set()
        while queue and len(taken) < BATCH_MAX:
            act = queue[0]
            if isinstance(act, Retain | Confirm):
                return taken or [queue.popleft()]
            key = act.hold.task_id if isinstance(act, Append) else act.submission.task_id
            if key in tasks:
                break
            tasks.add(key)
            taken.append(queue.popleft())
        return taken

    async def write(self, link: Link, acts: list[Write]) -> int:
        if isinstance(acts[0], Retain):
            return await self._retain(link, acts[0])
        if isinstance(acts[0], Confirm):
            acts[0].result = await transact(link, functools.partial(_confirm, acts[0]))
            return 0
        appends = [act for act in acts if isinstance(act, Append)]
        if _add_only(acts):
            try:
                return await self._add(link, appends)
            except (pg.DivisionByZero, pg.NotNullViolation, pg.UniqueViolation):
                self.committing(None)  # one of the holds is stale: which one is found out under locks
            except NOT_AS_PREPARED:
                self.committing(None)
                self._adding.avoid(link)
        return await self._write_in_steps(link, acts)

    async def recover(self, link: Link, act: Write) -> None:
        if isinstance(act, Append):
            first = act.made.rows[0][0] if act.made.rows else 0
            query = "SELECT n FROM $s.record WHERE t = %s AND seq BETWEEN %s AND %s ORDER BY seq"
            act.result = [row[0] for row in await link.run(query, (act.hold.row, first, act.made.seq))]
            self.newest = max(self.newest, *act.result, 0)

    # one statement

    def begin(self, queue: deque[Write]) -> tuple[list[Write], Link] | None:
        if self.tasks <= 1:
            return self._begin_one(queue)
        if self.together or len(queue) < max(self.tasks // 2, SENT_EARLY_MIN) or not _add_only(queue):
            return None
        link = self._links.take_idle()
        if link is None:
            return None
        if not self.may_begin(link):
            self._links.give(link)
            return None
        acts = cast(list[Append], self.next_batch(queue))
        self._sent = self._send(link, acts)
        return cast(list[Write], acts), link

    def _begin_one(self, queue: deque[Write]) -> tuple[list[Write], Link] | None:
        """Of a task that runs alone: committed here, if the answer comes soon."""
        act = queue[0]
        if len(queue) > 1 or not isinstance(act, Append) or not act.adds_only:
            return None
        link = self._links.take_idle() if 0 < len(act.made.rows) <= RECORDS_MAX else None
        if link is None:
            return None
        if not (self.may_begin(link) and self._adding.is_prepared(link)):
            self._links.give(link)
            return None
        queue.clear()
        link.db.warned = ""
        added = Addition(act.hold.row, act.made.rows, act.progress)
        sent = self._adding.send_one(link, added, self.tally.moved(act.move, at_ms=act.made.at_ms))
        if not sent.is_good or link.db.warned:
            self._sent = sent
            return [act], link
        self._links.give(link)
        self._added([act], *sent.read())
        self.committed(act.move)
        act.decided = True
        return None

    def _send(self, link: Link, acts: list[Append]) -> Answer:
        link.db.warned = ""
        batch = [Addition(act.hold.row, act.made.rows, act.progress) for act in acts]
        tally = self.tally.moved(sum(act.move for act in acts), at_ms=self._time.now_ms())
        return self._adding.send(link, batch, tally)

    async def _add(self, link: Link, acts: list[Append]) -> int:
        sent, self._sent = self._sent, None
        if sent is None:
            if self.tasks <= 1 and not self._links.shared:
                await self._adding.prepare(link)
            sent = self._send(link, acts)
        move = sum(act.move for act in acts)
        self.committing(move)
        self._added(acts, *await sent.wait())
        return move

    def _added(self, acts: list[Append], database_ms: int, numbers: list[int]) -> None:
        self._time.heard(database_ms)
        self.newest = max(numbers)
        at = 0
        for act in acts:
            first, at = at, at + len(act.made.rows)
            act.result = numbers[first:at]

    # in steps

    async def _write_in_steps(self, link: Link, acts: list[Write]) -> int:
        await link.db.execute(BEGIN)
        appends = await self._check_holds(link, [act for act in acts if isinstance(act, Append)])
        submits = [act for act in acts if isinstance(act, Submit)]
        now_ms, kept = self._time.now_ms(), list[tuple[int, Chained]]()
        if submits:
            kept += await self._insert_tasks(link, submits, now_ms)
        going = [act for act in appends if not act.statements or await apply_statements(link, act)]
        if any(act.statements for act in appends):
            self._adding.forget(link)
            await link.db.execute(AFTER_STATEMENTS)
        if going:
            await link.run(MOVE, _moves(going, now_ms))
            kept += [(act.hold.row, act.made) for act in going]
        numbers = await link.run(KEEP, records_by_column(kept)) if any(made.rows for _, made in kept) else []
        _give_numbers(going, numbers)
        changed = [await self._changed(link, act, now_ms) for act in going if act.change or act.applied or act.remarks]
        if rows := [row for row in changed if row is not None]:
            await link.run(CHANGE, [list(column) for column in zip(*rows, strict=True)])
        done = [act for act in acts if act.error is None]
        if not done:
            await link.roll_back()
            return 0
        move = sum(act.move for act in done)
        await self.count(link, move, newest=max((row[2] for row in numbers), default=0), at_ms=now_ms)
        if any(act.statements for act in going):
            await link.db.execute(AFTER_STATEMENTS)
        self.committing(move)
        await link.commit()
        return move

    async def _retain(self, link: Link, act: Retain) -> int:
        """Erase what ended long ago; forget tombstones that outlived the longest key window; put old tallies
        together."""
        await link.db.execute(BEGIN)
        now_ms, element = self._time.now_ms(), self._running.element
        erased = await upkeep.erase_old(link, now_ms=now_ms, keep_ms=act.keep_ms)
        gone = await upkeep.forget_tombstones(link, now_ms=now_ms, tombstone_ms=act.tombstone_ms)
        await upkeep.sweep_old(link, before_ms=now_ms - act.keep_ms)
        move = sum(element(head, erased=True) - element(head) for head in erased)
        move -= sum(element(head, erased=True) for head in gone)
        newest = folded_ms = 0
        for w, total, last, at_ms in await link.run(_FOLD, (now_ms - act.keep_ms, self.tally.w)):
            move, newest = move + self._running.show(total, w.encode()), max(newest, last)
            folded_ms = max(folded_ms, at_ms)
        if folded_ms:
            await note_folded(link, folded_ms)
        await self.count(link, move, newest=newest, at_ms=now_ms)
        act.result = len(erased)
        self.committing(move)
        await link.commit()
        return move

    async def _check_holds(self, link: Link, acts: list[Append]) -> list[Append]:
        """Lock the tasks; those whose holds are theirs. The others are refused."""
        if not acts:
            return []
        rows = {row[0]: row for row in await link.run(LOCK, ([act.hold.row for act in acts],))}
        sound: list[Append] = []
        for act in acts:
            hold, row = act.hold, rows.get(act.hold.row)
            try:
                if row is None:
                    raise LeaseLost(task_id=hold.task_id, epoch=hold.epoch)
                rules.check_hold(
                    task_id=hold.task_id,
                    state=TaskState(row[3]),
                    epoch=row[1],
                    seq=row[2],
                    hold_epoch=hold.epoch,
                    hold_seq=act.made.seq - len(act.made.rows),
                )
                act.due_ms = row[4]
                sound.append(act)
            except (LeaseLost, InvariantViolated) as error:
                act.error = error
        return sound

    async def _insert_tasks(self, link: Link, acts: list[Submit], now_ms: int) -> list[tuple[int, Chained]]:
        """The tasks that are new, with their first records. An id that another process inserts at the same moment is
        waited for."""
        row = await link.one("SELECT lost_after_ms, restored_ms, number FROM $s.incarnation FOR SHARE")
        lost_after_ms, restored_ms, number = row or (0, 0, 0)
        life, suspected = Life(number, restored_ms), is_suspected(restored_ms, now_ms=now_ms)
        due_ms = now_ms
        if now_ms - restored_ms < _JUST_RESTORED_MS:  # its worker of before may live, as in `restoring`
            due_ms = max(now_ms, restored_ms + await longest_lease_ms(link))
        meeting = any(act.submission.also for act in acts)
        kept: list[tuple[int, Chained]] = []
        for act in acts:
            given, (key_id, data_key, sealer) = act.submission, act.wrapped
            raw = task_id_bytes(given.task_id)
            if given.also:
                await link.run(_MEET, (sorted((raw, *map(task_id_bytes, given.also))),))
                if await self._find_submitted(link, act, given.also):
                    continue
            body = {"name": given.name, "args": given.args, "request_id": given.request_id, **given.body}
            entries, due = [NewRecord(kind=RecordKind.ACCEPTED, body=body)], now_ms
            if given.request_id and suspected and given.since != life:
                lost = RestoredFrom(max(lost_after_ms, 1)).body()
                entries.append(NewRecord(kind=RecordKind.RESTORED, body=lost))
                due = due_ms
            made = chained(
                entries,
                seq=-1,
                head=first_link(raw),
                task_id=raw,
                epoch=0,
                at_ms=now_ms,
                boot_ms=self._boot_ms(),
                sealer=sealer,
            )
            new = await link.one(
                "INSERT INTO $s.task (task_id, name, fingerprint, state, epoch, seq, head, due_ms, created_ms, "
                "changed_ms, key_id, data_key) VALUES (%b, %s, %b, 'queued', 0, %s, %b, %s, %s, %s, %s, %b) "
                "ON CONFLICT (task_id) DO NOTHING RETURNING t",
                (raw, given.name, given.args_fingerprint, made.seq, made.head, due, now_ms, now_ms, key_id, data_key),
            )
            if new is not None:
                act.move = self._running.element(made.head)
                act.result = Submitted(task_id=given.task_id, created=True, state=TaskState.QUEUED)
                kept.append((new[0], made))
                continue
            await self._find_submitted(link, act, (given.task_id,))
        if meeting:
            await link.run("DELETE FROM $s.meeting")  # what others insert at this moment is not seen, and stays
        return kept

    async def _find_submitted(self, link: Link, act: Submit, ids: Sequence[TaskId]) -> bool:
        """Whether the task is there under one of these ids, as it was or in conflict."""
        given, act.move = act.submission, 0
        query = "SELECT task_id, name, fingerprint, state FROM $s.task WHERE task_id = ANY(%b::bytea[])"
        found = await link.one(query, ([task_id_bytes(one) for one in ids],))
        if found is None:
            return False
        task_id = task_id_from_bytes(found[0])
        if (name_and_build(found[1])[0], found[2]) != (given.name, given.args_fingerprint):
            act.error = RequestConflict(task_id=task_id, request_id=given.request_id, name=given.name)
        else:
            act.result = Submitted(task_id=task_id, created=False, state=TaskState(found[3]))
        return True

    async def _changed(self, link: Link, act: Append, now_ms: int) -> tuple[int, str, int, int] | None:
        """What comes with the records; the values of CHANGE, where the task changes its state."""
        hold = act.hold
        for entry in act.remarks:
            await remarks.add(link, rules.remark_of(hold.task_id, entry), self._wraps, at_ms=now_ms)
        if act.applied:
            await link.change(
                "UPDATE $s.inbox SET applied = true WHERE n = ANY(%s) AND t = %s", (list(act.applied), hold.row)
            )
        change = act.change
        if change is None:
            return None
        if change.state in rules.RESTING and await inbox.has_unseen(link, hold):
            change = rules.roused(change)
        if change.notice is not None:
            await upkeep.add_notice(link, change.notice, self._wraps, at_ms=now_ms)
        due_ms = rules.due_after_change(change, due_ms=act.due_ms, now_ms=now_ms)
        return hold.row, change.state.value, due_ms, change.keep_until_ms


# Two submissions of one request under different ids wait for each other here.
_MEET = "INSERT INTO $s.meeting (task_id) SELECT unnest(%b::bytea[]) ON CONFLICT DO NOTHING"

# Rows of lanes that have written nothing for long; one that still lives begins a new row.
_FOLD = "DELETE FROM $s.tally WHERE at_ms < %s AND w <> %s RETURNING w, total, last, at_ms"


async def _confirm(act: Confirm, link: Link) -> CommitOutcome:
    # Locking: it waits for a commit of another connection that still waits for its standby. Then a write: only its
    # return proves that what was found is on the standby too.
    row = await link.one("SELECT epoch, seq FROM $s.task WHERE t = %s FOR UPDATE", (act.hold.row,))
    if row is None or row[0] != act.hold.epoch:
        return CommitOutcome.ABORTED
    await link.run("UPDATE $s.task SET changed_ms = changed_ms WHERE t = %s", (act.hold.row,))
    return CommitOutcome.COMMITTED if row[1] >= act.seq else CommitOutcome.ABORTED


def _add_only(acts: Iterable[Write]) -> bool:
    return all(isinstance(act, Append) and act.adds_only and act.made.rows for act in acts)


def _moves(acts: Sequence[Append], now_ms: int) -> tuple[Any, ...]:
    return (
        now_ms,
        [act.hold.row for act in acts],
        [act.hold.epoch for act in acts],
        [act.made.seq - len(act.made.rows) for act in acts],
        [act.made.seq for act in acts],
        [act.made.head for act in acts],
        [act.progress for act in acts],
    )


def records_by_column(kept: Sequence[tuple[int, Chained]]) -> list[list[Any]]:
    """Column by column."""
    tasks = [t for t, made in kept for _ in made.rows]
    return [tasks, *(list(column) for column in zip(*(row for _, made in kept for row in made.rows), strict=True))]


def _give_numbers(acts: Sequence[Append], kept: Sequence[Row]) -> None:
    numbers = {(t, seq): n for t, seq, n in kept}
    for act in acts:
        act.result = [numbers[act.hold.row, row[0]] for row in act.made.rows]
