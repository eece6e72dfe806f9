"""The journal's contract: one atomic act per verb, in domain words.

Every journal (memory, SQLite, PostgreSQL) keeps these promises; `holdfast.testing.journal_contract` checks them:

* **Durable.** A verb that returns has committed: what it wrote survives power loss on this journal. A verb that raises
  anything but CommitUnknown has written nothing. After CommitUnknown the caller must `confirm` before it acts.
* **Fenced.** `append` checks in the same commit that the hold's epoch is still the task's and that no record was added
  meanwhile. A stale hold raises LeaseLost and writes nothing. Epochs only rise.
* **Append-only.** Records are chained by hash and never change. `drop` (evidence, decisions, approvals, cancels) needs
  no hold: anyone may add a fact, only the owner draws conclusions.
* **Whole.** A running total over all tasks (`journal/total.py`) is part of every commit that changes a task, so that a
  task that was put back to an older state, or deleted, by something other than the journal is found. A journal keeps
  one total, or one per session where sessions commit at the same moment; never one row that all of them wait for.
* **Claims are writes.** `claim` commits a record before it returns, so what the claimer then reads is durable.

Verbs of the effect protocol: submit; claim and renew; begin step, close step, park, sleep, finish (`append`);
evidence, settle, approve, cancel (`drop`); sweep (`claim` takes what dead sessions left, `find_due_ms` says when).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from holdfast.core.ids import TaskId
from holdfast.core.notices import Notice
from holdfast.core.ports import Sealer
from holdfast.journal.builds import NO_BUILD, Build
from holdfast.journal.durability import Durability, Life
from holdfast.journal.records import Body, NewRecord, Record, TaskState, TaskView


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Where journals differ, said aloud instead of skipped in tests."""

    durable: bool
    statements: bool  # applies Transactional tools' statements in the closing commit
    statements_off: str = ""  # why not, where a person can change it
    shared: bool  # other processes may open the same journal
    hosts: bool = False  # processes on other machines too: leases are kept in the journal's own time
    administered: bool  # outlives its processes: `admin.JournalAdmin` serves it


class CommitOutcome(StrEnum):
    """What became of a commit in doubt."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


Outcome = CommitOutcome  # its name in 0.1


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TaskId
    name: str
    args: object
    args_fingerprint: bytes
    request_id: str = ""
    since: Life | None = None  # the request did not exist before this life: what a restore lost has nothing of it
    also: tuple[TaskId, ...] = ()  # ids that the same request may have been accepted under
    body: Body = msgspec.field(default_factory=dict[str, object])  # fingerprints, options


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TaskId
    created: bool
    state: TaskState


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task's line in a list: clear columns only."""

    task_id: TaskId
    name: str
    state: TaskState
    epoch: int
    session_id: str
    created_ms: int
    changed_ms: int
    due_ms: int
    records: int
    crashes: int
    cancel_asked: bool
    erased: bool
    build: str = ""  # only sessions of this build claim it; empty: any


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    worker: str
    pid: int
    boot_id: str
    lease_until_boot_ms: int  # on the boot clock of its machine
    begun_ms: int
    ended: bool
    alive: bool
    tasks: int
    serves: frozenset[str] | None = None  # as `builds.names_claimed`; None: not known
    host_id: str = ""  # these three: of a journal that several hosts share
    lease_until_ms: int = 0  # in the journal's own time
    died: bool = False  # it was found dead, and did not end by itself


class WaitingTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one name that are due, or were left by a dead session, and that no session holds.
    Of those that are pinned to a build, also those that rest: their build must be served until they end."""

    name: str
    tasks: int
    since_ms: int  # when the oldest was due, or came to rest
    build: str = ""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    states: frozenset[TaskState] | None = None
    name: str | None = None
    prefix: str = ""  # of the task id
    limit: int = 100
    newest_first: bool = True
    after: TaskId | None = None  # only tasks behind this one in that order; none if it is not there


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What an append does to the task's own state."""

    state: TaskState
    due_ms: int | None = None  # when to claim it again; None: not by time
    keep_until_ms: int = 0  # no retention before this: a key window is still open
    notice: Notice | None = None  # told to a person, once


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One SQL statement of a Transactional tool."""

    sql: str
    params: Sequence[object] = ()


class RemarkTo(StrEnum):
    """Which of the agent's memory files a remark is for."""

    MEMORY = "MEMORY"
    DAY = "day"


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the agent's memory files."""

    remark_id: str  # of a task's: its id, a slash, the ordinal
    to: RemarkTo
    text: str
    origin: str  # who said it: "user", "model", "tool NAME", "task NAME"


class KeptRemark(msgspec.Struct, frozen=True, kw_only=True):
    number: int  # only rises
    remark: Remark
    at_ms: int
    link: bytes  # its hash over the one before


class RemarkMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far the remarks are in the files of one agent folder."""

    folder: str  # the folder's id (`host.machine.host_id`): each host that writes the files has its own
    name: str  # where it is, for people
    number: int
    at_ms: int  # when it was moved last; 0: not known


class InboxKind(StrEnum):
    EVIDENCE = "evidence"
    DECISION = "decision"
    APPROVAL = "approval"
    CANCEL = "cancel"
    RETRY = "retry"
    SAID = "said"  # a user's message in a conversation


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    number: int = 0
    task_id: TaskId
    ordinal: str
    kind: InboxKind
    body: Body
    at_ms: int = 0
    applied: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Hold:
    """A session's hold on one task under one epoch. The journal moves seq, head and last along."""

    task_id: TaskId
    epoch: int
    session: Session
    row: int
    seq: int
    head: bytes
    last: int
    sealer: Sealer | None
    seen: int = 0  # the number of the newest inbox item that the owner was given with it


TaskNames = Collection[str] | None  # None: of any name
DropCheck = Callable[[TaskView, Sequence[InboxItem]], None]  # raises where the task does not take the item; pure


class Claimed(msgspec.Struct, kw_only=True):
    hold: Hold
    view: TaskView
    crashes: int
    inbox: list[InboxItem]


class Session(Protocol):
    """One worker process's lease on acting at all."""

    session_id: str
    incarnation: int
    boot_id: str
    ttl_ms: int
    deadline_boot_ms: int  # own deadline: before the journal's, counted from the request

    def take_slot(self, tag: bytes) -> int: ...  # cleared and tagged; -1 where none is free

    def mark_begun(self, slot: int) -> None: ...

    def free_slot(self, slot: int) -> None: ...

    def lock_fd(self) -> int | None: ...  # of the lock whose release proves this process dead, for its children

    def mark_left(self, slot: int) -> None:
        """Something of this attempt may still send when the session has ended. Raises OSError."""

    def is_left(self, slot: int) -> bool: ...

    def left_at(self, slot: int) -> int | None:
        """Where in the lock's file a process of the attempt sets the byte (5A) that `mark_left` sets."""
        ...


Taker = tuple[Session, Callable[[Claimed], None]]  # whose session claims, and what the claim is given to


class Journal(Protocol):
    capabilities: Capabilities
    journal_id: str

    @property
    def incarnation(self) -> int: ...

    @property
    def commits(self) -> int:
        """Durable commits of this process so far."""
        ...

    @property
    def full(self) -> bool:
        """True while space is short: no new step begins."""
        ...

    @property
    def broken(self) -> str:
        """Why this process writes no more; empty while it does."""
        ...

    # sessions
    async def open_session(
        self, *, worker: str, ttl_ms: int, serves: TaskNames = None, build: Build = NO_BUILD
    ) -> Session:
        """Begin a lease; `worker` is a name for people, `serves` names the tasks that it will claim, `build` says which
        of them that are pinned to a build (`builds.names_claimed`), and which it pins. The session's own deadline is on
        its boot clock, counted from before the request. The row says until when others wait: on the same clock; and
        where several hosts share the journal, in its own time when the commit is made, with `host.machine.host_id`."""
        ...

    async def renew(self, session: Session) -> None:
        """Extend the lease in the same way. Raises SessionLost where the session's own deadline has passed or another
        process has declared it dead; never because of the journal's clock, which may have jumped. Where several hosts
        share the journal, this is also a look at all leases (`rules.watch_leases`), and so is every claim."""

    async def end_session(self, session: Session, *, orderly: bool = True) -> None:
        """Give up the lease; tasks still held go back to the queue. Safe to repeat. With `orderly=False` the session
        only lets go, as if its process had died: the next claim takes what it held and counts a death, so that a task
        which costs its worker the lease each time is found out."""

    # tasks
    async def submit(self, submission: Submission, *, taker: Taker | None = None) -> Submitted:
        """Accept a task. The same id and fingerprint again finds the task as it is. A task that has one of the ids in
        `also` is found in the same way, decided in the commit that would accept a new one. A new task is claimed for
        `taker` in the same commit, and given even if the caller is cancelled; a journal may leave it to the next claim.
        Raises RequestConflict where the id was submitted with other arguments."""
        ...

    async def claim(
        self, session: Session, *, names: TaskNames, limit: int, task_id: TaskId | None = None, alone: bool = False
    ) -> list[Claimed]:
        """Take due, queued or orphaned tasks, oldest first, each under a new epoch. A task whose last two claims ended
        with the death of the process is handed out only with `alone=True`, so that a poisonous task can harm no other
        task. A task whose chain is broken is parked as damaged and not returned."""
        ...

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
        """Append records under the hold, all or none; returns their numbers.

        Numbers are drawn in this commit and never given twice under one incarnation. Of two records of one task the
        later has the higher number; of two tasks, where several writers commit at once, numbers need not be in the
        order of the commits. With the incarnation, the number of a start is the attempt's fence (0005, 0052).

        `applied` marks inbox items as concluded; `begins` says that an effect will be sent on the strength of this
        commit: such a write is refused while space is short. A change to rest becomes one to the queue where the inbox
        holds an item that is newer than the hold (`hold.seen`) and not applied: nothing that was dropped meanwhile is
        slept over. A cancel of the caller waits until the commit is decided; the hold has then moved along, or nothing
        was written.

        Raises:
            LeaseLost: the epoch is stale; nothing was written.
            JournalFull, JournalBusy: nothing was written; may be tried again.
            CommitUnknown: call `confirm`.
        """
        ...

    async def release(self, hold: Hold) -> None:
        """Give the task back to the queue, if this hold is still its newest; else do nothing.
        For a run that has ended without a record of its own, because it has lost sight of its
        hold: a commit in doubt, or one that was broken off. A fresh claim reads what is there."""

    async def confirm(self, hold: Hold, *, seq: int) -> CommitOutcome:
        """After CommitUnknown: read under a lock whether the record `seq` is there to stay."""
        ...

    async def drop(self, item: InboxItem, *, check: DropCheck | None = None) -> int:
        """Add a fact about a task, without a hold; wakes it if it rests. Returns its number.
        `check` is given the task and its whole inbox in the commit that adds the item: what it raises is raised, and
        nothing is written. So of several that exclude each other one is added. It may be called more than once."""
        ...

    async def read_inbox(self, *, after: int) -> list[InboxItem]:
        """Items with a higher number, in order, not yet applied, of tasks that have not ended."""
        ...

    def send_begun(self, *, session_id: str, boot_id: str, slot: int, tag: bytes) -> bool:
        """Whether that attempt may have handed a byte to the kernel. True when in doubt: always, on another machine."""
        ...

    def is_left(self, *, session_id: str, boot_id: str, slot: int, tag: bytes, in_child: bool) -> bool:
        """Whether something of that attempt may have outlived its session: it was marked so (`Session.mark_left`); or
        it ran in a child that shares the session's lock, and the lock is held though the lease is over. Of a session on
        another machine nothing is known: there the tool's delay alone counts, and this is False."""
        ...

    # reading
    async def find_task(self, task_id: TaskId) -> TaskRow | None: ...

    async def read_task(self, task_id: TaskId) -> TaskView:
        """The folded view. Raises TaskNotFound, JournalDamaged."""
        ...

    async def read_newest(self, task_id: TaskId) -> Record | None:
        """The newest record alone: how a task ended or why it rests; None once erased.
        Its own seal is checked; the chain before it is not. Raises TaskNotFound, JournalDamaged."""
        ...

    async def inbox_of(self, task_id: TaskId) -> list[InboxItem]: ...

    async def list_tasks(self, filter: Filter) -> list[TaskRow]: ...

    async def count_tasks(self) -> dict[TaskState, int]: ...

    async def count_waiting(self, *, parked: bool = False) -> list[WaitingTasks]:
        """What could be claimed now, by name and build. `parked`: pinned ones that wait for a person too; slow."""
        ...

    async def list_sessions(self) -> list[SessionRow]: ...

    async def find_effect(self, effect_key: bytes) -> tuple[TaskId, str] | None:
        """The step with this effect key, as long as its records are kept."""
        ...

    async def find_due_ms(self) -> int | None:
        """When the next resting task is due."""
        ...

    async def wait_change(self, *, timeout_s: float, seen: int | None = None) -> int:
        """Return early when something may have changed, also by another process: how often that was so far. `seen` is
        the count of an earlier call, and a change since then is not missed; without it changes from now on count. Any
        number may wait: each of them wakes."""
        ...

    async def find_over(self, task_ids: Collection[TaskId]) -> list[TaskId]:
        """Those of the tasks that have ended, are parked or are not there: one look for all who wait."""
        ...

    # blobs
    async def put_blob(self, content: bytes, *, task_id: TaskId | None = None) -> str:
        """Keep content once under its digest; repeats are free."""
        ...

    async def put_blobs(self, contents: Sequence[bytes], *, task_id: TaskId) -> list[str]:
        """Keep several in one commit, all or none, for as long as the task is; their digests.
        Safe to repeat. Refused while space is short, like a begin: files can wait, the results
        of effects under way cannot. Raises TaskNotFound, TooLarge, JournalFull, JournalBusy."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """Raises BlobNotFound, JournalDamaged."""
        ...

    # remarks: what goes into the agent's memory files
    async def add_remarks(self, remarks: Sequence[Remark], /) -> list[int]:
        """Keep lines for the memory files, all or none; returns their numbers.
        The same id again is the same remark: the first text stays. A task's remarks need no
        verb: a record of kind REMARK becomes one in the commit that appends it."""
        ...

    async def remarks_after(self, number: int, *, limit: int) -> list[KeptRemark]:
        """Those with a higher number, in order. Raises JournalDamaged."""
        ...

    async def find_remark_link(self, number: int) -> bytes | None:
        """The hash of that remark; None where it is not there (any more)."""
        ...

    async def remark_marks(self) -> list[RemarkMark]:
        """One per agent folder that has written remarks into its files; the one that is furthest behind first."""
        ...

    async def close_remarks(self, number: int, *, folder: str, name: str = "") -> None:
        """Up to this one they are in the files of this folder. A folder's mark only rises. Retention erases no remark
        that a folder with a mark has not got."""

    async def forget_folder(self, folder: str) -> bool:
        """Remove the mark of a folder that is gone for good; False where it has none."""
        ...

    # upkeep
    def notice_turn(self) -> AbstractAsyncContextManager[bool]:
        """True while it is this process's turn to send notices, so that each is sent once. Never waits for another's
        turn to end; a process that dies gives its turn back, at once or after a minute. Where hosts share the journal a
        turn may end after a minute: no notice is begun in its second half."""
        ...

    async def pending_notices(self, *, limit: int) -> list[Notice]: ...

    async def close_notice(self, notice_id: str) -> None: ...

    async def add_notice(self, notice: Notice) -> None:
        """Tell a person about something that is no task's; the same id only once."""

    async def retain(self, *, keep_ms: int, tombstone_ms: int) -> int:
        """Erase payloads of tasks that ended more than `keep_ms` ago; returns how many. Never touches a task that is
        open or whose key window is; the id and fingerprint stay as a tombstone for `tombstone_ms` more, so that a late
        resubmission finds the same task. Remarks go when they are as old and in the files of every folder that has a
        mark, at least one; the newest one stays."""
        ...

    def check(self) -> AsyncIterator[str]:
        """The full check: yields one line per finding, none when all is well."""
        ...

    async def check_total(self) -> None:
        """Compare the running total with the tasks, where others have committed since the last time and it is not too
        soon for the work that this takes. An engine does this before it claims. Raises RowsPutBack."""

    async def find_durability(self, *, provider: bool = False) -> Durability:
        """What a commit survives now; a worker looks each minute. `provider`: a person says a service copies it."""
        ...

    def now_ms(self) -> int:
        """Wall time that never falls: at least the newest record's; the journal's own where several hosts share it."""
        ...

    @property
    def clock_behind_ms(self) -> int:
        """How far the clock that the journal's time comes from is behind the newest record; 0 when it is not."""
        ...

    @property
    def clock_ahead_ms(self) -> int:
        """How far this host's wall clock is ahead of the clock that several hosts share; below 0 where it is behind."""
        ...

    async def close(self) -> None: ...
