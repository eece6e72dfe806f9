"""What the memory journal keeps, shared by the handles that stand for several processes.

Plain dicts; every record's body is kept as JSON bytes under the same hash chain as in the file
journal, so that no reader can share an object with a writer and damage is found the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from holdfast.core.clock import Clock
from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.notices import Notice
from holdfast.core.values import decode, encode
from holdfast.errors import InvariantViolated, JournalDamaged, TaskNotFound
from holdfast.host.sqlite import open_in_memory
from holdfast.journal import rules
from holdfast.journal.builds import NO_BUILD
from holdfast.journal.chain import first_link, first_remark_link, next_link, next_remark_link
from holdfast.journal.contract import InboxItem, InboxKind, KeptRemark, Remark, RemarkMark, Statement, TaskRow
from holdfast.journal.records import Body, NewRecord, Record, TaskState, TaskView, as_kept, fold
from holdfast.journal.sqlite.verbs.tasks import apply_statements

SLOTS_MAX = 992  # of this many and with tags this long: as in a session page
TAG_BYTES = 8


class TaskCell:
    """A task's row and its records."""

    def __init__(self, *, task_id: TaskId, name: str, fingerprint: bytes, row: int, now_ms: int) -> None:
        self.task_id = task_id
        self.name = name
        self.build = ""
        self.fingerprint = fingerprint
        self.row = row
        self.state = TaskState.QUEUED
        self.epoch = 0
        self.session_id = ""
        self.created_ms = now_ms
        self.changed_ms = now_ms
        self.due_ms = now_ms
        self.keep_until_ms = 0
        self.erased_ms: int | None = None
        self.crashes = 0
        self.cancel_asked = False
        self.kept: list[KeptRecord] = []

    @property
    def seq(self) -> int:
        return len(self.kept) - 1

    @property
    def head(self) -> bytes:
        return self.kept[-1].link if self.kept else first_link(task_id_bytes(self.task_id))

    @property
    def last(self) -> int:
        return self.kept[-1].record.number if self.kept else 0

    def shown(self) -> TaskRow:
        return TaskRow(
            task_id=self.task_id,
            name=self.name,
            build=self.build,
            state=self.state,
            epoch=self.epoch,
            session_id=self.session_id,
            created_ms=self.created_ms,
            changed_ms=self.changed_ms,
            due_ms=self.due_ms,
            records=len(self.kept),
            crashes=self.crashes,
            cancel_asked=self.cancel_asked,
            erased=self.erased_ms is not None,
        )


class KeptRecord(msgspec.Struct, frozen=True):
    """A record without its body, the body's bytes, and the hash over both and the one before."""

    record: Record
    raw: bytes
    link: bytes


class SessionCell:
    """A session's row, its lock and its page of send-begun slots."""

    def __init__(self, *, session_id: str, worker: str, pid: int, lease: rules.Lease, now_ms: int) -> None:
        self.session_id = session_id
        self.worker = worker
        self.pid = pid
        self.lease = lease
        self.begun_ms = now_ms
        self.serves: frozenset[str] | None = None
        self.build = NO_BUILD
        self.locked = True
        self.slots: dict[int, tuple[bytes, bool]] = {}  # tag, begun
        self.left: set[int] = set()

    def dead(self, at: rules.LookedAt) -> bool:
        free = not self.locked if self.lease.boot_id == at.boot_id else None
        return rules.session_dead(self.lease, at, lock_free=free) is not rules.Death.NO


class MemorySession:
    """A simulated process's lease and page."""

    def __init__(self, cell: SessionCell, *, incarnation: int, ttl_ms: int, deadline: int) -> None:
        self._cell = cell
        self.session_id = cell.session_id
        self.boot_id = cell.lease.boot_id
        self.incarnation = incarnation
        self.ttl_ms = ttl_ms
        self.deadline_boot_ms = deadline

    def take_slot(self, tag: bytes) -> int:
        if len(tag) != TAG_BYTES:
            raise InvariantViolated("slot tag", f"{len(tag)} bytes instead of {TAG_BYTES}")
        slots = self._cell.slots
        slot = next((number for number in range(SLOTS_MAX) if number not in slots), -1)
        if slot >= 0:
            slots[slot] = (tag, False)
            self._cell.left.discard(slot)
        return slot

    def mark_begun(self, slot: int) -> None:
        if slot >= 0:
            self._cell.slots[slot] = (self._cell.slots[slot][0], True)

    def free_slot(self, slot: int) -> None:
        self._cell.slots.pop(slot, None)

    def lock_fd(self) -> int | None:
        return None

    def mark_left(self, slot: int) -> None:
        if slot >= 0:
            self._cell.left.add(slot)

    def is_left(self, slot: int) -> bool:
        return slot in self._cell.left

    def left_at(self, slot: int) -> int | None:
        return None


class InboxCell(msgspec.Struct):
    number: int
    task_id: TaskId
    ordinal: str
    kind: InboxKind
    raw: bytes
    at_ms: int
    applied: bool = False

    def shown(self) -> InboxItem:
        return InboxItem(
            number=self.number,
            task_id=self.task_id,
            ordinal=self.ordinal,
            kind=self.kind,
            body=cast("Body", decode(self.raw)),
            at_ms=self.at_ms,
            applied=self.applied,
        )


class BlobCell(msgspec.Struct):
    content: bytes
    tasks: set[TaskId]
    pinned: bool  # put by nobody's task: retention leaves it


class RemarkCell(msgspec.Struct):
    number: int
    remark_id: str
    raw: bytes
    at_ms: int
    before: bytes
    link: bytes


class MemoryContents:
    """One journal's contents. Each verb of a handle changes them without a pause inside.
    With a `server`, whose wall clock is the journal's own time, it is one that several hosts share."""

    def __init__(self, *, journal_id: str = "memory", incarnation: int = 1, server: Clock | None = None) -> None:
        self.journal_id = journal_id
        self.incarnation = incarnation
        self.server = server
        self.timeline = "1"
        self.tasks: dict[TaskId, TaskCell] = {}
        self.sessions: dict[str, SessionCell] = {}
        self.inbox: list[InboxCell] = []
        self.notices: dict[str, tuple[Notice, bool]] = {}  # told
        self.blobs: dict[str, BlobCell] = {}
        self.remarks: list[RemarkCell] = []
        self.remark_marks: dict[str, RemarkMark] = {}
        self.effects: dict[bytes, tuple[TaskId, str]] = {}
        self.sequence = 0
        self.newest_ms = 0
        self.newest_boot_ms = 0
        self.rows = 0
        self.dropped = 0
        self.changes = 0
        self.waiters: list[asyncio.Future[None]] = []
        self.telling = False
        self.db = open_in_memory()

    def kill_session(self, session_id: str) -> None:
        """The session's process dies: its lock is released, its page stays as it is."""
        self.sessions[session_id].locked = False
        self.changed()

    def damage(self, task_id: TaskId, *, seq: int) -> None:
        """Flip a bit of a record's body, as a bad disk does."""
        kept = self.tasks[task_id].kept
        raw = bytearray(kept[seq].raw)
        raw[len(raw) // 2] ^= 1
        kept[seq] = msgspec.structs.replace(kept[seq], raw=bytes(raw))

    # what the verbs are made of

    def changed(self) -> None:
        """Wake whoever waits for a change."""
        self.changes += 1
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    def get_task(self, task_id: TaskId) -> TaskCell:
        cell = self.tasks.get(task_id)
        if cell is None:
            raise TaskNotFound(task_id)
        return cell

    def keep(self, cell: TaskCell, entry: NewRecord, raw: bytes, *, epoch: int, at_ms: int, boot_ms: int) -> Record:
        """Append one record whose body is already encoded. Cannot fail half-way."""
        record = as_kept(entry, number=self.sequence + 1, seq=cell.seq + 1, epoch=epoch, at_ms=at_ms, boot_ms=boot_ms)
        record.body = {}
        cell.kept.append(KeptRecord(record, raw, _link(cell.head, record, raw)))
        self.sequence = record.number
        self.newest_ms, self.newest_boot_ms = at_ms, boot_ms
        if entry.effect_key:
            self.effects.setdefault(entry.effect_key, (cell.task_id, entry.ordinal))
        return record

    def records(self, cell: TaskCell) -> Iterator[Record]:
        """The task's records with their bodies, the chain verified. Raises JournalDamaged."""
        before = first_link(task_id_bytes(cell.task_id))
        for kept in cell.kept:
            if _link(before, kept.record, kept.raw) != kept.link:
                raise JournalDamaged(f"task {cell.task_id}: record {kept.record.seq} does not fit its hash")
            before = kept.link
            yield msgspec.structs.replace(kept.record, body=cast("Body", decode(kept.raw)))

    def view(self, cell: TaskCell) -> TaskView:
        view = TaskView(cell.task_id)
        view.name = cell.name
        for record in self.records(cell):
            fold(view, record)
        return view

    def erase(self, cell: TaskCell, *, now_ms: int) -> None:
        """Forget what the task was about; its row stays as a tombstone."""
        cell.erased_ms = now_ms
        cell.kept.clear()
        self.inbox = [item for item in self.inbox if item.task_id != cell.task_id]
        for digest, blob in list(self.blobs.items()):
            blob.tasks.discard(cell.task_id)
            if not blob.tasks and not blob.pinned:
                del self.blobs[digest]

    def add_remark(self, remark: Remark, *, now_ms: int) -> int:
        for cell in self.remarks:
            if cell.remark_id == remark.remark_id:
                return cell.number
        newest = self.remarks[-1] if self.remarks else None
        before = first_remark_link(self.journal_id) if newest is None else newest.link
        number, raw = 1 if newest is None else newest.number + 1, msgspec.json.encode(remark)
        link = _remark_link(before, number, now_ms, remark.remark_id, raw)
        self.remarks.append(RemarkCell(number, remark.remark_id, raw, now_ms, before, link))
        return number

    def read_remarks(self) -> list[KeptRemark]:
        """All that are kept, their chain verified. Raises JournalDamaged."""
        found: list[KeptRemark] = []
        before: bytes | None = None
        for cell in self.remarks:
            link = _remark_link(cell.before, cell.number, cell.at_ms, cell.remark_id, cell.raw)
            if link != cell.link or before not in (None, cell.before):
                raise JournalDamaged(f"remark {cell.number} does not fit its hash")
            before = link
            remark = msgspec.json.decode(cell.raw, type=Remark)
            found.append(KeptRemark(number=cell.number, remark=remark, at_ms=cell.at_ms, link=link))
        return found

    def erase_remarks(self, *, before_ms: int) -> None:
        """Forget those that are in their files since before then; the newest stays."""
        newest, written = self.remarks[-1:], min((one.number for one in self.remark_marks.values()), default=0)
        self.remarks = [cell for cell in self.remarks[:-1] if cell.at_ms >= before_ms or cell.number > written] + newest

    def add_notice(self, notice: Notice, *, now_ms: int) -> None:
        stamped = msgspec.structs.replace(notice, at_ms=notice.at_ms or now_ms)
        self.notices.setdefault(notice.notice_id, (stamped, False))

    @asynccontextmanager
    async def notice_turn(self) -> AsyncGenerator[bool]:
        mine = not self.telling
        self.telling = True
        try:
            yield mine
        finally:
            self.telling = self.telling and not mine

    def apply(self, statements: Sequence[Statement]) -> None:
        """Apply a Transactional tool's statements, all or none. Raises StatementFailed."""
        if statements:
            apply_statements(self.db, statements)


def _remark_link(before: bytes, number: int, at_ms: int, remark_id: str, raw: bytes) -> bytes:
    return next_remark_link(before, number=number, at_ms=at_ms, key_id=0, remark_id=remark_id, body=raw)


def encode_body(body: Body) -> bytes:
    return encode(body, what="a record")


def _link(before: bytes, record: Record, raw: bytes) -> bytes:
    what = 0
    for event in record.events:
        what = what << 8 | event
    return next_link(
        before,
        seq=record.seq,
        kind=record.kind,
        what=what,
        epoch=record.epoch,
        at_ms=record.at_ms,
        boot_ms=record.boot_ms,
        slot=record.slot,
        quiet=record.quiet,
        ordinal=record.ordinal,
        effect_key=record.effect_key,
        fingerprint=record.fingerprint,
        body=raw,
    )
