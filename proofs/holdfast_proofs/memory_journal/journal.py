"""A journal without a disk, for simulation and tests.

`MemoryStore().connect(clock, entropy)` gives a handle; several handles over one store stand for
several processes. It keeps the whole contract but the first promise: nothing survives the end of
this process. It reads time and randomness only through its ports, starts no thread, and no verb
pauses between its check and its write: each is atomic on one event loop, and a seed replays.

Death is `store.kill_session(id)`: the lock is released, the lease and the send-begun slots stay
as they were, as a SIGKILL leaves them. A clock with another boot id is a machine that restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import msgspec
from msgspec import UNSET

from holdfast.core.clock import Clock, Entropy
from holdfast.core.ids import TaskId
from holdfast.core.notices import poison_notice, task_damaged_notice
from holdfast.errors import HoldfastError, LeaseLost, RequestConflict, SessionLost, TaskNotFound
from holdfast.journal import rules
from holdfast.journal.bodies import ClaimedBy
from holdfast.journal.builds import NO_BUILD, Build, build_when_claimed, names_claimed, pinned_name
from holdfast.journal.contract import (
    Capabilities,
    Change,
    Claimed,
    CommitOutcome,
    DropCheck,
    Filter,
    Hold,
    InboxItem,
    Session,
    SessionRow,
    Statement,
    Submission,
    Submitted,
    Taker,
    TaskNames,
    TaskRow,
    WaitingTasks,
)
from holdfast.journal.records import ENDED, NewRecord, Record, RecordKind, TaskState, TaskView, fold
from holdfast_proofs.memory_journal.contents import (
    InboxCell,
    MemoryContents,
    MemorySession,
    SessionCell,
    TaskCell,
    encode_body,
)
from holdfast_proofs.memory_journal.upkeep import MemoryUpkeep


class MemoryJournal(MemoryUpkeep):
    """One process's handle on a MemoryStore."""

    def __init__(self, store: MemoryContents, clock: Clock, entropy: Entropy, *, host_id: str = "") -> None:
        super().__init__(store, clock)
        hosts = store.server is not None
        self.capabilities = Capabilities(durable=False, statements=True, shared=True, hosts=hosts, administered=False)
        self._host_id = host_id
        self._entropy = entropy
        self._opened: list[SessionCell] = []
        self._watch: rules.LeaseWatch | None = None
        self.journal_id = store.journal_id
        self.broken = ""
        self.full = False

    @property
    def incarnation(self) -> int:
        return self._store.incarnation

    @property
    def commits(self) -> int:
        return self._store.changes

    # sessions

    async def open_session(
        self, *, worker: str, ttl_ms: int, serves: TaskNames = None, build: Build = NO_BUILD
    ) -> Session:
        store, request_ms, session_id = self._store, self._clock.boot_ms(), self._entropy.bytes(16).hex()
        cell = SessionCell(
            session_id=session_id,
            worker=worker,
            pid=len(store.sessions) + 1,
            lease=self._new_lease(session_id, ttl_ms),
            now_ms=self.now_ms(),
        )
        cell.build = build
        cell.serves = None if serves is None else frozenset(names_claimed(serves, build))
        store.sessions[cell.session_id] = cell
        self._opened.append(cell)
        return MemorySession(
            cell, incarnation=store.incarnation, ttl_ms=ttl_ms, deadline=rules.deadline_boot_ms(request_ms, ttl_ms)
        )

    async def renew(self, session: Session) -> None:
        request_ms = self._clock.boot_ms()
        if request_ms > session.deadline_boot_ms:
            raise SessionLost(f"session {session.session_id}: the lease was over before")
        cell = self._alive(session)
        cell.lease = self._new_lease(session.session_id, session.ttl_ms)
        session.deadline_boot_ms = rules.deadline_boot_ms(request_ms, session.ttl_ms)

    async def end_session(self, session: Session, *, orderly: bool = True) -> None:
        cell = self._store.sessions[session.session_id]
        cell.locked = False
        if not orderly:
            self._changed()
            return
        cell.lease = msgspec.structs.replace(cell.lease, ended=True)
        for task in self._store.tasks.values():
            if task.session_id == session.session_id:
                task.state, task.session_id, task.crashes = TaskState.QUEUED, "", 0
        self._changed()

    def _new_lease(self, session_id: str, ttl_ms: int) -> rules.Lease:
        at = self._look()
        return rules.Lease(
            session_id=session_id,
            ended=False,
            boot_id=at.boot_id,
            until_boot_ms=rules.lease_until_boot_ms(at.boot_ms, ttl_ms),
            host_id=at.host_id,
            until_ms=at.now_ms + ttl_ms,
            ttl_ms=ttl_ms,
        )

    def _look(self) -> rules.LookedAt:
        """Where and when it is now; a journal of several hosts is asked for its own time."""
        boot_id, boot_ms, server = self._clock.boot_id, self._clock.boot_ms(), self._store.server
        if server is None:
            return rules.LookedAt(boot_id=boot_id, boot_ms=boot_ms)
        until_ms = {cell.session_id: cell.lease.until_ms for cell in self._store.sessions.values()}
        self._watch = rules.watch_leases(self._watch, timeline=self._store.timeline, until_ms=until_ms, boot_ms=boot_ms)
        now_ms = server.wall_ms()
        return rules.LookedAt(boot_id=boot_id, boot_ms=boot_ms, host_id=self._host_id, now_ms=now_ms, watch=self._watch)

    def _alive(self, session: Session) -> SessionCell:
        cell = self._store.sessions[session.session_id]
        if cell.dead(self._look()):
            raise SessionLost(f"session {session.session_id}: the lease is over")
        return cell

    # tasks

    async def submit(self, submission: Submission, *, taker: Taker | None = None) -> Submitted:
        store, task_id = self._store, submission.task_id
        for one in (task_id, *submission.also):
            known = store.tasks.get(one)
            if known is not None:
                if (known.name, known.fingerprint) != (submission.name, submission.args_fingerprint):
                    raise RequestConflict(task_id=one, request_id=submission.request_id, name=submission.name)
                return Submitted(task_id=one, created=False, state=known.state)
        entry = NewRecord(
            kind=RecordKind.ACCEPTED,
            body={
                **submission.body,
                "name": submission.name,
                "args": submission.args,
                "request_id": submission.request_id,
            },
        )
        raw, now_ms = encode_body(entry.body), self.now_ms()
        store.rows += 1
        task = TaskCell(
            task_id=task_id,
            name=submission.name,
            fingerprint=submission.args_fingerprint,
            row=store.rows,
            now_ms=now_ms,
        )
        store.tasks[task_id] = task
        store.keep(task, entry, raw, epoch=0, at_ms=now_ms, boot_ms=self._clock.boot_ms())
        self._changed()
        return Submitted(task_id=task_id, created=True, state=task.state)

    async def claim(
        self,
        session: Session,
        *,
        names: Collection[str] | None,
        limit: int,
        task_id: TaskId | None = None,
        alone: bool = False,
    ) -> list[Claimed]:
        holder = self._alive(session)
        claimed: list[Claimed] = []
        for task in self._candidates(None if names is None else names_claimed(names, holder.build), task_id):
            if len(claimed) >= limit:
                break
            one = self._claim_one(task, session, holder, alone=alone)
            if one is not None:
                claimed.append(one)
        return claimed

    def _candidates(self, names: Collection[str] | None, task_id: TaskId | None) -> list[TaskCell]:
        now_ms = self.now_ms()
        found = [
            task
            for task in self._store.tasks.values()
            if (names is None or pinned_name(task.name, task.build) in names)
            and task_id in (None, task.task_id)
            and rules.claimable(
                state=task.state, due_ms=task.due_ms, holder_dead=self._holder_dead(task), now_ms=now_ms
            )
        ]
        return sorted(found, key=lambda task: rules.claim_order(due_ms=task.due_ms, row=task.row))

    def _holder_dead(self, task: TaskCell) -> bool:
        holder = self._store.sessions.get(task.session_id)
        return holder is None or holder.dead(self._look())

    def _claim_one(self, task: TaskCell, session: Session, holder: SessionCell, *, alone: bool) -> Claimed | None:
        store, now_ms = self._store, self.now_ms()
        try:
            view = store.view(task)
        except HoldfastError as error:
            self._park_damaged(task, error, now_ms)
            return None
        decision = rules.decide_claim(
            state=task.state,
            due_ms=task.due_ms,
            crashes=task.crashes,
            epoch=task.epoch,
            progress_epoch=view.progress_epoch,
            holder_dead=self._holder_dead(task),
            alone=alone,
            now_ms=now_ms,
        )
        if decision.verdict is rules.Claimable.NO:
            return None
        task.epoch = rules.next_epoch(task.epoch, incarnation=session.incarnation)
        task.crashes = decision.crashes
        task.build = build_when_claimed(task.name, holder.build)
        by = ClaimedBy(session.session_id, session.boot_id, holder.worker, self._host_id or UNSET, task.build or UNSET)
        self._write(task, [NewRecord(kind=RecordKind.CLAIMED, body=by.body())], view)
        if decision.verdict is rules.Claimable.POISON:
            self._write(task, [rules.poison_entry()], view)
            self._rest(task, TaskState.PARKED, rules.NEVER_MS, now_ms)
            notice = poison_notice(task.task_id, rules.POISON_QUESTION, epoch=task.epoch, now_ms=now_ms)
            store.add_notice(notice, now_ms=now_ms)
            return None
        task.state, task.session_id, task.changed_ms = TaskState.RUNNING, holder.session_id, now_ms
        hold = Hold(
            task_id=task.task_id,
            epoch=task.epoch,
            session=session,
            row=task.row,
            seq=task.seq,
            head=task.head,
            last=task.last,
            sealer=None,
        )
        inbox = [item.shown() for item in self._inbox_cells(task.task_id) if not item.applied]
        hold.seen = max((item.number for item in inbox), default=0)
        return Claimed(hold=hold, view=view, crashes=task.crashes, inbox=inbox)

    def _park_damaged(self, task: TaskCell, error: HoldfastError, now_ms: int) -> None:
        notice = task_damaged_notice(task.task_id, error.message, epoch=task.epoch, now_ms=now_ms)
        self._rest(task, TaskState.PARKED, rules.NEVER_MS, now_ms)
        self._store.add_notice(notice, now_ms=now_ms)

    async def append(
        self,
        hold: Hold,
        entries: Sequence[NewRecord],
        *,
        change: Change | None = None,
        applied: Sequence[int] = (),
        statements: Sequence[Statement] = (),
        begins: bool = False,
    ) -> list[int]:
        store = self._store
        task = store.tasks.get(hold.task_id)
        if task is None:
            raise LeaseLost(task_id=hold.task_id, epoch=hold.epoch)
        rules.check_hold(
            task_id=hold.task_id,
            state=task.state,
            epoch=task.epoch,
            seq=task.seq,
            hold_epoch=hold.epoch,
            hold_seq=hold.seq,
        )
        raws = [encode_body(entry.body) for entry in entries]
        store.apply(statements)
        now_ms, boot_ms = self.now_ms(), self._clock.boot_ms()
        numbers = [
            store.keep(task, entry, raw, epoch=hold.epoch, at_ms=now_ms, boot_ms=boot_ms).number
            for entry, raw in zip(entries, raws, strict=True)
        ]
        hold.seq, hold.head, hold.last = task.seq, task.head, task.last
        for entry in entries:
            if entry.kind is RecordKind.REMARK:
                store.add_remark(rules.remark_of(hold.task_id, entry), now_ms=now_ms)
        for item in self._inbox_cells(hold.task_id):
            item.applied = item.applied or item.number in applied
        if change is not None:
            if change.state in rules.RESTING and self._has_unseen(hold):
                change = rules.roused(change)
            self._take_change(task, change, now_ms)
        self._changed()
        return numbers

    def _has_unseen(self, hold: Hold) -> bool:
        return any(item.number > hold.seen and not item.applied for item in self._inbox_cells(hold.task_id))

    def _take_change(self, task: TaskCell, change: Change, now_ms: int) -> None:
        task.crashes = rules.crashes_after_change(change, task.crashes)
        task.keep_until_ms = max(task.keep_until_ms, change.keep_until_ms)
        due_ms = rules.due_after_change(change, due_ms=task.due_ms, now_ms=now_ms)
        if change.state is TaskState.RUNNING:
            task.changed_ms = now_ms
        else:
            self._rest(task, change.state, due_ms, now_ms)
        if change.notice is not None:
            self._store.add_notice(change.notice, now_ms=now_ms)

    def _rest(self, task: TaskCell, state: TaskState, due_ms: int, now_ms: int) -> None:
        task.state, task.due_ms, task.changed_ms, task.session_id = state, due_ms, now_ms, ""
        self._changed()

    def _write(self, task: TaskCell, entries: Sequence[NewRecord], view: TaskView) -> None:
        """Keep records of the journal's own and take them into the view."""
        now_ms, boot_ms = self.now_ms(), self._clock.boot_ms()
        for entry in entries:
            record = self._store.keep(
                task, entry, encode_body(entry.body), epoch=task.epoch, at_ms=now_ms, boot_ms=boot_ms
            )
            fold(view, msgspec.structs.replace(record, body=entry.body))

    async def release(self, hold: Hold) -> None:
        task = self._store.tasks.get(hold.task_id)
        if task is not None and task.state is TaskState.RUNNING and task.epoch == hold.epoch:
            task.state, task.session_id, task.changed_ms = TaskState.QUEUED, "", self.now_ms()
            self._changed()

    async def confirm(self, hold: Hold, *, seq: int) -> CommitOutcome:
        task = self._store.tasks.get(hold.task_id)
        if task is None or not 0 <= seq <= task.seq:
            return CommitOutcome.ABORTED
        if task.kept[seq].record.epoch != hold.epoch:
            return CommitOutcome.ABORTED
        if task.epoch == hold.epoch:
            hold.seq, hold.head, hold.last = task.seq, task.head, task.last
        return CommitOutcome.COMMITTED

    async def drop(self, item: InboxItem, *, check: DropCheck | None = None) -> int:
        store, now_ms = self._store, self.now_ms()
        task = store.get_task(item.task_id)
        if task.erased_ms is not None:
            raise TaskNotFound(item.task_id)
        if check is not None:
            check(store.view(task), [cell.shown() for cell in self._inbox_cells(item.task_id)])
        raw = encode_body(item.body)
        store.dropped += 1
        number = store.dropped
        store.inbox.append(InboxCell(number, item.task_id, item.ordinal, item.kind, raw, now_ms))
        task.cancel_asked = task.cancel_asked or rules.asks_cancel(task.state, item.kind)
        woken = rules.wake(task.state, item.kind, crashes=task.crashes, changed_ms=task.changed_ms)
        if woken is not None:
            task.crashes = woken.crashes
            self._rest(task, woken.state, woken.due_ms, now_ms)
        self._changed()
        return number

    async def read_inbox(self, *, after: int) -> list[InboxItem]:
        items = [item for item in self._store.inbox if item.number > after and not item.applied]
        return [item.shown() for item in items if self._store.tasks[item.task_id].state not in ENDED]

    def _inbox_cells(self, task_id: TaskId) -> list[InboxCell]:
        return [item for item in self._store.inbox if item.task_id == task_id]

    def send_begun(self, *, session_id: str, boot_id: str, slot: int, tag: bytes) -> bool:
        cell = self._store.sessions.get(session_id)
        if cell is None or cell.locked or cell.lease.boot_id != boot_id:
            return True
        if boot_id != self._clock.boot_id:
            return True  # the page did not outlive the machine's restart
        return cell.slots.get(slot) != (tag, False)

    def is_left(self, *, session_id: str, boot_id: str, slot: int, tag: bytes, in_child: bool) -> bool:
        cell = self._store.sessions.get(session_id)
        if cell is None or boot_id != self._clock.boot_id:
            return False
        if cell.locked:
            return in_child
        return slot in cell.left and cell.slots.get(slot, (b"",))[0] == tag

    # reading

    async def find_task(self, task_id: TaskId) -> TaskRow | None:
        task = self._store.tasks.get(task_id)
        return None if task is None else task.shown()

    async def read_task(self, task_id: TaskId) -> TaskView:
        return self._store.view(self._store.get_task(task_id))

    async def read_newest(self, task_id: TaskId) -> Record | None:
        kept = list(self._store.records(self._store.get_task(task_id)))
        return kept[-1] if kept else None

    async def inbox_of(self, task_id: TaskId) -> list[InboxItem]:
        return [item.shown() for item in self._inbox_cells(task_id)]

    async def list_tasks(self, filter: Filter) -> list[TaskRow]:
        first = None if filter.after is None else self._store.tasks.get(filter.after)
        if filter.after is not None and first is None:
            return []
        found = [
            task.shown()
            for task in sorted(self._store.tasks.values(), key=lambda task: task.row, reverse=filter.newest_first)
            if (filter.states is None or task.state in filter.states)
            and filter.name in (None, task.name)
            and task.task_id.startswith(filter.prefix)
            and (first is None or (task.row < first.row if filter.newest_first else task.row > first.row))
        ]
        return found[: filter.limit]

    async def count_tasks(self) -> dict[TaskState, int]:
        counts: dict[TaskState, int] = {}
        for task in self._store.tasks.values():
            counts[task.state] = counts.get(task.state, 0) + 1
        return counts

    async def count_waiting(self, *, parked: bool = False) -> list[WaitingTasks]:
        waiting: dict[tuple[str, str], list[int]] = {}
        now_ms = self.now_ms()
        for task in self._store.tasks.values():
            holder = self._store.sessions.get(task.session_id)
            gone = task.state is TaskState.RUNNING and (holder is None or holder.dead(self._look()))
            rests = task.build and (task.state in rules.TIMED or (parked and task.state is TaskState.PARKED))
            if gone or rests or (task.state in rules.TIMED and task.due_ms <= now_ms):
                since_ms = task.due_ms if task.due_ms <= now_ms else task.changed_ms
                waiting.setdefault((task.name, task.build), []).append(since_ms)
        return [
            WaitingTasks(name=name, build=build, tasks=len(since), since_ms=min(since))
            for (name, build), since in waiting.items()
        ]

    async def list_sessions(self) -> list[SessionRow]:
        held = [task.session_id for task in self._store.tasks.values()]
        return [
            SessionRow(
                session_id=cell.session_id,
                worker=cell.worker,
                pid=cell.pid,
                boot_id=cell.lease.boot_id,
                lease_until_boot_ms=cell.lease.until_boot_ms,
                begun_ms=cell.begun_ms,
                ended=cell.lease.ended,
                alive=not cell.dead(self._look()),
                tasks=held.count(cell.session_id),
                serves=cell.serves,
                host_id=cell.lease.host_id,
                lease_until_ms=cell.lease.until_ms,
            )
            for cell in self._store.sessions.values()
        ]

    async def find_effect(self, effect_key: bytes) -> tuple[TaskId, str] | None:
        return self._store.effects.get(effect_key)

    async def find_due_ms(self) -> int | None:
        due = [
            task.due_ms
            for task in self._store.tasks.values()
            if task.state in rules.TIMED and task.due_ms < rules.NEVER_MS
        ]
        return min(due, default=None)

    async def wait_change(self, *, timeout_s: float, seen: int | None = None) -> int:
        if seen is None or seen == self._store.changes:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._store.waiters.append(waiter)
            await asyncio.wait((waiter,), timeout=timeout_s)
        return self._store.changes

    async def find_over(self, task_ids: Collection[TaskId]) -> list[TaskId]:
        tasks, over = self._store.tasks, (*ENDED, TaskState.PARKED)
        return [one for one in task_ids if one not in tasks or tasks[one].state in over]

    async def close(self) -> None:
        """Release the locks, as the end of a process does; the store lives on."""
        for cell in self._opened:
            cell.locked = False
        self._changed()


class MemoryStore(MemoryContents):
    """One journal's contents, and the way to get handles on it."""

    def connect(self, clock: Clock, entropy: Entropy, *, host_id: str = "") -> MemoryJournal:
        return MemoryJournal(self, clock, entropy, host_id=host_id)
