"""A task's writer: the owner's one way to write, and its memory of what is written.

The view in memory is the fold of what is durable plus, at its end, results that may wait for the next step's commit
(`defer`): for Read and Keyed steps a lost result is asked for again, so the result of step n and the intent of step n+1
share one synced commit (proven safe, effects I4, I5). Nothing outside the task sees a deferred result before it is
durable: every effect, rest and finish takes the deferred records along in its own commit, first.

Branches of a gather write at the same time; their records leave in the order they arrive and share commits.

A cancel never leaves a write in doubt: the journal decides it first, the view follows, then the cancel is raised. A
stale owner writes nothing; what it saw succeed it leaves as evidence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast import errors
from holdfast.core.clock import Clock
from holdfast.core.effect import CLASSES
from holdfast.core.rest import Stopping, Suspended
from holdfast.core.step import Event
from holdfast.core.values import decode
from holdfast.core.waiting import Turn
from holdfast.host.log import Log
from holdfast.journal.bodies import EvidenceGiven
from holdfast.journal.contract import Change, CommitOutcome, Hold, InboxItem, InboxKind, Journal, Statement
from holdfast.journal.own_view import SUCCESS, fold_own
from holdfast.journal.records import NewRecord, StepView, TaskView
from holdfast.runtime.secrets import NO_SECRETS, Secrets

if TYPE_CHECKING:
    from holdfast.runtime.scratch.scratch import Scratch

DEFER_S = 0.01  # a deferred result that no later step takes along is written within two of these
RETRY_S = 0.25
CONFIRM_MAX = 3


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TaskWriter:
    """The owner's hold on one task: append, fold, remember."""

    journal: Journal
    hold: Hold
    view: TaskView
    inbox: list[InboxItem]
    clock: Clock
    on_trouble: Callable[[errors.HoldfastError], None]
    flusher: Flusher
    secrets: Secrets = NO_SECRETS
    log: Log = field(default_factory=Log)
    cancelled: bool = field(init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    fenced: bool = False
    ended: bool = False  # the task's code has returned or raised
    signal: BaseException | None = None  # why every chain of this run has to end
    may_rest: bool = True  # whether a long wait may end the run for now
    calls: int = 0  # attempts under way whose outcome is not yet recorded
    scratch: Scratch | None = None  # of a task that uses it
    _pending: list[NewRecord] = field(default_factory=list[NewRecord])
    _slots: list[int] = field(default_factory=list[int])
    _turn: Turn = field(default_factory=Turn)
    _now_ms: Callable[[], int] = field(init=False)
    _waited: bool = False  # what is deferred has been looked at once

    def __post_init__(self) -> None:
        self.cancelled = any(item.kind is InboxKind.CANCEL for item in self.inbox)
        # Of several hosts each has a clock of its own: the time of a record is the journal's.
        self._now_ms = self.journal.now_ms if self.journal.capabilities.hosts else self.clock.wall_ms

    # whether the run may continue

    @property
    def stopping(self) -> bool:
        """Whether it is the engine that ends this run."""
        return self.fenced or (isinstance(self.signal, Suspended) and isinstance(self.signal.rest, Stopping))

    def stop(self) -> None:
        """Let no further step begin; what is under way may end."""
        self.end(Suspended(Stopping()))

    def end(self, signal: BaseException) -> None:
        """Every chain of this run ends; the first reason stays."""
        if self.signal is None:
            self.signal = signal
        self.changed.set()

    def check_going(self) -> None:
        if self.signal is not None:
            raise self.signal

    # the inbox

    def add_to_inbox(self, item: InboxItem) -> None:
        # `hold.seen` stays as it was claimed: a branch may have ended before this came, and the run may not rest on it.
        if all(known.number != item.number for known in self.inbox):
            self.inbox.append(item)
            self.cancelled = self.cancelled or item.kind is InboxKind.CANCEL
            self.changed.set()

    def items(self, kind: InboxKind, ordinal: str) -> list[InboxItem]:
        """What was said about this step and is not yet concluded, oldest first."""
        return [item for item in self.inbox if item.kind is kind and item.ordinal == ordinal]

    # the view

    def step(self, ordinal: str) -> StepView | None:
        return self.view.steps.get(ordinal)

    def get_step(self, ordinal: str) -> StepView:
        step = self.view.steps.get(ordinal)
        if step is None:
            raise errors.InvariantViolated("I4", f"step {ordinal} was not recorded")
        return step

    # writing

    def defer(self, entry: NewRecord, slot: int = -1) -> None:
        """Take the record into the view now and into the journal with the next commit."""
        if self.secrets.active:
            entry = self.secrets.entry(entry)
        # When a success came on the boot clock, nobody asks.
        boot_ms = 0 if entry.events is SUCCESS else self.clock.boot_ms()
        fold_own(self.view, entry, 0, self.hold.epoch, self._now_ms(), boot_ms)
        self._pending.append(entry)
        if slot >= 0:
            self._slots.append(slot)
        self._flush_soon()

    def begin(self, entry: NewRecord) -> Awaitable[None]:
        """Write the record on whose strength an effect will be sent. Raises JournalFull, JournalBusy: nothing was
        written, nothing may be sent."""
        return self._write((entry,), begins=True)

    async def write(
        self,
        entries: Sequence[NewRecord],
        *,
        change: Change | None = None,
        applied: Sequence[int] = (),
        statements: Sequence[Statement] = (),
        slot: int = -1,
    ) -> None:
        """Write records that must not be lost: waits out a full or busy journal."""
        while True:
            try:
                await self._write(entries, change=change, applied=applied, statements=statements)
                break
            except (errors.JournalFull, errors.JournalBusy) as error:
                self.on_trouble(error)
                await asyncio.sleep(RETRY_S)
        if slot >= 0:
            self.hold.session.free_slot(slot)
        if applied:
            self.inbox = [item for item in self.inbox if item.number not in applied]

    async def flush(self) -> None:
        """Make what was deferred durable."""
        if self._pending:
            await self.write(())

    async def _write(
        self,
        entries: Sequence[NewRecord],
        *,
        change: Change | None = None,
        applied: Sequence[int] = (),
        statements: Sequence[Statement] = (),
        begins: bool = False,
    ) -> None:
        if self.secrets.active:
            entries = [self.secrets.entry(entry) for entry in entries]
            change = self.secrets.change(change)
        if not self._turn.try_take():
            await self._turn.take()
        try:
            pending, slots = self._pending, self._slots
            self._pending, self._slots = [], []
            taken = [*pending, *entries] if pending else entries
            hold, before = self.hold, self.hold.seq
            try:
                if self.fenced:
                    await self._leave_evidence(taken)
                    raise errors.RunFenced
                try:
                    if begins:  # every step passes here
                        numbers = await self.journal.append(hold, taken, begins=True)
                    elif taken or change is not None or applied:
                        numbers = await self.journal.append(
                            hold, taken, change=change, applied=applied, statements=statements
                        )
                    else:
                        numbers = []
                except (errors.LeaseLost, errors.CommitUnknown) as error:
                    append = partial(
                        self.journal.append,
                        hold,
                        taken,
                        change=change,
                        applied=applied,
                        statements=statements,
                        begins=begins,
                    )
                    numbers = await self._append_again(error, taken, append)
            except asyncio.CancelledError:
                if self.hold.seq == before:
                    self._put_back(pending, slots)
                else:
                    self._written(entries, [0] * len(entries), slots)
                raise
            except BaseException:  # whatever it was, nothing is written: what was deferred is still to be
                self._put_back(pending, slots)
                raise
            self._written(entries, numbers[len(pending) :] if pending else numbers, slots)
        finally:
            self._turn.give()

    def _written(self, entries: Sequence[NewRecord], numbers: Sequence[int], slots: Sequence[int]) -> None:
        hold, at_ms, boot_ms = self.hold, self._now_ms(), self.clock.boot_ms()
        for entry, number in zip(entries, numbers, strict=True):
            fold_own(self.view, entry, number, hold.epoch, at_ms, boot_ms)
        for slot in slots:
            hold.session.free_slot(slot)

    def _put_back(self, pending: list[NewRecord], slots: list[int]) -> None:
        if self.fenced:
            return  # left as evidence
        self._pending, self._slots = [*pending, *self._pending], [*slots, *self._slots]
        if self._pending:
            self._flush_soon()

    async def _append_again(
        self, error: errors.HoldfastError, entries: Sequence[NewRecord], append: Callable[[], Awaitable[list[int]]]
    ) -> list[int]:
        """After a commit that is in doubt: again where the journal says that it is not there."""
        for _ in range(CONFIRM_MAX - 1):
            if isinstance(error, errors.LeaseLost):
                break
            self.on_trouble(error)
            if await self._confirm(self.hold.seq + len(entries)) is not CommitOutcome.ABORTED:
                # Committed or not, this run cannot know its hold's head any more: a fresh
                # claim reads it from the journal.
                break
            try:
                return await append()
            except (errors.LeaseLost, errors.CommitUnknown) as again:
                error = again
        self.fenced = True
        await self._leave_evidence(entries)
        raise errors.RunFenced from error

    async def _confirm(self, seq: int) -> CommitOutcome:
        try:
            return await self.journal.confirm(self.hold, seq=seq)
        except BaseException:  # a cancel too: broken off before the answer, this run will not know it
            self.fenced = True
            raise

    async def _leave_evidence(self, entries: Sequence[NewRecord]) -> None:
        """A stale worker may not close a step, but what it saw succeed must not be lost. Not for Read, whose answer is
        simply asked for again, nor for Transactional, whose effect would have been in the very commit that was
        refused."""
        for entry in entries:
            step = self.view.steps.get(entry.ordinal)
            if Event.SUCCEED not in entry.events or step is None or CLASSES[step.letter].changes_nothing:
                continue
            if entry.body.get("unkept"):
                continue
            result = entry.body.get("result")
            seen = decode(bytes(result)) if isinstance(result, msgspec.Raw) else result
            body = EvidenceGiven("succeeded", seen, "stale worker", self.hold.epoch).body()
            item = InboxItem(task_id=self.view.task_id, ordinal=entry.ordinal, kind=InboxKind.EVIDENCE, body=body)
            try:
                await self.journal.drop(item)
            except errors.HoldfastError as error:
                self.on_trouble(error)

    def _flush_soon(self) -> None:
        self._waited = False
        self.flusher.add(self)

    def flush_if_left(self) -> bool:
        """Write what was deferred at least a tick ago; False where nothing is left to look at."""
        if not self._pending or self.fenced:
            return False
        if self._waited and not self._turn.taken:
            task = asyncio.get_running_loop().create_task(self._flush_quietly())
            _FLUSHES.add(task)
            task.add_done_callback(_FLUSHES.discard)
            return False
        self._waited = True
        return True

    async def _flush_quietly(self) -> None:
        try:
            await self.flush()
        except (errors.RunFenced, errors.HoldfastError):
            return  # the run's own next write meets the same answer


_FLUSHES: set[asyncio.Task[None]] = set()  # keeps the tasks alive until they are done


class Flusher:
    """Looks after deferred results that no later step takes along: one timer for all writers."""

    __slots__ = ("_writers", "_timer")

    def __init__(self) -> None:
        self._writers: dict[TaskWriter, None] = {}  # in order: the same run writes them alike
        self._timer: asyncio.TimerHandle | None = None

    def add(self, writer: TaskWriter) -> None:
        self._writers[writer] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEFER_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        writers, self._writers = self._writers, {}
        for writer in writers:
            if writer.flush_if_left():
                self.add(writer)
