"""The decisions that every journal shares (claims, leases, crash counts, wakes, erasing): values in, values out.

A journal keeps rows and commits; what the rows may become is said here once, so that memory,
SQLite and PostgreSQL cannot differ in it.

* A task is claimable when it is due (queued, sleeping, waiting) or when the session that holds
  it is dead. A parked task is woken only by a drop, a failed one only by a person's retry, any
  other ended one by nothing.
* `due_ms` always has a value: NEVER_MS means "not by time". A running task keeps the due
  time it was claimed with, so that an orphan is as old as it was before its worker died.
* A death is counted when the orphan is claimed, not when it happens: no process is there to write it
  down. A step closed under the dead epoch is progress and forgives the deaths before it, so a
  task is never punished for a long life on a shaky machine; the death itself still counts. An
  orderly rest forgives all of them. From CRASHES_ALONE deaths on the task runs with no neighbour,
  at CRASHES_MAX it is parked as poison.
* Epochs only rise, also across restores: the incarnation is their upper half.

Leases. A session stops by its own deadline, on its own boot clock, counted from before the request.
Others must find its lease over later than that, whatever clocks do.

* One machine, an embedded journal: all sessions share a boot clock, so the lease is kept on it. A released lock, or a
  session of an earlier boot, is a proof of death.
* Several hosts, a shared journal: their boot clocks and boot ids mean nothing to each other, so the lease is kept in
  the journal's own time. That clock may jump: a standby that was promoted may be a day ahead of the server before it.
  So a lease is over when two clocks say so: the journal's, and the claimer's own boot clock, on which one full lease
  must have passed since the claimer first saw this very lease (`watch_leases`), or since the timeline changed. A
  session that lives has renewed by then. Comparing the two clocks to find steps would not do: a step that goes and
  comes back between two looks is not seen (0051).
* The proofs of one machine hold for sessions of the same host id and boot. Another boot under our host id is one of our
  earlier boots only if its last renewal came before this boot began: machines can be copied with their ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import assert_never

import msgspec

from holdfast.core.decoding import convert
from holdfast.core.ids import TaskId
from holdfast.errors import BadInput, InvariantViolated, LeaseLost, TooLarge
from holdfast.journal.contract import Change, InboxKind, Remark, RemarkTo
from holdfast.journal.records import ENDED, NewRecord, RecordKind, TaskState, TaskView

NEVER_MS = 2**63 - 1  # a due time that no clock reaches; the largest whole number SQLite keeps
CRASHES_ALONE = 2
CRASHES_MAX = 3
COUNTER_BITS = 32

TIMED = frozenset((TaskState.QUEUED, TaskState.SLEEPING, TaskState.WAITING))
RESTING = frozenset((TaskState.PARKED, TaskState.WAITING, TaskState.SLEEPING))


# Sessions


def deadline_boot_ms(request_boot_ms: int, ttl_ms: int) -> int:
    """When a session must consider its own lease over, counted from the renewal's request.
    Earlier than the journal's end of the lease by 2 % and up to 100 ms, less for short leases."""
    margin = -(-ttl_ms // 50) + min(100, -(-ttl_ms // 20))
    return request_boot_ms + ttl_ms - margin


def lease_until_boot_ms(request_boot_ms: int, ttl_ms: int) -> int:
    """When the journal considers the lease over and others may take the session's tasks."""
    return request_boot_ms + ttl_ms


class LeaseWatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a claimer remembers of the leases in a shared journal from one look to the next."""

    timeline: str
    boot_ms: int  # when the last answer was there, on the claimer's boot clock
    seen: Mapping[str, tuple[int, int]]  # by session: the end of its lease, and since when it is seen to be that

    def seen_for_ms(self, lease: Lease, boot_ms: int) -> int:
        until_ms, since_boot_ms = self.seen.get(lease.session_id, (0, 0))
        return boot_ms - since_boot_ms if until_ms == lease.until_ms else 0


def watch_leases(before: LeaseWatch | None, *, timeline: str, until_ms: Mapping[str, int], boot_ms: int) -> LeaseWatch:
    """The memory after one look at all sessions that have not ended. A changed timeline begins a new memory: renewals
    may be lost with the one before, so that an older lease is seen again."""
    known: Mapping[str, tuple[int, int]] = {}
    if before is not None and before.timeline == timeline:
        known = before.seen
    seen = {
        one: known[one] if one in known and known[one][0] == until else (until, boot_ms)
        for one, until in until_ms.items()
    }
    return LeaseWatch(timeline=timeline, boot_ms=boot_ms, seen=seen)


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a session's row that its life depends on."""

    session_id: str
    ended: bool
    boot_id: str
    until_boot_ms: int  # on the boot clock of its machine
    host_id: str = ""  # these three: of a journal that several hosts share
    until_ms: int = 0  # in the journal's own time; every renewal changes it
    ttl_ms: int = 0


class LookedAt(msgspec.Struct, frozen=True, kw_only=True):
    """When, and from which machine, leases are judged."""

    boot_id: str
    boot_ms: int  # before the journal was asked
    host_id: str = ""
    now_ms: int = 0  # the journal's own time, in its answer
    watch: LeaseWatch | None = None  # after this look; None: an embedded journal, which one machine has


class Death(StrEnum):
    """Whether others may take what a session holds."""

    NO = "no"
    OVER = "over"  # its time is up: the commit that takes must find the lease as it was looked at
    PROVEN = "proven"  # its process is gone, so that no renewal can contradict it


def session_dead(lease: Lease, at: LookedAt, *, lock_free: bool | None) -> Death:
    """`lock_free`: the lock of the session's process was found released (True), held (False), or could not be looked at
    (None). A held lock does not save a session whose lease is over: a paused process keeps its lock. Of a journal that
    several hosts share, True needs the lock's own file: a missing one proves nothing, it may be on another machine."""
    if lease.ended:
        return Death.PROVEN
    if at.watch is None or lease.host_id == at.host_id:
        if lease.boot_id == at.boot_id:
            over = Death.OVER if lease.until_boot_ms <= at.boot_ms else Death.NO
            return Death.PROVEN if lock_free is True else over
        if at.watch is None or lease.until_ms - lease.ttl_ms < at.now_ms - at.watch.boot_ms:
            return Death.PROVEN
    runs = 0 < lease.until_ms - at.now_ms <= lease.ttl_ms  # more is no lease of this clock: it was set back since
    return Death.NO if runs or at.watch.seen_for_ms(lease, at.boot_ms) < lease.ttl_ms else Death.OVER


# Claims


class Claimable(StrEnum):
    """What a claim does with a task."""

    NO = "no"
    TAKE = "take"
    POISON = "poison"  # parked instead of handed out


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Claimable
    crashes: int  # of the row after the claim


def decide_claim(
    *,
    state: TaskState,
    due_ms: int,
    crashes: int,
    epoch: int,
    progress_epoch: int,
    holder_dead: bool,
    alone: bool,
    now_ms: int,
) -> Decision:
    """What a claim does with this task now, and how many crashes the row then counts. `progress_epoch`: the epoch under
    which a step was last closed (TaskView.progress_epoch). With verdict POISON the journal writes a CLAIMED record and
    `poison_entry` under the next epoch, parks the task and adds a notice (`poison_notice`), all in one commit."""
    if not claimable(state=state, due_ms=due_ms, holder_dead=holder_dead, now_ms=now_ms):
        return Decision(verdict=Claimable.NO, crashes=crashes)
    if state is TaskState.RUNNING:
        crashes = crashes_after_death(crashes, epoch=epoch, progress_epoch=progress_epoch)
    if crashes >= CRASHES_MAX:
        return Decision(verdict=Claimable.POISON, crashes=crashes)
    if crashes >= CRASHES_ALONE and not alone:
        return Decision(verdict=Claimable.NO, crashes=crashes)
    return Decision(verdict=Claimable.TAKE, crashes=crashes)


def claimable(*, state: TaskState, due_ms: int, holder_dead: bool, now_ms: int) -> bool:
    """Whether a claim may take a task in this state; crashes are `decide_claim`'s matter."""
    match state:
        case TaskState.QUEUED | TaskState.SLEEPING | TaskState.WAITING:
            return due_ms <= now_ms
        case TaskState.RUNNING:
            return holder_dead
        case TaskState.PARKED | TaskState.SUCCEEDED | TaskState.FAILED | TaskState.CANCELLED:
            return False
        case _:
            assert_never(state)


def claim_order(*, due_ms: int, row: int) -> tuple[int, int]:
    """Sorts claimable tasks: the one that has been due for longest first."""
    return (due_ms, row)


def crashes_after_death(crashes: int, *, epoch: int, progress_epoch: int) -> int:
    """The count after the process that held the task under `epoch` died."""
    return 1 if progress_epoch == epoch else crashes + 1


def next_epoch(epoch: int, *, incarnation: int) -> int:
    """The epoch of the next claim: higher than every one before, in any incarnation."""
    counter = (epoch & ((1 << COUNTER_BITS) - 1)) + 1
    if incarnation < epoch >> COUNTER_BITS:
        raise InvariantViolated("I8", f"incarnation {incarnation} is below that of epoch {epoch}: epochs only rise")
    if counter >> COUNTER_BITS:
        raise InvariantViolated("I8", f"epoch {epoch}: the claim counter is used up")
    return incarnation << COUNTER_BITS | counter


def check_hold(*, task_id: TaskId, state: TaskState, epoch: int, seq: int, hold_epoch: int, hold_seq: int) -> None:
    """Let a hold write only while it is the task's: same epoch, nothing added, not at rest.

    The state counts because an ended session's tasks go back to the queue under their old epoch.

    Raises:
        LeaseLost: another run has the task, or none has.
        InvariantViolated: two writers act under one epoch, which no claim hands out twice.
    """
    if state is not TaskState.RUNNING or epoch != hold_epoch:
        raise LeaseLost(task_id=task_id, epoch=hold_epoch)
    if seq != hold_seq:
        raise InvariantViolated("I8", f"task {task_id}: record {seq} was added under this very epoch, {epoch}")


# Copies


class SeenCommit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest commit of a journal of several writers that a host knows to be durable, kept outside the journal."""

    incarnation: int
    number: int  # of its newest record
    lane: str  # which writer made it: a name that no other one has
    stamp: int  # that writer's own count of its commits
    at_ms: int  # the time of its row


def is_older_copy(mark: SeenCommit, *, incarnation: int, newest: int, stamp: int | None, folded_ms: int) -> bool:
    """Whether a journal of several writers was put back since the host saw that commit (0097). `newest`: the highest
    number that was committed. `stamp`: of the mark's writer, None where the journal has no row of it. `folded_ms`: up
    to that time rows of writers were put together, so that theirs may be missing."""
    if incarnation != mark.incarnation:
        return incarnation < mark.incarnation
    if newest < mark.number:
        return True
    return mark.at_ms > folded_ms if stamp is None else stamp < mark.stamp


# Poison


POISON = "poison"
POISON_QUESTION = (
    f"what kills the process? In the last {CRASHES_MAX} runs of this task the worker died before a step finished"
)


def poison_entry() -> NewRecord:
    """The record that says why the task rests."""
    body = {"state": TaskState.PARKED.value, "why": POISON, "question": POISON_QUESTION}
    return NewRecord(kind=RecordKind.RESTED, body=body)


def is_poisoned(view: TaskView) -> bool:
    """Whether the task rests because its runs killed their process."""
    return view.rest.why == POISON


# Rests and drops


def due_after_change(change: Change, *, due_ms: int, now_ms: int) -> int:
    """The row's due time after an append with this change."""
    match change.state:
        case TaskState.QUEUED:
            return now_ms if change.due_ms is None else change.due_ms
        case TaskState.SLEEPING | TaskState.WAITING:
            return NEVER_MS if change.due_ms is None else change.due_ms
        case TaskState.RUNNING:
            return due_ms
        case TaskState.PARKED | TaskState.SUCCEEDED | TaskState.FAILED | TaskState.CANCELLED:
            return NEVER_MS
        case _:
            assert_never(change.state)


def roused(change: Change) -> Change:
    """A change to rest where the inbox holds what the owner has not seen: it looks again first."""
    return msgspec.structs.replace(change, state=TaskState.QUEUED, due_ms=None)


def crashes_after_change(change: Change, crashes: int) -> int:
    """An orderly rest proves that the task does not kill its worker."""
    return crashes if change.state is TaskState.RUNNING else 0


class Woken(msgspec.Struct, frozen=True, kw_only=True):
    """What a drop makes of a resting task's row."""

    state: TaskState
    due_ms: int
    crashes: int


def wake(state: TaskState, kind: InboxKind, *, crashes: int, changed_ms: int) -> Woken | None:
    """The row after a drop, or None where the drop only adds its inbox row. The task is due from the moment at which it
    came to rest, by its record. A drop is no record: a clock that was a day ahead when it came, and is set back
    afterwards, would put off for a day what was due "now".
    A poisoned task that wakes gets one more run, alone, so that a cancel or a decision can be
    applied; only a person's retry forgets the crashes, and only it opens a failed task again."""
    again = state is TaskState.FAILED and kind is InboxKind.RETRY
    if state not in RESTING and not again:
        return None
    left = 0 if kind is InboxKind.RETRY else min(crashes, CRASHES_ALONE)
    return Woken(state=TaskState.QUEUED, due_ms=changed_ms, crashes=left)


def asks_cancel(state: TaskState, kind: InboxKind) -> bool:
    """Whether a drop sets the row's cancel mark."""
    return kind is InboxKind.CANCEL and state not in ENDED


# Blobs


BLOB_BYTES_MAX = 16 * 1024 * 1024  # larger contents are kept in chunks


def check_blob(size: int) -> None:
    if size > BLOB_BYTES_MAX:
        raise TooLarge(f"a blob may have at most {BLOB_BYTES_MAX:,} bytes, this one has {size:,}")


# Remarks


REMARK_CHARS_MAX = 4_000  # a line that a person reads; longer texts are files
ORIGIN_CHARS_MAX = 300  # the name of a tool has 200
REMARK_ID_CHARS_MAX = 500


def check_remark(remark: Remark) -> None:
    """Raises BadInput, TooLarge."""
    if not remark.text.strip():
        raise BadInput("a remark must have a text")
    if len(remark.text) > REMARK_CHARS_MAX:
        raise TooLarge(f"a remark may have at most {REMARK_CHARS_MAX:,} characters, this one has {len(remark.text):,}")
    if not remark.origin.strip() or len(remark.origin) > ORIGIN_CHARS_MAX:
        raise BadInput(f"a remark must say who made it, in 1 to {ORIGIN_CHARS_MAX} characters")
    if not remark.remark_id or len(remark.remark_id) > REMARK_ID_CHARS_MAX:
        raise BadInput(f"the id of a remark must have 1 to {REMARK_ID_CHARS_MAX} characters")


def remark_to(name: str) -> RemarkTo:
    try:
        return RemarkTo(name)
    except ValueError:
        raise BadInput(f"note: `to` must be 'MEMORY' or 'day', not {name!r}") from None


def remark_of(task_id: TaskId, entry: NewRecord) -> Remark:
    """What a task's record adds to the remarks; its id is the same on every replay."""
    return convert({**entry.body, "remark_id": f"{task_id}/{entry.ordinal}"}, Remark)


# Retention


def erasable(*, state: TaskState, ended_ms: int, keep_until_ms: int, keep_ms: int, now_ms: int) -> bool:
    """Whether a task's payloads may go: it ended long ago and no key window is open."""
    return state in ENDED and keep_until_ms <= now_ms and now_ms - ended_ms > keep_ms


def tombstone_over(*, erased_ms: int, keep_until_ms: int, tombstone_ms: int, now_ms: int) -> bool:
    """Whether an erased task may be forgotten altogether."""
    return keep_until_ms <= now_ms and now_ms - erased_ms > tombstone_ms
