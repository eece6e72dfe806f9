"""The embedded journal: contract.Journal over one SQLite file.

Order of writes and what a crash leaves: every verb is one transaction (see writer.py), so a crash leaves it whole or
absent. After a commit the session page's mark is raised; it can lag behind the file by a crash in between, never run
ahead of it. A claim reads and verifies the task's chain first and then takes it only if nothing was added meanwhile:
what the claimer holds in memory is exactly what is durable.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeVar, cast

import apsw

from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.notices import Notice, task_damaged_notice
from holdfast.core.waiting import wait_event
from holdfast.errors import HoldfastError, InvariantViolated, JournalDamaged, LeaseLost, SessionLost, TaskNotFound
from holdfast.host.sqlite import Db
from holdfast.journal import contract, rules
from holdfast.journal.builds import NO_BUILD, Build, name_and_build, names_claimed
from holdfast.journal.durability import IN_A_FILE, Durability
from holdfast.journal.records import NewRecord, Record, TaskState, TaskView, fold
from holdfast.journal.seal import KeyWraps
from holdfast.journal.sqlite import totals
from holdfast.journal.sqlite.host.file_watch import FileWatch
from holdfast.journal.sqlite.host.instance import Instance
from holdfast.journal.sqlite.opening import check
from holdfast.journal.sqlite.rows import COLUMNS, TASK_COLUMNS, TASK_FROM, open_record, read_view, task_row
from holdfast.journal.sqlite.sql_errors import translated, unreadable
from holdfast.journal.sqlite.txn import NEWEST
from holdfast.journal.sqlite.verbs import claims, inbox, remarks, sessions, tasks, upkeep
from holdfast.journal.sqlite.writer import Writer
from holdfast.journal.steady import Moment, SteadyTime

T = TypeVar("T")

POLL_S, IDLE_POLL_S, BUSY_TICKS = 0.02, 0.05, 50  # how often another process's commits are looked for
TOTAL_REST = 49  # times the processor time of a check of the running total: it takes at most a fiftieth


class SqliteJournal:
    """One open journal file; made by `opening.open_journal`."""

    capabilities = contract.Capabilities(durable=True, statements=True, shared=True, administered=True)

    def __init__(
        self, instance: Instance, *, db: Db, reader: Db, wraps: KeyWraps, digest_key: bytes, path: Path, checked: object
    ) -> None:
        clock = instance.clock
        self.journal_id, self.incarnation = instance.folder.name, instance.incarnation
        self._path = path
        self._db = db
        self._reader = reader
        self._clock = clock
        self._entropy = instance.entropy
        self._time = SteadyTime(clock)
        self._wraps = wraps
        self._digest_key = digest_key
        self._instance = instance
        self._running = wraps.running_total(self.journal_id)
        self._writer = Writer(db, instance, self._running, reads_only=wraps.reads_only)
        self._watch = FileWatch(path, instance.folder, let_go=self._let_go)
        self._changed, self._changes, self._waiting = asyncio.Event(), 0, 0
        self._ticking: asyncio.TimerHandle | None = None
        self._ticks, self._holds, self._closed = 0, 0, False  # ticks: looks since the last change
        self._seen_version = self._timed_version = cast(object, None)
        self._seen_version = self._data_version()
        self._total_version = checked  # the data_version that the running total was checked after; None: it was not
        self._total_after_s = 0.0
        # Looked at before anybody buries the dead: did a session end without saying so?
        rows = self._read(lambda db: sessions.list_sessions(db, clock, instance))
        self.unclean = any(not row.ended and not row.alive for row in rows)

    # sessions

    async def open_session(
        self, *, worker: str, ttl_ms: int, serves: contract.TaskNames = None, build: Build = NO_BUILD
    ) -> contract.Session:
        session = sessions.SqliteSession.begun(self._instance, ttl_ms=ttl_ms, build=build)
        asked = self._clock.boot_ms()
        session.row = await self._writer.write(
            lambda txn: claims.begin_session(txn, session, worker=worker, asked_boot_ms=asked, serves=serves)
        )
        session.deadline_boot_ms = rules.deadline_boot_ms(asked, ttl_ms)
        return session

    async def renew(self, session: contract.Session) -> None:
        own = sessions.own_session(session)
        asked = self._clock.boot_ms()
        until = rules.lease_until_boot_ms(asked, own.ttl_ms)
        if asked > own.deadline_boot_ms:
            raise SessionLost("the lease ended before this process could renew it")
        if not await self._writer.write(lambda txn: claims.extend_session(txn, own.row, until)):
            raise SessionLost("another process has declared this session dead")
        own.deadline_boot_ms = rules.deadline_boot_ms(asked, own.ttl_ms)

    async def end_session(self, session: contract.Session, *, orderly: bool = True) -> None:
        own = sessions.own_session(session)
        if own.row and orderly:
            await self._writer.write(lambda txn: claims.end_session(txn, own.row))
        # Its slots still say what was sent of the steps that a lost session leaves open.
        self._instance.close_page(own.page, delete=orderly)
        self._set_holds(0)

    # tasks

    async def submit(
        self, submission: contract.Submission, *, taker: contract.Taker | None = None
    ) -> contract.Submitted:
        wrapped = self._wraps.new_data_key(task_id_bytes(submission.task_id))
        own = None if taker is None else sessions.own_session(taker[0])

        def give(decided: tuple[contract.Submitted, tuple[contract.Claimed, Record] | None]) -> None:
            self._note_change()
            if decided[1] is not None and taker is not None:
                taker[1](self._taken(*decided[1]))

        act = functools.partial(claims.submit, submission=submission, wrapped=wrapped, session=own, wraps=self._wraps)
        return (await self._writer.write(act, then=give))[0]

    async def claim(
        self,
        session: contract.Session,
        *,
        names: contract.TaskNames,
        limit: int,
        task_id: TaskId | None = None,
        alone: bool = False,
    ) -> list[contract.Claimed]:
        own, now_ms = sessions.own_session(session), self.now_ms()
        names = None if names is None else names_claimed(names, own.build)
        dead = self._read(lambda db: sessions.find_dead_sessions(db, self._clock, self._instance, but=own.row))
        find = functools.partial(
            claims.find_candidates, now_ms=now_ms, dead=dead, names=names, limit=limit, task_id=task_id, alone=alone
        )
        candidates = self._read(find)
        if not candidates:
            return []
        sound: list[claims.Candidate] = []
        for candidate in candidates:
            try:
                self._read(functools.partial(candidate.load, wraps=self._wraps))
                sound.append(candidate)
            except (JournalDamaged, InvariantViolated) as error:
                await self._park_damaged(candidate, error)
        taken = await self._writer.write(lambda txn: claims.take(txn, sound, own, dead=dead, wraps=self._wraps))
        return [self._taken(claimed, record) for claimed, record in taken]

    def _taken(self, claimed: contract.Claimed, record: Record) -> contract.Claimed:
        """A claim that is committed, with its record and what waits in its inbox."""
        self._set_holds(self._holds + 1)
        fold(claimed.view, record)
        claimed.inbox = self._read(functools.partial(inbox.pending_of, hold=claimed.hold))
        claimed.hold.seen = max((item.number for item in claimed.inbox), default=0)
        return claimed

    def append(
        self,
        hold: contract.Hold,
        entries: Sequence[NewRecord],
        *,
        change: contract.Change | None = None,
        applied: Sequence[int] = (),
        statements: Sequence[contract.Statement] = (),
        begins: bool = False,
    ) -> CoroutineType[Any, Any, list[int]]:
        # Not a coroutine of its own around the writer's: every step passes here.
        adds_only = change is None and not applied and not statements
        addition = tasks.Addition(hold, entries, change, applied, statements, self._wraps, adds_only)
        then = addition.move if change is None else functools.partial(self._end_hold, addition)
        return self._writer.write(addition.write, begins=begins, adds_only=not statements, then=then)

    def _end_hold(self, addition: tasks.Addition, numbers: list[int]) -> None:
        addition.move(numbers)
        if addition.change is not None and addition.change.state is not TaskState.RUNNING:
            self._set_holds(self._holds - 1)
            self._note_change()

    async def release(self, hold: contract.Hold) -> None:
        if await self._writer.write(lambda txn: claims.release(txn, hold)):
            self._set_holds(self._holds - 1)
            self._note_change()

    async def confirm(self, hold: contract.Hold, *, seq: int) -> contract.CommitOutcome:
        try:
            found = await self._writer.write(lambda txn: tasks.confirm(txn, hold, seq))
        except LeaseLost:
            return contract.CommitOutcome.ABORTED
        except HoldfastError:
            return contract.CommitOutcome.UNKNOWN
        return contract.CommitOutcome.COMMITTED if found else contract.CommitOutcome.ABORTED

    async def drop(self, item: contract.InboxItem, *, check: contract.DropCheck | None = None) -> int:
        number = await self._writer.write(lambda txn: inbox.drop(txn, item, self._wraps, check))
        self._note_change()
        return number

    async def read_inbox(self, *, after: int) -> list[contract.InboxItem]:
        return self._read(lambda db: inbox.read_after(db, after, self._wraps))

    def send_begun(self, *, session_id: str, boot_id: str, slot: int, tag: bytes) -> bool:
        if boot_id != self._clock.boot_id or slot < 0:
            return True
        return self._instance.send_begun(session_id, slot, tag)

    def is_left(self, *, session_id: str, boot_id: str, slot: int, tag: bytes, in_child: bool) -> bool:
        same_boot = boot_id == self._clock.boot_id
        return same_boot and self._instance.is_left(session_id, slot, tag, in_child=in_child)

    # reading

    async def find_task(self, task_id: TaskId) -> contract.TaskRow | None:
        query, raw = f"SELECT {TASK_COLUMNS} {TASK_FROM} WHERE t.task_id = ?", task_id_bytes(task_id)
        row = self._read(lambda db: db.execute(query, (raw,)).fetchone())
        return None if row is None else task_row(row)

    async def read_task(self, task_id: TaskId) -> TaskView:
        raw = task_id_bytes(task_id)

        def read(db: Db) -> TaskView:
            row = db.execute(
                "SELECT seq, head, last, key_id, data_key, erased_ms, name FROM task WHERE task_id = ?", (raw,)
            ).fetchone()
            if row is None:
                raise TaskNotFound(task_id)
            if row[5] is not None:
                view = TaskView(task_id)
                view.name, _ = name_and_build(row[6])
                return view
            sealer = self._wraps.open_data_key(row[3], row[4], raw)
            return read_view(db, task_id=task_id, seq=row[0], head=row[1], last=row[2], sealer=sealer)

        return self._read_at_once(read)

    async def read_newest(self, task_id: TaskId) -> Record | None:
        raw = task_id_bytes(task_id)

        def read(db: Db) -> Record | None:
            row = db.execute("SELECT last, key_id, data_key, erased_ms FROM task WHERE task_id = ?", (raw,)).fetchone()
            if row is None:
                raise TaskNotFound(task_id)
            if row[3] is not None:
                return None
            sealer = self._wraps.open_data_key(row[1], row[2], raw)
            found = db.execute(f"SELECT {COLUMNS} FROM record WHERE n = ?", (row[0],)).fetchone()
            if found is None:
                raise JournalDamaged(f"task {task_id}: its newest record is missing")
            return open_record(found, raw, sealer)

        return self._read_at_once(read)

    async def inbox_of(self, task_id: TaskId) -> list[contract.InboxItem]:
        return self._read(lambda db: inbox.of_task(db, task_id, self._wraps))

    async def list_tasks(self, filter: contract.Filter) -> list[contract.TaskRow]:
        return self._read(lambda db: tasks.list_tasks(db, filter))

    async def count_tasks(self) -> dict[TaskState, int]:
        query = "SELECT state, count(*) FROM task GROUP BY state"
        return self._read(lambda db: {TaskState(str(state)): int(str(count)) for state, count in db.execute(query)})

    async def count_waiting(self, *, parked: bool = False) -> list[contract.WaitingTasks]:
        dead = self._read(lambda db: sessions.find_dead_sessions(db, self._clock, self._instance, but=0))
        now_ms = self.now_ms()
        return self._read(lambda db: claims.count_waiting(db, now_ms=now_ms, dead=dead, parked=parked))

    async def list_sessions(self) -> list[contract.SessionRow]:
        return self._read(lambda db: sessions.list_sessions(db, self._clock, self._instance))

    async def find_effect(self, effect_key: bytes) -> tuple[TaskId, str] | None:
        return self._read(lambda db: tasks.find_effect(db, effect_key))

    async def find_due_ms(self) -> int | None:
        query = "SELECT min(due_ms) FROM task WHERE state IN ('queued', 'sleeping', 'waiting')"
        row = self._read(lambda db: db.execute(query).fetchone())
        due = None if row is None else row[0]
        return due if isinstance(due, int) and due != rules.NEVER_MS else None

    async def wait_change(self, *, timeout_s: float, seen: int | None = None) -> int:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        before = self._look() if seen is None else seen
        self._waiting += 1
        try:
            while self._look() == before and (left := end - loop.time()) > 0:
                if self._ticking is None:
                    self._ticking = loop.call_later(POLL_S, self._tick, loop)
                await wait_event(self._changed, left)
        finally:
            self._waiting -= 1
        return self._changes

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """One look for all who wait, as long as somebody does."""
        self._ticking = None
        if not self._waiting or self._closed:
            return
        try:
            self._look()
        except HoldfastError:
            self._note_change()  # those who wait look themselves, and so get the error
        self._ticks += 1
        self._ticking = loop.call_later(POLL_S if self._ticks < BUSY_TICKS else IDLE_POLL_S, self._tick, loop)

    def _look(self) -> int:
        version = self._data_version()
        if version != self._seen_version:
            self._seen_version = version
            self._note_change()
        return self._changes

    def _note_change(self) -> None:
        """Wakes all who wait. Each has its own count of what it has seen, so nobody takes another's wake-up."""
        self._changes += 1
        self._ticks = 0
        self._changed.set()
        self._changed = asyncio.Event()

    async def find_over(self, task_ids: Collection[TaskId]) -> list[TaskId]:
        return self._read(lambda db: tasks.find_over(db, task_ids))

    # blobs

    async def put_blob(self, content: bytes, *, task_id: TaskId | None = None) -> str:
        return await self._writer.write(
            lambda txn: upkeep.put_blob(txn, content, task_id, self._wraps, self._digest_key)
        )

    async def put_blobs(self, contents: Sequence[bytes], *, task_id: TaskId) -> list[str]:
        return await self._writer.write(
            lambda txn: upkeep.put_blobs(txn, contents, task_id, self._wraps, self._digest_key), begins=True
        )

    async def get_blob(self, digest: str) -> bytes:
        return self._read(lambda db: upkeep.get_blob(db, digest, self._wraps, self._digest_key))

    # remarks

    async def add_remarks(self, given: Sequence[contract.Remark], /) -> list[int]:
        numbers = await self._writer.write(lambda txn: remarks.add(txn, given, self._wraps))
        self._note_change()
        return numbers

    async def remarks_after(self, number: int, *, limit: int) -> list[contract.KeptRemark]:
        return self._read(lambda db: remarks.read_after(db, number, limit, self._wraps))

    async def find_remark_link(self, number: int) -> bytes | None:
        return self._read(lambda db: remarks.find_link(db, number))

    async def remark_marks(self) -> list[contract.RemarkMark]:
        return self._read(remarks.marks)

    async def close_remarks(self, number: int, *, folder: str, name: str = "") -> None:
        await self._writer.write(lambda txn: remarks.close(txn, number, folder, name))

    async def forget_folder(self, folder: str) -> bool:
        return await self._writer.write(lambda txn: remarks.forget(txn, folder))

    # upkeep

    def notice_turn(self) -> AbstractAsyncContextManager[bool]:
        return self._instance.notice_turn()

    async def pending_notices(self, *, limit: int) -> list[Notice]:
        return self._read(lambda db: upkeep.pending_notices(db, limit, self._wraps))

    async def close_notice(self, notice_id: str) -> None:
        await self._writer.write(lambda txn: upkeep.close_notice(txn, notice_id))

    async def add_notice(self, notice: Notice) -> None:
        await self._writer.write(lambda txn: upkeep.add_notice(txn, notice, self._wraps))
        self._note_change()

    async def retain(self, *, keep_ms: int, tombstone_ms: int) -> int:
        erased = await self._writer.write(lambda txn: upkeep.retain(txn, keep_ms=keep_ms, tombstone_ms=tombstone_ms))
        self._instance.fold_marks(self._read(sessions.pages_to_keep))
        return erased

    async def check(self) -> AsyncIterator[str]:
        """Runs on a thread of its own with a connection of its own."""
        for finding in await asyncio.to_thread(check.find_damage, self._path, self._wraps):
            yield finding

    async def check_total(self) -> None:
        """On a thread with a connection of its own."""
        version, loop = self._data_version(), asyncio.get_running_loop()
        if version == self._total_version or loop.time() < self._total_after_s:
            return
        took_s = await asyncio.to_thread(totals.check_file, self._path, self._running)
        self._total_version, self._total_after_s = version, loop.time() + TOTAL_REST * took_s

    async def find_durability(self, *, provider: bool = False) -> Durability:
        return IN_A_FILE

    def now_ms(self) -> int:
        return self._time.now_ms(self._newest())

    @property
    def clock_behind_ms(self) -> int:
        return max(0, self._newest().at_ms - self._clock.wall_ms())

    @property
    def clock_ahead_ms(self) -> int:
        return 0

    def _newest(self) -> Moment:
        """When the newest record was written, also where another process wrote it."""
        version = self._data_version()
        if version != self._timed_version:
            self._timed_version = version
            row = self._read(lambda db: db.execute(NEWEST).fetchone())
            if row is not None:
                _, at_ms, boot_ms, _ = cast("tuple[int, int, int, bytes]", row)
                self._writer.newest = max(self._writer.newest, Moment(at_ms, boot_ms))
        return self._writer.newest

    @property
    def commits(self) -> int:
        return self._writer.commits

    @property
    def full(self) -> bool:
        return self._writer.full

    @property
    def broken(self) -> str:
        return self._writer.broken

    def remember_newest(self) -> None:
        """Take over sequence and time of the newest record; called once when opened."""
        self._writer.remember_newest()

    def _let_go(self, error: HoldfastError) -> bool:
        """Close the file and leave it to others, between two commits; whoever waits for a change is told."""
        if self._writer.busy:
            return False
        self._writer.refuse(error)
        self._reader.close()
        self._db.close()
        self._instance.let_go()
        self._note_change()
        return True

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watch.end()
        await self._writer.drain()
        self._writer.close()
        self._reader.close()
        self._db.close()
        self._instance.close()

    def _set_holds(self, holds: int) -> None:
        self._holds = max(0, holds)
        self._writer.lone = self._holds <= 1

    async def _park_damaged(self, candidate: claims.Candidate, error: HoldfastError) -> None:
        notice = task_damaged_notice(candidate.task_id, error.message, epoch=candidate.epoch, now_ms=self.now_ms())
        await self._writer.write(lambda txn: claims.park_damaged(txn, candidate, notice, self._wraps))

    def _read(self, read: Callable[[Db], T]) -> T:
        self._watch.check()
        try:
            return read(self._reader)
        except apsw.Error as error:
            raise translated(error) from error
        except (ValueError, TypeError) as error:
            raise unreadable(error) from error

    def _read_at_once(self, read: Callable[[Db], T]) -> T:
        """Several queries of one moment: another process may commit between two of them."""

        def at_once(db: Db) -> T:
            db.execute("BEGIN")
            try:
                return read(db)
            finally:
                db.execute("COMMIT")

        return self._read(at_once)

    def _data_version(self) -> object:
        self._watch.check()
        try:
            # On the writer's connection: only other connections' commits change the number.
            return self._seen_version if self._writer.committing else self._db.pragma("data_version")
        except apsw.Error as error:
            raise translated(error) from error
