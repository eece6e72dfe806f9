"""Sending: the start is made durable, the tool is called, what came of it is recorded.

The order never changes: slot taken, start committed and synced, lease checked, slot marked, the
call, its outcome committed, slot freed. A refused commit means nothing is sent. An outcome that
is known is recorded before a cancel counts; an attempt that is broken off is recorded as unsent
while that is certain, and as doubtful from its first byte on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from holdfast.core.effect import CLASSES, Keyed
from holdfast.core.step import Event, Facts, NotAllowed, Step, StepState, next_step
from holdfast.core.values import copied
from holdfast.errors import InvariantViolated, JournalBusy, JournalFull, RunFenced, StatementFailed
from holdfast.host.traces import Trace
from holdfast.journal.contract import Change
from holdfast.journal.own_view import SUCCESS
from holdfast.journal.records import Body, NewRecord, RecordKind, StepView
from holdfast.runtime.scratch.scratch import Scratch
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step.attempt import AttemptOutcome, Caller, Doubtful, Raised, RefusedBy, Returned, Send, Unsent
from holdfast.runtime.step.facts import attempts_left, pause_s, slot_tag
from holdfast.runtime.tool.tool import Tool

FULL_RETRY_S = 0.5
LEASE_RETRY_S = 0.01
NOT_SENT = "not sent"
REASON_CHARS_MAX = 300  # of an error's message in the log
# These close a step without a call of this run: the scratch folder is as it was before it.
_CLOSED_ELSEWHERE = frozenset((Event.FIND, Event.ADOPT, Event.SETTLE_DONE, Event.SETTLE_SKIP, Event.SKIP))


class Sender:
    """Sends attempts of one task's steps and records their outcomes."""

    def __init__(self, *, writer: TaskWriter, caller: Caller, pace: float) -> None:
        self._writer = writer
        self._lease = caller.lease
        self._caller = caller
        self._pace = pace
        epoch = writer.hold.epoch
        self._facts_plain = Facts(epoch=epoch, owner=True)
        self._facts_stored = Facts(epoch=epoch, owner=True, refusals_stored=True)
        self._may_succeed: Step | None = None

    def take_slot(self, tool: Tool[..., Any], key: bytes, attempt: int) -> int:
        if tool.effect.changes_nothing:
            return -1
        return self._lease.session.take_slot(slot_tag(key, attempt))

    def check_owner(self) -> None:
        """Raise RunFenced where another branch or task has met the end of this run or session."""
        if self._writer.fenced or self._lease.lost:
            raise RunFenced

    def late_ms(self, tool: Tool[..., Any]) -> int:
        """How long after its start is allowed an attempt may still hand over its first byte: its
        own time, and a pause that its lease outlasts."""
        return int(tool.timeout_s * 1000) + self._lease.session.ttl_ms

    async def begin(self, entry: NewRecord, slot: int, *, allowed: Callable[[], bool] | None = None) -> bool:
        """Make the start durable. No space: wait here, nothing has been sent. False where it stopped being allowed
        before it was written."""
        writer = self._writer
        try:
            while True:
                if writer.signal is not None:
                    raise writer.signal
                if not self._lease.ok():
                    self._lease.check()
                    await asyncio.sleep(LEASE_RETRY_S)
                    continue
                if allowed is not None and not allowed():
                    self._lease.session.free_slot(slot)
                    return False
                try:
                    await writer.begin(entry)
                    return True
                except (JournalFull, JournalBusy) as error:
                    writer.on_trouble(error)
                    await asyncio.sleep(FULL_RETRY_S * self._pace)
        except BaseException:  # a cancel too: a start that is recorded, and not sent, must say so
            step = writer.step(entry.ordinal)
            if step is not None and self._is_mine(step):
                await self._record_stop(step, Send(self._lease, slot))  # started, and not sent
            else:
                self._lease.session.free_slot(slot)
            raise

    async def call(
        self, tool: Tool[..., Any], step: StepView, args: dict[str, Any], slot: int, *, own: bool = False
    ) -> None:
        """Call the tool and record what came of it. `own`: nobody else holds these arguments."""
        send, writer = Send(self._lease, slot), self._writer
        writer.calls += 1
        try:
            try:
                scratch = writer.scratch
                folder = None if scratch is None else scratch.path
                given: Any = args if own else copied(args)  # a tool that changes its own changes no repeat
                outcome = await self._caller.attempt(tool, step, given, writer.view.task_id, send, folder)
            except asyncio.CancelledError:
                # The worker is stopping or fenced, or the task's code broke the call off.
                await self._record_stop(step, send)
                raise
            if scratch is not None and not isinstance(outcome, (Unsent, Doubtful)):
                await self._record_with_files(scratch, tool, step, outcome, slot)
            elif not self._deferred(tool, step, outcome, slot):
                await self._record(tool, step, outcome, slot)
        finally:
            writer.calls -= 1

    async def _record_with_files(
        self, scratch: Scratch, tool: Tool[..., Any], step: StepView, outcome: AttemptOutcome, slot: int
    ) -> None:
        """The files that the call left are durable with its outcome; where they cannot be, the outcome goes first."""
        kept, cut = await scratch.after(step.ordinal)
        if not self._deferred(tool, step, outcome, slot):
            await self._record(tool, step, outcome, slot)
        if cut is not None:
            raise cut
        if not kept:
            await scratch.after_late(step.ordinal)

    def _deferred(self, tool: Tool[..., Any], step: StepView, outcome: AttemptOutcome, slot: int) -> bool:
        """Leave a plain success to the next commit, where its class allows that."""
        if type(outcome) is not Returned or not tool.merges or not self._is_mine(step):
            return False
        if outcome.unkept:
            body: Body = {"result": None, "unkept": outcome.unkept}
        elif self._writer.secrets.active:
            body = {"result": outcome.result}
        else:
            body = {"result": msgspec.Raw(outcome.raw)}  # what the code does with its result cannot change it
        if step.step is not self._may_succeed:  # rows that are equal are the same one, as long as they are kept at hand
            facts = self._facts(tool)
            check_allowed(next_step(step.step, Event.SUCCEED, facts, letter=step.letter), step.ordinal)
            self._may_succeed = step.step
        entry = NewRecord(kind=RecordKind.STEP, ordinal=step.ordinal, events=SUCCESS, body=body)
        self._writer.defer(entry, slot)
        if outcome.raw and not self._writer.secrets.active:
            step.result = outcome.result
        return True

    async def unsend(self, tool: Tool[..., Any], step: StepView, slot: int, why: str) -> None:
        """Record that an attempt which was started is not sent after all."""
        await self._record(tool, step, Unsent(why), slot)

    async def _record(self, tool: Tool[..., Any], step: StepView, outcome: AttemptOutcome, slot: int) -> None:
        """Record the outcome, whatever comes: one that is known must not become unknown."""
        cut: asyncio.CancelledError | None = None
        while self._is_mine(step):
            try:
                await self._record_outcome(tool, step, outcome, slot)
            except asyncio.CancelledError as error:
                cut = error
        if cut is not None:
            raise cut

    def _is_mine(self, step: StepView) -> bool:
        """Whether its newest attempt was started by this run and has no outcome yet."""
        row = step.step
        return row is not None and row.state is StepState.STARTED and row.epoch == self._writer.hold.epoch

    async def record(
        self,
        step: StepView,
        event: Event,
        facts: Facts,
        body: Body,
        *,
        slot: int = -1,
        change: Change | None = None,
        applied: tuple[int, ...] = (),
    ) -> None:
        """Write one event of a step, if the transition function allows it."""
        if self._writer.scratch is not None and event in _CLOSED_ELSEWHERE:
            await self._writer.scratch.after_late(step.ordinal)
        entry = _entry(step, event, facts, body)
        await self._writer.write([entry], slot=slot, change=change, applied=applied)

    async def _record_outcome(self, tool: Tool[..., Any], step: StepView, outcome: AttemptOutcome, slot: int) -> None:
        facts = self._facts(tool)
        match outcome:
            case Returned():
                await self._record_success(tool, step, outcome, facts, slot)
            case RefusedBy():
                body: Body = {"proof": outcome.proof, "reason": "refused"}
                if outcome.retry_after_s is not None:
                    body["retry_after_s"] = outcome.retry_after_s
                await self._record_refusal(tool, step, facts, body, slot)
            case Raised() if tool.effect.changes_nothing or (step.step is not None and step.step.maybe_sent <= 1):
                # No other attempt can have had an effect.
                body = {"kind": outcome.kind, "text": outcome.text, "reason": "raised", **_traced(outcome.trace)}
                await self._record_refusal(tool, step, facts, body, slot)
            case Raised():
                # It sent nothing; but that says nothing of the attempts before it.
                body = {"reason": NOT_SENT, "text": f"{outcome.kind}: {outcome.text}", **_traced(outcome.trace)}
                await self._record_failure(tool, step, Event.UNSENT, facts, body, slot)
            case Unsent():
                body = {"reason": NOT_SENT, "text": outcome.reason}
                if outcome.retry_after_s:
                    body["retry_after_s"] = outcome.retry_after_s
                await self._record_failure(tool, step, Event.UNSENT, facts, body, slot)
            case Doubtful():
                body = msgspec.structs.asdict(outcome)
                if not outcome.left:
                    del body["left"]
                body |= _traced(body.pop("trace"))
                # A Read changes nothing: it waits for its turn as planned, where a cancel ends it.
                waits = tool.letter == "R" and outcome.reason == "busy"
                event = Event.RETRY if waits else Event.DOUBT
                await self._record_failure(tool, step, event, facts, body, slot)
            case _:
                assert_never(outcome)

    async def _record_failure(
        self, tool: Tool[..., Any], step: StepView, event: Event, facts: Facts, body: Body, slot: int
    ) -> None:
        """An attempt ended without a result: why, and when the next one is due, if there will be one."""
        again_s = self._again_s(tool, step, event, body)
        if again_s is not None:
            body["again_ms"] = self._writer.journal.now_ms() + int(again_s * 1000)
        await self.record(step, event, facts, body, slot=slot)
        failure, again = step.failure, {} if again_s is None else {"next_try_s": round(again_s, 3)}
        self._writer.log.event(
            "attempt-failed",
            task_id=self._writer.view.task_id,
            step=step.ordinal,
            tool=tool.name,
            attempt=len(step.earlier) + len(step.attempts),
            state=step.state.value,
            reason=failure.said[:REASON_CHARS_MAX],
            where=failure.where,
            **again,
        )

    def _again_s(self, tool: Tool[..., Any], step: StepView, event: Event, body: Body) -> float | None:
        """None where no rule sends it again by itself."""
        if event in (Event.FAIL, Event.REFUSE) or (event is Event.DOUBT and not tool.effect.repeatable):
            return None
        reason = str(body["reason"])
        if not attempts_left(step, tool, also_spared=event is Event.UNSENT or reason == "busy"):
            return None
        tries = 1 if step.step is None else step.step.attempts
        return self._pace * pause_s(tool, reason=reason, tries=tries, retry_after_s=body.get("retry_after_s"))

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
                await self._writer.write([entry], statements=outcome.apply.parsed(), slot=slot)
            except StatementFailed as error:
                failed: Body = {"kind": "StatementFailed", "text": error.message, "reason": "raised"}
                await self._record_refusal(tool, step, facts, failed, slot)
        else:
            await self._writer.write([entry], slot=slot)

    async def _record_refusal(self, tool: Tool[..., Any], step: StepView, facts: Facts, body: Body, slot: int) -> None:
        """Failed with proof; or planned again under the same key where retries are left."""
        harmless = tool.effect.changes_nothing
        row = step.step
        limit = max(tool.retries, tool.attempts - 1) if "retry_after_s" in body else tool.retries
        again = row is not None and row.attempts - step.spared <= limit
        proven = row is not None and row.alone and not facts.refusals_stored
        if again and (harmless or proven):
            await self._record_failure(tool, step, Event.RETRY, facts, body, slot)
            return
        event = Event.FAIL if harmless else Event.REFUSE
        await self._record_failure(tool, step, event, facts, body, slot)

    async def _record_stop(self, step: StepView, send: Send) -> None:
        """Say that the attempt was broken off, if we still may; else the next claim says so."""
        if self._writer.fenced or self._lease.lost:
            if send.left:
                send.mark_left()  # this process may go on without its lease
            return
        body: Body = {"reason": "stopped", "text": "the call was broken off"}
        if send.left:
            body["left"] = send.left
        event = Event.DOUBT if send.begun else Event.UNSENT
        if CLASSES[step.letter].changes_nothing:
            event = Event.RETRY
        facts = Facts(epoch=self._writer.hold.epoch, owner=True)
        try:
            await self.record(step, event, facts, body, slot=send.slot)
        except RunFenced:
            return

    def _facts(self, tool: Tool[..., Any]) -> Facts:
        stored = isinstance(tool.effect, Keyed) and tool.effect.refusals_stored
        return self._facts_stored if stored else self._facts_plain


def check_allowed(result: object, ordinal: str) -> None:
    if isinstance(result, NotAllowed):
        raise InvariantViolated("transition", f"step {ordinal}: {result.event.name}: {result.why}")


def args_of(step: StepView) -> dict[str, Any]:
    """The recorded arguments: what was promised to be sent is what is sent again."""
    args = step.args
    if not isinstance(args, dict):
        raise InvariantViolated("I4", f"step {step.ordinal} has no arguments")
    return args  # pyright: ignore[reportUnknownVariableType] - JSON object, keys are text


def _traced(trace: Trace) -> Body:
    found = {"where": trace.where, "trace": trace.text}
    return {name: text for name, text in found.items() if text}


def _entry(step: StepView, event: Event, facts: Facts, body: Body) -> NewRecord:
    check_allowed(next_step(step.step, event, facts, letter=step.letter), step.ordinal)
    return NewRecord(kind=RecordKind.STEP, ordinal=step.ordinal, events=(event,), body=body, quiet=facts.quiet)
