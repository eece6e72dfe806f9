"""A task's book: the owner's one way to write, and its memory of what is written.

The view in memory is the fold of what is durable plus, at its end, results that may wait for the
next step's commit (`defer`): for Read and Keyed steps a lost result is asked for again, so the
result of step n and the intent of step n+1 share one synced commit (proven safe, effects I4, I5).
Nothing outside the task sees a deferred result before it is durable: every effect, rest and
finish takes the deferred records along in its own commit, first.

Branches of a gather write at the same time; their records leave in the order they arrive and
share commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.core.clock import Clock
from holdfast.errors import (
    CommitUnknown,
    Fenced,
    HoldfastError,
    InvariantViolated,
    JournalBusy,
    JournalFull,
    LeaseLost,
    Signal,
)
from holdfast.journal.contract import (
    Change,
    Hold,
    InboxItem,
    InboxKind,
    Journal,
    Outcome,
    Statement,
)
from holdfast.journal.records import Entry, Record, StepView, TaskView, fold

DEFER_S = 0.01  # a deferred result that no later step takes along is written after this
RETRY_S = 0.25
CONFIRM_MAX = 3


class Book:
    """The owner's hold on one task: append, fold, remember."""

    __slots__ = (
        "_busy", "_flush_timer", "_pending", "_slots", "_waiting", "cancelled", "changed", "clock",
        "fenced", "hold", "inbox", "journal", "on_trouble", "signal", "view",
    )  # fmt: skip

    def __init__(
        self, *, journal: Journal, hold: Hold, view: TaskView, inbox: Sequence[InboxItem],
        clock: Clock, on_trouble: Callable[[HoldfastError], None],
    ) -> None:  # fmt: skip
        self.journal = journal
        self.hold = hold
        self.view = view
        self.clock = clock
        self.inbox = list(inbox)
        self.on_trouble = on_trouble
        self.cancelled = any(item.kind is InboxKind.CANCEL for item in self.inbox)
        self.changed = asyncio.Event()
        self.fenced = False
        self.signal: Signal | None = None
        self._pending: list[Entry] = []
        self._slots: list[int] = []
        self._busy = False
        self._waiting: list[asyncio.Future[None]] = []
        self._flush_timer: asyncio.TimerHandle | None = None

    def add_to_inbox(self, item: InboxItem) -> None:
        if all(known.number != item.number for known in self.inbox):
            self.inbox.append(item)
            self.cancelled = self.cancelled or item.kind is InboxKind.CANCEL
            self.changed.set()

    def find_item(self, kind: InboxKind, ordinal: str) -> InboxItem | None:
        for item in self.inbox:
            if item.kind is kind and item.ordinal == ordinal:
                return item
        return None

    def step(self, ordinal: str) -> StepView | None:
        return self.view.steps.get(ordinal)

    def get_step(self, ordinal: str) -> StepView:
        step = self.view.steps.get(ordinal)
        if step is None:
            raise InvariantViolated("I4", f"step {ordinal} was not recorded")
        return step

    def defer(self, entry: Entry, *, slot: int = -1) -> None:
        """Take the record into the view now and into the journal with the next commit."""
        self._fold((entry,), (0,))
        self._pending.append(entry)
        if slot >= 0:
            self._slots.append(slot)
        if self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(DEFER_S, self._flush_later)

    async def begin(self, entries: Sequence[Entry]) -> None:
        """Write records on whose strength an effect will be sent.

        Raises JournalFull, JournalBusy: nothing was written, nothing may be sent.
        """
        await self._write(entries, begins=True)

    async def write(
        self, entries: Sequence[Entry], *, change: Change | None = None,
        applied: Sequence[int] = (), statements: Sequence[Statement] = (), slot: int = -1,
    ) -> None:  # fmt: skip
        """Write records that must not be lost: waits out a full or busy journal."""
        while True:
            try:
                await self._write(entries, change=change, applied=applied, statements=statements)
                break
            except (JournalFull, JournalBusy) as error:
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
        self, entries: Sequence[Entry], *, change: Change | None = None,
        applied: Sequence[int] = (), statements: Sequence[Statement] = (), begins: bool = False,
    ) -> None:  # fmt: skip
        while self._busy:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        if self.fenced:
            raise Fenced
        self._busy = True
        pending, slots = self._pending, self._slots
        self._pending, self._slots = [], []
        try:
            numbers = await self._append(
                [*pending, *entries] if pending else entries, change=change, applied=applied,
                statements=statements, begins=begins,
            )  # fmt: skip
        except BaseException:
            self._pending, self._slots = [*pending, *self._pending], [*slots, *self._slots]
            raise
        finally:
            self._busy = False
            self._next_turn()
        self._fold(entries, numbers[len(pending) :])
        for slot in slots:
            self.hold.session.free_slot(slot)

    async def _append(
        self, entries: Sequence[Entry], *, change: Change | None, applied: Sequence[int],
        statements: Sequence[Statement], begins: bool,
    ) -> list[int]:  # fmt: skip
        if not entries and change is None and not applied:
            return []
        for _ in range(CONFIRM_MAX):
            wanted = self.hold.seq + len(entries)
            try:
                return await self.journal.append(
                    self.hold, entries, change=change, applied=applied, statements=statements,
                    begins=begins,
                )  # fmt: skip
            except LeaseLost as error:
                self.fenced = True
                raise Fenced from error
            except asyncio.CancelledError:
                # Broken off in the middle: the commit may have happened. A fresh claim reads it.
                self.fenced = True
                raise
            except CommitUnknown as error:
                self.on_trouble(error)
                outcome = await self.journal.confirm(self.hold, seq=wanted)
                if outcome is not Outcome.ABORTED:
                    # Committed or not, this run cannot know its hold's head any more: a fresh
                    # claim reads it from the journal.
                    self.fenced = True
                    raise Fenced from error
        self.fenced = True
        raise Fenced

    def _next_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return

    def _fold(self, entries: Sequence[Entry], numbers: Sequence[int]) -> None:
        view, epoch = self.view, self.hold.epoch
        at_ms, boot_ms = self.clock.wall_ms(), self.clock.boot_ms()
        for entry, number in zip(entries, numbers, strict=True):
            fold(
                view,
                Record(
                    number=number, seq=view.seq + 1, kind=entry.kind, ordinal=entry.ordinal,
                    events=entry.events, epoch=epoch, at_ms=at_ms, boot_ms=boot_ms,
                    effect_key=entry.effect_key, fingerprint=entry.fingerprint, slot=entry.slot,
                    quiet=entry.quiet, body=entry.body,
                ),
            )  # fmt: skip

    def _flush_later(self) -> None:
        self._flush_timer = None
        if self._pending and not self._busy and not self.fenced:
            task = asyncio.get_running_loop().create_task(self._flush_quietly())
            _FLUSHES.add(task)
            task.add_done_callback(_FLUSHES.discard)

    async def _flush_quietly(self) -> None:
        try:
            await self.flush()
        except Fenced:
            return  # the run's own next write meets the same answer
        except HoldfastError as error:
            self.on_trouble(error)


_FLUSHES: set[asyncio.Task[None]] = set()  # keeps the tasks alive until they are done
