"""Sending: the start is made durable, the tool is called, what came of it is recorded.

The order never changes: slot taken, start committed and synced, lease checked, slot marked, the
call, its outcome committed, slot freed. A refused commit means nothing is sent. A stale worker
whose call had succeeded leaves that as evidence for the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from holdfast.core.effect import Keyed, Queryable
from holdfast.core.step import Event, Facts, Refusal, next_step
from holdfast.errors import (
    Fenced,
    HoldfastError,
    InvariantViolated,
    JournalBusy,
    JournalFull,
    StatementFailed,
)
from holdfast.journal.contract import Change, InboxItem, InboxKind
from holdfast.journal.records import Body, Entry, Kind, StepView
from holdfast.runtime.attempt import (
    Caller,
    Doubtful,
    Outcome,
    Raised,
    RefusedBy,
    Returned,
    Send,
    Unsent,
)
from holdfast.runtime.book import Book
from holdfast.runtime.facts import slot_tag
from holdfast.runtime.lease import Lease
from holdfast.runtime.tool import Tool

FULL_RETRY_S = 0.5

Args = dict[str, Any]  # Any: JSON values, checked before they are planned


def _always() -> bool:
    return True


class Sender:
    """Sends attempts of one task's steps and records their outcomes."""

    def __init__(self, *, book: Book, lease: Lease, caller: Caller, pace: float) -> None:
        self._book = book
        self._lease = lease
        self._caller = caller
        self._pace = pace

    def take_slot(self, tool: Tool[..., Any], key: bytes, attempt: int) -> int:
        if tool.letter in ("R", "T"):
            return -1
        return self._lease.session.take_slot(slot_tag(key, attempt))

    def late_ms(self, tool: Tool[..., Any]) -> int:
        """How long after its start is allowed an attempt may still hand over its first byte: its
        own time, and a pause that its lease outlasts."""
        return int(tool.timeout_s * 1000) + self._lease.session.ttl_ms

    async def begin(
        self, entries: Sequence[Entry], slot: int, *, allowed: Callable[[], bool] = _always
    ) -> bool:
        """Make the start durable. No space: wait here, nothing has been sent.

        False where it stopped being allowed before it was written.
        """
        while True:
            if not self._lease.ok():
                self._lease.check()
                await asyncio.sleep(0.01)
                continue
            if not allowed():
                self._lease.session.free_slot(slot)
                return False
            try:
                await self._book.begin(entries)
                return True
            except (JournalFull, JournalBusy) as error:
                self._book.on_trouble(error)
                await asyncio.sleep(FULL_RETRY_S * self._pace)
            except BaseException:
                self._lease.session.free_slot(slot)
                raise

    async def call(self, tool: Tool[..., Any], step: StepView, args: Args, slot: int) -> None:
        """Call the tool and record what came of it."""
        send = Send(self._lease, slot)
        try:
            outcome = await self._caller.attempt(
                tool, step, args, task_id=self._book.view.task_id, send=send
            )
        except asyncio.CancelledError:
            # The worker is stopping or fenced, or the task's code broke the call off.
            await self._record_stop(tool, step, send)
            raise
        try:
            await self._record_outcome(tool, step, outcome, slot)
        except Fenced:
            await self._leave_evidence(step, outcome)
            raise

    async def record(
        self, step: StepView, event: Event, facts: Facts, body: Body, *, slot: int = -1,
        change: Change | None = None, applied: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Write one event of a step, if the transition function allows it."""
        entry = _entry(step, event, facts, body)
        await self._book.write([entry], slot=slot, change=change, applied=applied)

    async def _record_outcome(
        self, tool: Tool[..., Any], step: StepView, outcome: Outcome, slot: int
    ) -> None:
        facts = self._facts(tool)
        match outcome:
            case Returned():
                await self._record_success(tool, step, outcome, facts, slot)
            case RefusedBy():
                body: Body = {"proof": outcome.proof, "reason": "refused"}
                await self._record_refusal(tool, step, facts, body, slot)
            case Raised():
                body = {"kind": outcome.kind, "text": outcome.text, "reason": "raised"}
                await self._record_refusal(tool, step, facts, body, slot)
            case Unsent():
                await self.record(step, Event.UNSENT, facts, {"reason": outcome.reason}, slot=slot)
            case Doubtful():
                body = {
                    "reason": outcome.reason, "kind": outcome.kind, "text": outcome.text,
                    "retry_after_s": outcome.retry_after_s,
                }  # fmt: skip
                await self.record(step, Event.DOUBT, facts, body, slot=slot)
            case _:
                assert_never(outcome)

    async def _record_success(
        self, tool: Tool[..., Any], step: StepView, outcome: Returned, facts: Facts, slot: int
    ) -> None:
        body: Body = {"result": outcome.result}
        if outcome.unkept:
            body["unkept"] = outcome.unkept
        if tool.letter == "N" and step.step is not None and step.step.maybe_sent > 1:
            body["note"] = "duplicate_possible"
        entry = _entry(step, Event.SUCCEED, facts, body)
        if outcome.apply is not None:
            try:
                await self._book.write([entry], statements=outcome.apply.parsed(), slot=slot)
            except StatementFailed as error:
                failed: Body = {
                    "kind": "StatementFailed", "text": error.message, "reason": "raised",
                }  # fmt: skip
                await self._record_refusal(tool, step, facts, failed, slot)
        elif _may_wait(tool):
            self._book.defer(entry, slot=slot)
        else:
            await self._book.write([entry], slot=slot)

    async def _record_refusal(
        self, tool: Tool[..., Any], step: StepView, facts: Facts, body: Body, slot: int
    ) -> None:
        """Failed with proof; or planned again under the same key where retries are left."""
        harmless = tool.letter in ("R", "T")
        row = step.step
        again = row is not None and row.attempts - step.spared <= tool.retries
        proven = row is not None and row.alone and not facts.refusals_stored
        if again and (harmless or proven):
            await self.record(step, Event.RETRY, facts, body, slot=slot)
            return
        event = Event.FAIL if harmless else Event.REFUSE
        await self.record(step, event, facts, body, slot=slot)

    async def _record_stop(self, tool: Tool[..., Any], step: StepView, send: Send) -> None:
        """Say that the attempt was broken off, if we still may; else the next claim says so."""
        if self._book.fenced or self._lease.lost:
            return
        body: Body = {"reason": "stopped", "text": "the call was broken off"}
        event = Event.DOUBT if send.begun else Event.UNSENT
        if tool.letter in ("R", "T"):
            event = Event.RETRY
        try:
            await self.record(step, event, self._facts(tool), body, slot=send.slot)
        except Fenced:
            return

    async def _leave_evidence(self, step: StepView, outcome: Outcome) -> None:
        """A stale worker may not close the step, but what it saw must not be lost.

        What a Transactional tool returned is no effect yet: the refused commit would have been it.
        """
        if not isinstance(outcome, Returned) or outcome.unkept or outcome.apply is not None:
            return
        body: Body = {
            "outcome": "succeeded", "result": outcome.result, "source": "stale worker",
            "epoch": self._book.hold.epoch,
        }  # fmt: skip
        item = InboxItem(
            task_id=self._book.view.task_id, ordinal=step.ordinal, kind=InboxKind.EVIDENCE,
            body=body,
        )  # fmt: skip
        try:
            await self._book.journal.drop(item)
        except HoldfastError as error:
            self._book.on_trouble(error)

    def _facts(self, tool: Tool[..., Any]) -> Facts:
        stored = isinstance(tool.effect, Keyed) and tool.effect.refusals_stored
        return Facts(epoch=self._book.hold.epoch, owner=True, refusals_stored=stored)


def check_allowed(result: object, ordinal: str) -> None:
    if isinstance(result, Refusal):
        raise InvariantViolated("transition", f"step {ordinal}: {result.event.name}: {result.why}")


def args_of(step: StepView) -> Args:
    """The recorded arguments: what was promised to be sent is what is sent again."""
    args = step.args
    if not isinstance(args, dict):
        raise InvariantViolated("I4", f"step {step.ordinal} has no arguments")
    return args  # pyright: ignore[reportUnknownVariableType] - JSON object, keys are text


def _entry(step: StepView, event: Event, facts: Facts, body: Body) -> Entry:
    check_allowed(next_step(step.step, event, facts, letter=step.letter), step.ordinal)
    return Entry(
        kind=Kind.STEP, ordinal=step.ordinal, events=(event,), body=body, quiet=facts.quiet
    )


def _may_wait(tool: Tool[..., Any]) -> bool:
    effect = tool.effect
    return effect.merges or (isinstance(effect, Queryable) and effect.find_returns_result)
