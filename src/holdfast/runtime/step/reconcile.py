"""Reconciling: an open step is brought to its end, one safe move at a time.

The moves come from core/resume.py; this module works out the facts, waits for quiet, asks the
lookup, takes in evidence and people's decisions, and parks what no machine can settle. Nothing
here guesses: where a fact cannot be established it is taken as the worse one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never, cast

from holdfast.core.clock import Clock
from holdfast.core.effect import Keyed, Unrepeatable
from holdfast.core.ids import fingerprint
from holdfast.core.notices import step_parked_notice
from holdfast.core.rest import Parked, Sleep, Suspended, WaitsForApproval
from holdfast.core.resume import QUESTIONS, Move, decide, question
from holdfast.core.step import Event, Facts, Lookup, Step, StepState, is_suspect, next_step
from holdfast.core.values import canonical_within, checked, encode
from holdfast.core.waiting import wait_event
from holdfast.errors import BadValue, Cancelled, InvariantViolated, TooLarge
from holdfast.journal.bodies import ApprovalGiven, DecisionGiven, EvidenceGiven
from holdfast.journal.contract import Change, InboxItem, InboxKind
from holdfast.journal.records import Body, NewRecord, RecordKind, StepView, TaskState
from holdfast.runtime.secrets import pinned_fingerprint
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step.attempt import Args, Caller
from holdfast.runtime.step.facts import (
    MissingTool,
    approval_binding,
    attempts_left,
    ended_ago_ms,
    evidence_of,
    in_window,
    is_answer,
    left_behind,
    needs_approval,
    pause_s,
    proven_unsent,
    quiet_in_ms,
    sent_ago_s,
)
from holdfast.runtime.step.lost_timeline import Ask, LostEffects, opens_slots, retry_slots, slot_at
from holdfast.runtime.step.sending import NOT_SENT, Sender, check_allowed
from holdfast.runtime.tool.tool import Absent, FindAnswer, Found, Many, Tool, Unsure

UNSURE_ASKS_MAX = 5
ASK_AGAIN_S = 2.0
REST_ABOVE_S = 30.0  # a longer wait gives the task's place in this process to another

TAKEN = (
    "what was done at {} before the restore is the result of another step with the same arguments; its key is used up"
)

_DECISIONS = {"done": Event.SETTLE_DONE, "run": Event.SETTLE_RUN, "skip": Event.SETTLE_SKIP}


@dataclass(kw_only=True, eq=False, repr=False)
class Reconciler:
    """Drives open steps of one task."""

    writer: TaskWriter
    sender: Sender
    caller: Caller
    clock: Clock
    fingerprint_key: bytes
    key_of: Callable[[str], bytes]
    pace: float  # 1 in production; tests with shorter leases wait shorter too
    _lost: LostEffects = field(init=False)

    def __post_init__(self) -> None:
        self._lost = LostEffects(self.writer.view, self.key_of)

    def fingerprint(self, tool: Tool[..., Any], args: object) -> bytes:
        """Raises TooLarge."""
        raw = canonical_within(args, what=tool.args_title)
        return fingerprint(self.fingerprint_key, tool=tool.name, canonical_args=raw)

    async def drive(self, tool: Tool[..., Any], step: StepView, args: Args) -> StepView:
        """Until the step is closed; Suspended where it rests for a person."""
        lookup: Lookup = Lookup.NONE
        found: object = None
        while not step.closed:
            self.writer.check_going()
            await self._take_decision(tool, step)
            if step.closed:
                break
            facts = self._facts(tool, step, lookup)
            match decide(_row(step), facts):
                case Move.USE:
                    break
                case Move.REST:
                    raise Suspended(Parked())
                case Move.ADOPT:
                    await self._adopt(step, facts)
                case Move.UNSEND:
                    body: Body = {"reason": NOT_SENT, "text": "the worker died before it sent a byte"}
                    await self.sender.record(step, Event.UNSENT, facts, body)
                case Move.START:
                    await self._await_turn(tool, step)
                    await self._start_again(tool, step, args, lookup)
                    lookup, found = Lookup.NONE, None
                case Move.WAIT:
                    await self._wait_quiet(tool, step)
                case Move.ASK:
                    lookup, found = await self._ask(tool, step, args)
                case Move.FIND:
                    body = found_body(found)
                    await self.sender.record(step, Event.FIND, facts, body)
                case Move.PARK:
                    await self._park(tool, step, facts, found)
                    raise Suspended(Parked())
                case _ as move:
                    assert_never(move)
        return step

    async def pause_before_retry(self, tool: Tool[..., Any], refused: StepView) -> None:
        """Wait before a retry slot is opened, counted from the refusal."""
        ago_ms = self.writer.journal.now_ms() - refused.closed_ms
        await self._pause(tool.retry_delay_s * self.pace - max(ago_ms, 0) / 1000, lambda: False)

    async def _start_again(self, tool: Tool[..., Any], step: StepView, args: Args, lookup: Lookup) -> None:
        if step.state is StepState.PLANNED and await self._stopped_by_person(tool, step):
            return
        # Worked out again: the pause before this may have closed a window or brought evidence.
        facts = self._facts(tool, step, lookup)
        if decide(_row(step), facts) is not Move.START:
            return
        check_allowed(next_step(step.step, Event.START, facts, letter=step.letter), step.ordinal)
        slot = self.sender.take_slot(tool, step.effect_key, _row(step).attempts + 1)
        entry = NewRecord(
            kind=RecordKind.STEP, ordinal=step.ordinal, events=(Event.START,), body={}, slot=slot, quiet=facts.quiet
        )
        by_window = step.letter == "K" and step.state is not StepState.PLANNED and facts.in_window

        def allowed() -> bool:
            return not by_window or self._in_window(tool, step)

        if not await self.sender.begin(entry, slot, allowed=allowed):
            return
        if allowed():
            await self.sender.call(tool, step, args, slot)
        else:
            await self.sender.unsend(tool, step, slot, "its key window closed before a byte was sent")

    async def _stopped_by_person(self, tool: Tool[..., Any], step: StepView) -> bool:
        """A planned step is skipped where the task is cancelled or its approval refused."""
        facts = self._facts(tool, step, Lookup.NONE)
        if self.writer.cancelled:
            await self.sender.record(step, Event.SKIP, facts, {"note": "cancelled"})
            raise Cancelled
        if not needs_approval(tool, step):
            return False
        if step.planned.version != tool.version:
            # The code has changed since the question: what was granted for the old is void.
            note: Body = {"what": "version", "v": tool.version}
            await self.writer.write([NewRecord(kind=RecordKind.NOTE, ordinal=step.ordinal, body=note)])
        item = self._approval(tool, step)
        if item is None:
            raise Suspended(WaitsForApproval())
        given = ApprovalGiven.read(item.body)
        if given.granted:
            return False
        body: Body = {"by": given.by, "note": given.note or "refused"}
        await self.sender.record(step, Event.SKIP, facts, body, applied=(item.number,))
        return True

    # what people and webhooks say

    async def _adopt(self, step: StepView, facts: Facts) -> None:
        item = self._evidence(step)
        if item is None:
            raise InvariantViolated("T7", f"step {step.ordinal} has no evidence")
        given = EvidenceGiven.read(item.body)
        body: Body = {"result": given.result, "by": given.source}
        await self.sender.record(step, Event.ADOPT, facts, body, applied=(item.number,))

    async def _take_decision(self, tool: Tool[..., Any], step: StepView) -> None:
        """Apply a person's decision to a parked step, not before it is quiet (T10)."""
        items = [item for item in self.writer.inbox if is_answer(item, step)]
        if not items or step.state is not StepState.PARKED:
            return
        while not (facts := self._facts(tool, step, Lookup.NONE)).quiet:
            await self._wait_quiet(tool, step)
        if facts.evidence:
            return  # a fact counts more than an opinion
        given = DecisionGiven.read(items[0].body)
        event = _DECISIONS.get(given.decision)
        if event is None:
            raise InvariantViolated("T10", f"step {step.ordinal}: unknown decision")
        body: Body = {"by": given.by, "note": given.note}
        if event is Event.SETTLE_DONE:
            body["result"] = given.result
        # One question, one answer: a second one must not settle what is asked later.
        answered = tuple(one.number for one in items)
        await self.sender.record(step, event, facts, body, applied=answered)

    def _evidence(self, step: StepView) -> InboxItem | None:
        items = self.writer.items(InboxKind.EVIDENCE, step.ordinal)
        return next((item for item in items if EvidenceGiven.read(item.body).outcome == "succeeded"), None)

    def _approval(self, tool: Tool[..., Any], step: StepView) -> InboxItem | None:
        """The answer to what would be sent now; for other code or arguments none counts. Journals of older versions may
        hold several: people were told that the newest counts."""
        wanted = approval_binding(step)
        if step.planned.version != tool.version:
            return None
        items = reversed(self.writer.items(InboxKind.APPROVAL, step.ordinal))
        return next((item for item in items if ApprovalGiven.read(item.body).binding == wanted), None)

    # facts and waiting

    def _facts(self, tool: Tool[..., Any], step: StepView, lookup: Lookup) -> Facts:
        self.sender.check_owner()
        view, effect = self.writer.view, tool.effect
        quiet = quiet_in_ms(view, step, delay_ms=self._delay_ms(tool), clock=self.clock) == 0
        asked = needs_approval(tool, step)
        approval = self._approval(tool, step) if asked else None
        older = _row(step).epoch < self.writer.hold.epoch
        return Facts(
            epoch=self.writer.hold.epoch,
            owner=not self.writer.fenced,
            previous_closed=True,
            approved=not asked or (approval is not None and bool(ApprovalGiven.read(approval.body).granted)),
            lease_ok=True,  # the sender checks it again right before the commit
            quiet=quiet,
            in_window=self._in_window(tool, step) and not _must_ask_first(tool, step),
            attempts_left=attempts_left(step, tool) and not self.writer.secrets.missing(tool, step),
            lookup=lookup,
            has_lookup=tool.finder is not None,
            left=bool(self._left(tool, step)),
            unsent=older and proven_unsent(view, step, self.writer.journal),
            evidence=self._evidence(step) is not None,
            key_reused=step.doubt == "key-reused",
            at_least_once=isinstance(effect, Unrepeatable) and effect.policy == "at_least_once",
            refusals_stored=isinstance(effect, Keyed) and effect.refusals_stored,
        )

    def _left(self, tool: Tool[..., Any], step: StepView) -> str:
        repeatable = tool.effect.repeatable
        return "" if repeatable else left_behind(self.writer.view, step, self.writer.journal, in_child=tool.needs_child)

    def _in_window(self, tool: Tool[..., Any], step: StepView) -> bool:
        return in_window(
            self.writer.view, step, tool, self.writer.journal, self.clock, late_ms=self.sender.late_ms(tool)
        )

    async def _await_turn(self, tool: Tool[..., Any], step: StepView) -> None:
        """Space out repeated attempts; a busy far end says how long."""
        tries = _row(step).attempts
        if tries == 0 or step.ended is None:
            return
        if step.doubt == "refused" and step.state is StepState.UNKNOWN:
            # An older copy may be under way: only in quiet can the next refusal be proof (T4).
            while not self._facts(tool, step, Lookup.NONE).quiet and not self._is_decided(step):
                await self._wait_quiet(tool, step)
        wait_s = pause_s(tool, reason=step.doubt, tries=tries, retry_after_s=step.failure.retry_after_s)
        ago_s = ended_ago_ms(self.writer.view, step, self.clock) / 1000
        await self._pause(wait_s * self.pace - ago_s, lambda: self._is_decided(step))

    def _is_decided(self, step: StepView) -> bool:
        """Whether waiting longer before the next attempt is of no use."""
        cancelled = self.writer.cancelled and step.state is StepState.PLANNED
        return cancelled or self._evidence(step) is not None

    async def _pause(self, seconds: float, until: Callable[[], bool]) -> None:
        await self.writer.flush()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not until() and (left := end - loop.time()) > 0:
            self._check_rest(left)
            await self._wait_change(left)

    async def _wait_quiet(self, tool: Tool[..., Any], step: StepView) -> None:
        await self.writer.flush()
        left = quiet_in_ms(self.writer.view, step, delay_ms=self._delay_ms(tool), clock=self.clock)
        self._check_rest(left / 1000)
        await self._wait_change(max(left / 1000, 0.001))

    def _check_rest(self, left_s: float) -> None:
        """Leave memory to others where the wait is long; the journal knows since when it runs."""
        if self.writer.may_rest and left_s > REST_ABOVE_S:
            raise Suspended(Sleep(self.writer.journal.now_ms() + int(left_s * 1000)))

    async def _wait_change(self, seconds: float) -> None:
        """Wait, but listen for evidence, decisions and cancels."""
        self.writer.changed.clear()
        await wait_event(self.writer.changed, seconds)
        self.writer.check_going()

    def _delay_ms(self, tool: Tool[..., Any]) -> int:
        return int(tool.delay_ms * self.pace)

    # the lookup

    async def _ask(self, tool: Tool[..., Any], step: StepView, args: Args) -> tuple[Lookup, object]:
        """Ask; a lookup that cannot say is asked again a few times."""
        reason = ""
        task_id = self.writer.view.task_id
        ago_s = sent_ago_s(self.writer.view, step, self.writer.journal, self.clock)

        async def ask_at(slot: StepView) -> FindAnswer:
            return await self.caller.find(tool, slot, args, task_id=task_id, sent_ago_s=ago_s)

        for slot in self._lost_slots(tool, step):
            answer = await ask_at(slot)
            if isinstance(answer, Found):
                if self._lost.is_taken(tool, step, slot.ordinal):
                    return Lookup.UNSURE, TAKEN.format(slot.ordinal)
                return self._found(tool, step, answer)
            if not isinstance(answer, Absent):
                return Lookup.UNSURE, f"retry slot {slot.ordinal}: {answer!r}"[:500]
        for ask in range(UNSURE_ASKS_MAX):
            if ask:
                await self._pause(ASK_AGAIN_S * ask * self.pace, lambda: self._is_decided(step))
                if self._evidence(step) is not None:
                    return Lookup.NONE, None
            answer = await ask_at(step)
            place = step.ordinal
            if is_suspect(_row(step)) and step.restored_ms:
                place, answer = await self._ask_around(tool, step, answer, ask_at)
            match answer:
                case Found():
                    return self._found(tool, step, answer, at=place)
                case Absent():
                    return Lookup.ABSENT, None
                case Many():
                    clean = self.writer.secrets.text
                    return Lookup.MANY, [clean(repr(one))[:500] for one in answer.results]
                case Unsure():
                    reason = answer.reason
                case _:
                    assert_never(answer)
        return Lookup.UNSURE, reason

    async def _ask_around(
        self, tool: Tool[..., Any], step: StepView, own: FindAnswer, ask_at: Ask
    ) -> tuple[str, FindAnswer]:
        """What a lost timeline did in place of this step: the very call, wherever it made it, before another call with
        the same key, and that before another call elsewhere; what was told already comes last."""

        def same(found: Found) -> bool:
            return self._is_same(tool, step, found)

        match own:
            case Absent():
                return await self._lost.elsewhere(tool, step, ask_at, same=same)
            case Found() if self._lost.is_taken(tool, step, step.ordinal):
                place, answer = await self._lost.elsewhere(tool, step, ask_at, same=same)
                taken = Unsure(TAKEN.format(step.ordinal))
                return (step.ordinal, taken) if isinstance(answer, Absent) else (place, answer)
            case Found() if own.args is not None and not same(own):
                told = self._lost.is_told(tool, step)
                place, answer = await self._lost.elsewhere(tool, step, ask_at, same=same, only_same=not told)
                return (step.ordinal, own) if isinstance(answer, Absent) else (place, answer)
            case _:
                return step.ordinal, own

    def _lost_slots(self, tool: Tool[..., Any], step: StepView) -> list[StepView]:
        """Retry slots after this one that a lost timeline may have used: asked before it is
        touched, because past its window the far end no longer repeats the refusals between."""
        if not step.restored_ms or not opens_slots(tool):
            return []
        names = retry_slots(tool, step.ordinal)
        return [slot_at(step, name, self.key_of(name)) for name in names]

    def _found(self, tool: Tool[..., Any], step: StepView, answer: Found, *, at: str = "") -> tuple[Lookup, object]:
        place: Body = {"at": at} if at and at != step.ordinal else {}
        try:
            clean = self.writer.secrets.value
            result = clean(checked(answer.result, what=f"lookup result of {tool.name}"))
            encode(result, what=f"lookup result of {tool.name}")
            other = self._other_args(tool, step, answer)
        except (BadValue, TooLarge) as error:
            return Lookup.UNSURE, error.message
        if other is not None or (place and answer.args is None):
            return Lookup.OTHER, {**place, "found": other, "result": result}
        return Lookup.FOUND, {**place, "result": result}

    def _other_args(self, tool: Tool[..., Any], step: StepView, answer: Found) -> object | None:
        """The arguments it was done with, where they are not the step's. Raises BadValue."""
        if answer.args is None:
            return None
        other = self.writer.secrets.value(checked(answer.args, what="arguments the lookup found"))
        mark = pinned_fingerprint(self.fingerprint(tool, other), step.planned.secrets)
        return None if mark == step.fingerprint else other

    def _is_same(self, tool: Tool[..., Any], step: StepView, answer: Found) -> bool:
        try:
            return answer.args is not None and self._other_args(tool, step, answer) is None
        except (BadValue, TooLarge):
            return False

    async def _park(self, tool: Tool[..., Any], step: StepView, facts: Facts, found: object) -> None:
        name = question(_row(step), facts, restored=bool(step.restored_ms))
        text = QUESTIONS[name].format(left=self._left(tool, step))
        if isinstance(tool, MissingTool):
            name, text = "tool", tool.question
        elif name == "attempts" and (gone := self.writer.secrets.missing(tool, step)):
            name, text = "secret", gone
        left = quiet_in_ms(self.writer.view, step, delay_ms=self._delay_ms(tool), clock=self.clock)
        now_ms = self.writer.journal.now_ms()
        body: Body = {
            "question": text,
            "why": name,
            "evidence": evidence_of(step, found, self.writer.items(InboxKind.EVIDENCE, step.ordinal)),
            "not_before_ms": now_ms + left,
            "quiet_in_ms": left,
        }
        task_id, epoch = self.writer.view.task_id, self.writer.hold.epoch
        notice = step_parked_notice(task_id, step.ordinal, step.tool, text, epoch=epoch, now_ms=now_ms)
        change = Change(state=TaskState.RUNNING, notice=notice)
        await self.sender.record(step, Event.PARK, facts, body, change=change)


def _row(step: StepView) -> Step:
    if step.step is None:
        raise InvariantViolated("I4", f"step {step.ordinal} has no record")
    return step.step


def _must_ask_first(tool: Tool[..., Any], step: StepView) -> bool:
    """A slot of a lost timeline: asked before it is sent; without a lookup, sent only where the
    far end compares bodies and so can tell a lost effect from this one (rule 7)."""
    effect = tool.effect
    if not isinstance(effect, Keyed) or not step.restored_ms or step.attempts:
        return False
    return effect.fingerprint == "ignored" or tool.finder is not None or opens_slots(tool)


def found_body(found: object) -> Body:
    """What a lookup's find leaves in the record: the result, and what was done in truth."""
    seen = cast(Body, found)
    body: Body = {"result": seen["result"], "by": "lookup"}
    if "found" in seen or "at" in seen:
        body["found"] = {"at": seen.get("at", "")}
    if "found" in seen:
        body["found"]["args"] = seen["found"]
    return body
