"""Bringing a step to its end: plan, start, call, record; and for open ones, reconcile.

`perform` is what `run.call` awaits. A new step is planned and started in one commit and called;
an open one, found on resume, is driven through the table in core/resume.py until it is closed or
parked. Every record is checked by `next_step` before it is written, so that a mistake in this
file is refused rather than recorded.

What a crash leaves, line by line of `_begin_new`: before the commit nothing; after it a started
step whose slot says whether a byte can have left; after the call the same until the result's
commit. There is no line at which an effect exists without its intent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_never

from holdfast.core.clock import Clock
from holdfast.core.effect import Keyed, Queryable, Unrepeatable
from holdfast.core.ids import effect_key, effect_key_bytes, effect_key_from_bytes, fingerprint
from holdfast.core.ordinal import retry_slot
from holdfast.core.ports import Notice
from holdfast.core.resume import QUESTIONS, Move, decide, question
from holdfast.core.step import Event, Facts, Lookup, Refusal, StepState, next_step
from holdfast.core.values import canonical, checked, encode
from holdfast.errors import (
    BadValue,
    Cancelled,
    Fenced,
    HoldfastError,
    InvariantViolated,
    JournalBusy,
    JournalFull,
    Refused,
    ResultNotKept,
    StatementFailed,
    StepSkipped,
    Suspended,
    TooLarge,
    ToolFailed,
)
from holdfast.journal.contract import Change, InboxItem, InboxKind
from holdfast.journal.records import Body, Entry, Kind, StepView, TaskState
from holdfast.runtime.attempt import (
    Caller,
    Doubtful,
    Outcome,
    Raised,
    RefusedBy,
    Returned,
    Unsent,
)
from holdfast.runtime.book import Book
from holdfast.runtime.facts import (
    attempts_left,
    in_window,
    proven_unsent,
    quiet_in_ms,
    slot_tag,
)
from holdfast.runtime.lease import Lease
from holdfast.runtime.tool import Absent, Found, Many, Tool, Unsure

FULL_RETRY_S = 0.5
UNSURE_ASKS_MAX = 5
ASK_AGAIN_S = 2.0
BACKOFF_S_MAX = 60.0
BACKOFF_S = 0.2

Args = dict[str, Any]  # Any: JSON values, checked before they are planned


class Steps:
    """Performs the steps of one task under one hold."""

    def __init__(
        self, *, book: Book, lease: Lease, caller: Caller, clock: Clock, k_effect: bytes,
        fingerprint_key: bytes, pace: float = 1.0,
    ) -> None:  # fmt: skip
        self.book = book
        self._lease = lease
        self._caller = caller
        self._clock = clock
        self._k_effect = k_effect
        self._fingerprint_key = fingerprint_key
        self._pace = pace  # 1 in production; tests with shorter leases wait shorter too
        self._asked: dict[str, int] = {}

    async def perform(
        self, tool: Tool[..., Any], ordinal: str, args: Args, *, extra: Body | None = None
    ) -> object:
        """The step's result, or what it failed with; Suspended where a person is needed."""
        kept = checked(args, what=f"arguments of {tool.name}")
        number = 0
        slot_name = ordinal
        while True:
            step = await self._settled(tool, slot_name, kept, extra)
            if step.state is not StepState.FAILED or not self._retried(tool, step, number):
                return outcome_of(step)
            number += 1
            slot_name = retry_slot(ordinal, number)
            if self.book.step(slot_name) is None:
                await self._pause(tool.retry_delay_s)

    async def settle_open(self, tool: Tool[..., Any], step: StepView) -> StepView:
        """Bring an open step to its end with its recorded arguments."""
        return await self._drive(tool, step, _args_of(step))

    def fingerprint(self, tool: Tool[..., Any], args: object) -> bytes:
        return fingerprint(
            self._fingerprint_key, tool=tool.name, canonical_args=canonical(args)
        )

    async def _settled(
        self, tool: Tool[..., Any], ordinal: str, args: object, extra: Body | None
    ) -> StepView:
        mark = self.fingerprint(tool, args)
        step = self.book.step(ordinal)
        if step is not None:
            check_same(step, tool, mark)
            return step if step.closed else await self._drive(tool, step, _args_of(step))
        if self.book.cancelled:
            raise Cancelled
        encode(args, what=f"arguments of {tool.name}")
        body: Body = {"tool": tool.name, "letter": tool.letter, "args": args, "v": tool.version}
        if isinstance(tool.effect, Keyed):
            body["window_ms"] = int(tool.effect.window_s * 1000)
        if extra:
            body.update(extra)
        if self.book.view.restored_ms and tool.letter not in ("R", "T", "I", "F"):
            return await self._plan_suspect(tool, ordinal, body, mark)
        if tool.needs_approval:
            await self._plan(ordinal, body, mark, tool)
            return await self._drive(tool, self._get(ordinal), _args_of(self._get(ordinal)))
        return await self._begin_new(tool, ordinal, body, mark)

    # new steps

    async def _begin_new(
        self, tool: Tool[..., Any], ordinal: str, body: Body, mark: bytes
    ) -> StepView:
        """Plan and start in one commit, then call."""
        key = effect_key_bytes(effect_key(self._k_effect, self.book.view.task_id, ordinal))
        facts = Facts(
            epoch=self.book.hold.epoch, owner=True, previous_closed=True, lease_ok=True, quiet=True
        )
        planned = next_step(None, Event.PLAN, facts, letter=tool.letter)
        _check(planned, ordinal)
        slot = self._take_slot(tool, key, 1)
        entry = Entry(
            kind=Kind.STEP, ordinal=ordinal, events=(Event.PLAN, Event.START), body=body,
            effect_key=key, fingerprint=mark, slot=slot, quiet=True,
        )  # fmt: skip
        await self._begin([entry], slot)
        step = self._get(ordinal)
        await self._call(tool, step, body["args"], slot)
        return step if step.closed else await self._drive(tool, step, body["args"])

    async def _plan(self, ordinal: str, body: Body, mark: bytes, tool: Tool[..., Any]) -> None:
        key = effect_key_bytes(effect_key(self._k_effect, self.book.view.task_id, ordinal))
        entry = Entry(
            kind=Kind.STEP, ordinal=ordinal, events=(Event.PLAN,), body=body, effect_key=key,
            fingerprint=mark,
        )  # fmt: skip
        await self.book.write([entry])

    async def _plan_suspect(
        self, tool: Tool[..., Any], ordinal: str, body: Body, mark: bytes
    ) -> StepView:
        """After a restore: this slot may have been used in the lost timeline (rule 7)."""
        key = effect_key_bytes(effect_key(self._k_effect, self.book.view.task_id, ordinal))
        body = {**body, "lost_after_ms": self.book.view.restored_ms}
        entry = Entry(
            kind=Kind.STEP, ordinal=ordinal, events=(Event.RESTORE,), body=body, effect_key=key,
            fingerprint=mark,
        )  # fmt: skip
        await self.book.write([entry])
        return await self._drive(tool, self._get(ordinal), body["args"])

    # open steps

    async def _drive(self, tool: Tool[..., Any], step: StepView, args: Args) -> StepView:
        """The resumer's loop: one safe move at a time until the step is closed or rests."""
        lookup, found = Lookup.NONE, None
        while not step.closed:
            await self._take_decision(tool, step)
            if step.closed:
                break
            facts = self._facts(tool, step, lookup)
            if step.step is None:
                raise InvariantViolated("I4", f"step {step.ordinal} has no record")
            match decide(step.step, facts):
                case Move.USE:
                    break
                case Move.REST:
                    raise Suspended("parked")
                case Move.ADOPT:
                    await self._adopt(step, facts)
                case Move.UNSEND:
                    body: Body = {"reason": "the worker died before its first byte"}
                    await self._record(step, Event.UNSENT, facts, body)
                case Move.START:
                    await self._await_turn(tool, step)
                    await self._start_again(tool, step, args, facts)
                    lookup, found = Lookup.NONE, None
                case Move.WAIT:
                    await self._wait_quiet(tool, step)
                case Move.ASK:
                    lookup, found = await self._ask(tool, step, args)
                case Move.FIND:
                    await self._record(step, Event.FIND, facts, {"result": found, "by": "lookup"})
                case Move.PARK:
                    await self._park(tool, step, facts, found)
                    raise Suspended("parked")
                case move:
                    assert_never(move)
        return step

    async def _start_again(
        self, tool: Tool[..., Any], step: StepView, args: Args, facts: Facts
    ) -> None:
        if tool.needs_approval and step.state is StepState.PLANNED:
            await self._need_approval(tool, step)
        if self.book.cancelled and step.state is StepState.PLANNED:
            await self._record(step, Event.SKIP, facts, {"note": "cancelled"})
            raise Cancelled
        if step.step is None:
            raise InvariantViolated("I4", f"step {step.ordinal} has no record")
        _check(next_step(step.step, Event.START, facts, letter=step.letter), step.ordinal)
        slot = self._take_slot(tool, step.effect_key, step.step.attempts + 1)
        entry = Entry(
            kind=Kind.STEP, ordinal=step.ordinal, events=(Event.START,), body={}, slot=slot,
            quiet=facts.quiet,
        )  # fmt: skip
        await self._begin([entry], slot)
        await self._call(tool, step, args, slot)

    async def _begin(self, entries: list[Entry], slot: int) -> None:
        """Make the start durable. No space: wait here, nothing has been sent."""
        while True:
            if not self._lease.ok():
                self._lease.check()
                await asyncio.sleep(0.01)
                continue
            try:
                await self.book.begin(entries)
                return
            except (JournalFull, JournalBusy) as error:
                self.book.on_trouble(error)
                await asyncio.sleep(FULL_RETRY_S * self._pace)
            except BaseException:
                self._lease.session.free_slot(slot)
                raise

    async def _call(self, tool: Tool[..., Any], step: StepView, args: Args, slot: int) -> None:
        """Call the tool and record what came of it."""
        try:
            outcome = await self._caller.attempt(
                tool, step, args, task_id=self.book.view.task_id, slot=slot
            )
        except asyncio.CancelledError:
            # The worker is stopping or fenced. The attempt has ended, its outcome is unknown.
            await self._record_stop(tool, step, slot)
            raise
        try:
            await self._record_outcome(tool, step, outcome, slot)
        except Fenced:
            await self._leave_evidence(step, outcome)
            raise

    async def _record_outcome(
        self, tool: Tool[..., Any], step: StepView, outcome: Outcome, slot: int
    ) -> None:
        facts = self._own_facts(tool)
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
                await self._record(step, Event.UNSENT, facts, {"reason": outcome.reason}, slot=slot)
            case Doubtful():
                body = {
                    "reason": outcome.reason, "kind": outcome.kind, "text": outcome.text,
                    "retry_after_s": outcome.retry_after_s,
                }  # fmt: skip
                await self._record(step, Event.DOUBT, facts, body, slot=slot)
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
        entry = self._entry(step, Event.SUCCEED, facts, body)
        if outcome.apply is not None:
            try:
                await self.book.write([entry], statements=outcome.apply.parsed(), slot=slot)
            except StatementFailed as error:
                failed: Body = {"kind": "StatementFailed", "text": error.message, "reason": "raised"}
                await self._record_refusal(tool, step, facts, failed, slot)
        elif _may_wait(tool):
            self.book.defer(entry, slot=slot)
        else:
            await self.book.write([entry], slot=slot)

    async def _record_refusal(
        self, tool: Tool[..., Any], step: StepView, facts: Facts, body: Body, slot: int
    ) -> None:
        """Failed with proof; or planned again under the same key where retries are left."""
        harmless = tool.letter in ("R", "T")
        again = self._attempts_of(step) <= tool.retries
        stored = isinstance(tool.effect, Keyed) and tool.effect.refusals_stored
        alone = step.step is not None and step.step.alone
        if again and (harmless or (alone and not stored)):
            await self._record(step, Event.RETRY, facts, body, slot=slot)
            return
        event = Event.FAIL if harmless else Event.REFUSE
        await self._record(step, event, facts, body, slot=slot)

    async def _record(
        self, step: StepView, event: Event, facts: Facts, body: Body, *, slot: int = -1,
        change: Change | None = None, applied: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        entry = self._entry(step, event, facts, body)
        await self.book.write([entry], slot=slot, change=change, applied=applied)

    def _entry(self, step: StepView, event: Event, facts: Facts, body: Body) -> Entry:
        _check(next_step(step.step, event, facts, letter=step.letter), step.ordinal)
        return Entry(
            kind=Kind.STEP, ordinal=step.ordinal, events=(event,), body=body, quiet=facts.quiet
        )

    async def _record_stop(self, tool: Tool[..., Any], step: StepView, slot: int) -> None:
        """Say that the attempt was broken off, if we still may; else the claim will say so."""
        if self.book.fenced or self._lease.lost:
            return
        body: Body = {"reason": "stopped", "text": "the worker stopped during the call"}
        try:
            if tool.letter in ("R", "T"):
                await self._record(step, Event.RETRY, self._own_facts(tool), body, slot=slot)
            else:
                await self._record(step, Event.DOUBT, self._own_facts(tool), body, slot=slot)
        except Fenced:
            return

    async def _leave_evidence(self, step: StepView, outcome: Outcome) -> None:
        """A stale worker may not close the step, but what it saw must not be lost."""
        if not isinstance(outcome, Returned) or outcome.unkept:
            return
        body: Body = {
            "outcome": "succeeded", "result": outcome.result, "source": "stale worker",
            "epoch": self.book.hold.epoch,
        }  # fmt: skip
        item = InboxItem(
            task_id=self.book.view.task_id, ordinal=step.ordinal, kind=InboxKind.EVIDENCE, body=body
        )
        try:
            await self.book.journal.drop(item)
        except HoldfastError as error:
            self.book.on_trouble(error)

    # what people and webhooks say

    async def _adopt(self, step: StepView, facts: Facts) -> None:
        item = self._find_evidence(step)
        if item is None:
            raise InvariantViolated("T7", f"step {step.ordinal} has no evidence")
        body: Body = {"result": item.body.get("result"), "by": item.body.get("source", "evidence")}
        await self._record(step, Event.ADOPT, facts, body, applied=(item.number,))

    async def _take_decision(self, tool: Tool[..., Any], step: StepView) -> None:
        """Apply a person's decision to a parked step, not before it is quiet (T10)."""
        if step.state is not StepState.PARKED:
            return
        item = self.book.find_item(InboxKind.DECISION, step.ordinal)
        if item is None:
            return
        facts = self._facts(tool, step, Lookup.NONE)
        event = _DECISIONS.get(str(item.body.get("decision")))
        if event is None or not facts.quiet:
            await self._wait_quiet(tool, step)
            return
        body: Body = {"by": item.body.get("by", ""), "note": item.body.get("note", "")}
        if event is Event.SETTLE_DONE:
            body["result"] = item.body.get("result")
        await self._record(step, event, facts, body, applied=(item.number,))

    async def _need_approval(self, tool: Tool[..., Any], step: StepView) -> None:
        item = self.book.find_item(InboxKind.APPROVAL, step.ordinal)
        if item is None or item.body.get("binding") != approval_binding(step):
            raise Suspended("approval")
        granted = bool(item.body.get("granted"))
        note: Body = {"by": item.body.get("by", ""), "note": item.body.get("note", "")}
        if granted:
            return
        facts = self._facts(tool, step, Lookup.NONE)
        await self._record(
            step, Event.SKIP, facts, {**note, "refused": True}, applied=(item.number,)
        )

    # facts and waiting

    def _own_facts(self, tool: Tool[..., Any]) -> Facts:
        stored = isinstance(tool.effect, Keyed) and tool.effect.refusals_stored
        return Facts(epoch=self.book.hold.epoch, owner=True, refusals_stored=stored)

    def _facts(self, tool: Tool[..., Any], step: StepView, lookup: Lookup) -> Facts:
        view, effect = self.book.view, tool.effect
        quiet = quiet_in_ms(view, step, delay_ms=self._delay_ms(tool), clock=self._clock) == 0
        approved = not tool.needs_approval or self._is_approved(step)
        older = step.step is not None and step.step.epoch < self.book.hold.epoch
        return Facts(
            epoch=self.book.hold.epoch,
            owner=not self.book.fenced,
            previous_closed=True,
            approved=approved,
            lease_ok=True,
            quiet=quiet,
            in_window=in_window(view, step, tool, self.book.journal, self._clock)
            and not self._suspect_without_check(tool, step),
            attempts_left=attempts_left(step, tool),
            lookup=lookup,
            has_lookup=tool.finder is not None,
            unsent=older and proven_unsent(view, step, self.book.journal),
            evidence=self._find_evidence(step) is not None,
            key_reused=step.doubt == "key-reused",
            at_least_once=isinstance(effect, Unrepeatable) and effect.policy == "at_least_once",
            refusals_stored=isinstance(effect, Keyed) and effect.refusals_stored,
        )

    def _suspect_without_check(self, tool: Tool[..., Any], step: StepView) -> bool:
        """A far end that ignores fingerprints cannot tell a lost effect from this one (rule 7)."""
        effect = tool.effect
        if not isinstance(effect, Keyed) or not step.restored_ms or step.attempts:
            return False
        return effect.fingerprint == "ignored" or tool.finder is not None

    def _find_evidence(self, step: StepView) -> InboxItem | None:
        item = self.book.find_item(InboxKind.EVIDENCE, step.ordinal)
        if item is None or item.body.get("outcome") != "succeeded":
            return None
        return item

    def _is_approved(self, step: StepView) -> bool:
        item = self.book.find_item(InboxKind.APPROVAL, step.ordinal)
        return (
            item is not None
            and bool(item.body.get("granted"))
            and item.body.get("binding") == approval_binding(step)
        )

    async def _await_turn(self, tool: Tool[..., Any], step: StepView) -> None:
        """Space out repeated attempts; a busy far end says how long."""
        tries = 0 if step.step is None else step.step.attempts
        if tries == 0 or step.ended is None:
            return
        after = float(step.error.get("retry_after_s") or 0.0) if step.doubt == "busy" else 0.0
        wait_s = max(after, min(BACKOFF_S * 2 ** min(tries - 1, 12), BACKOFF_S_MAX))
        if step.doubt in ("refused", "raised"):
            wait_s = max(wait_s, tool.retry_delay_s)
        await self._pause(wait_s)

    async def _wait_quiet(self, tool: Tool[..., Any], step: StepView) -> None:
        left = quiet_in_ms(
            self.book.view, step, delay_ms=self._delay_ms(tool), clock=self._clock
        )
        await self._wait_change(max(left / 1000, 0.001))

    async def _pause(self, seconds: float) -> None:
        await self.book.flush()
        await self._wait_change(seconds * self._pace)

    async def _wait_change(self, seconds: float) -> None:
        """Wait, but listen for evidence, decisions and cancels."""
        self.book.changed.clear()
        try:
            await asyncio.wait_for(self.book.changed.wait(), seconds)
        except TimeoutError:
            return

    async def _ask(
        self, tool: Tool[..., Any], step: StepView, args: Args
    ) -> tuple[Lookup, object]:
        """Ask the lookup; an unsure one is asked again a few times."""
        for ask in range(UNSURE_ASKS_MAX):
            answer = await self._caller.find(tool, step, args, task_id=self.book.view.task_id)
            match answer:
                case Found():
                    return self._found(tool, step, answer)
                case Absent():
                    return Lookup.ABSENT, None
                case Many():
                    return Lookup.MANY, [*answer.results]
                case Unsure():
                    if ask + 1 < UNSURE_ASKS_MAX:
                        await self._pause(ASK_AGAIN_S * (ask + 1))
                        if self._find_evidence(step) is not None:
                            return Lookup.NONE, None
                    else:
                        return Lookup.UNSURE, answer.reason
                case _:
                    assert_never(answer)
        return Lookup.UNSURE, None

    def _found(
        self, tool: Tool[..., Any], step: StepView, answer: Found
    ) -> tuple[Lookup, object]:
        try:
            result = checked(answer.result, what=f"lookup result of {tool.name}")
            encode(result, what=f"lookup result of {tool.name}")
            if answer.args is not None:
                other = checked(answer.args, what="arguments the lookup found")
                if self.fingerprint(tool, other) != step.fingerprint:
                    return Lookup.OTHER, {"found": other, "result": result}
        except (BadValue, TooLarge) as error:
            return Lookup.UNSURE, error.message
        return Lookup.FOUND, result

    async def _park(
        self, tool: Tool[..., Any], step: StepView, facts: Facts, found: object
    ) -> None:
        name = question(step.step, facts, restored=bool(step.restored_ms)) if step.step else "window"
        left = quiet_in_ms(
            self.book.view, step, delay_ms=self._delay_ms(tool), clock=self._clock
        )
        body: Body = {
            "question": QUESTIONS[name],
            "why": name,
            "evidence": evidence_of(step, found),
            "not_before_ms": self.book.journal.now_ms() + left,
        }
        notice = park_notice(self.book, step, QUESTIONS[name], epoch=self.book.hold.epoch)
        change = Change(state=TaskState.RUNNING, notice=notice)
        await self._record(step, Event.PARK, facts, body, change=change)

    def _delay_ms(self, tool: Tool[..., Any]) -> int:
        return int(tool.delay_ms * self._pace)

    def _attempts_of(self, step: StepView) -> int:
        return 0 if step.step is None else step.step.attempts - step.spared

    def _retried(self, tool: Tool[..., Any], step: StepView, number: int) -> bool:
        """Whether a stored refusal gets a retry slot with a key of its own."""
        stored = isinstance(tool.effect, Keyed) and tool.effect.refusals_stored
        return stored and number < tool.retries and "proof" in step.error

    def _take_slot(self, tool: Tool[..., Any], key: bytes, attempt: int) -> int:
        if tool.letter in ("R", "T"):
            return -1
        return self._lease.session.take_slot(slot_tag(key, attempt))

    def _get(self, ordinal: str) -> StepView:
        step = self.book.step(ordinal)
        if step is None:
            raise InvariantViolated("I4", f"step {ordinal} was not recorded")
        return step


_DECISIONS = {
    "done": Event.SETTLE_DONE,
    "run": Event.SETTLE_RUN,
    "skip": Event.SETTLE_SKIP,
}


def outcome_of(step: StepView) -> object:
    """What `run.call` gives for a closed step, the first time and on every replay."""
    match step.state:
        case StepState.SUCCEEDED:
            if step.unkept:
                raise ResultNotKept(tool=step.tool, ordinal=step.ordinal, why=step.unkept)
            return step.result
        case StepState.FAILED:
            if "proof" in step.error:
                raise Refused(step.error["proof"])
            raise ToolFailed(
                tool=step.tool, kind=str(step.error.get("kind")), text=str(step.error.get("text"))
            )
        case StepState.SKIPPED:
            raise StepSkipped(ordinal=step.ordinal, note=step.note)
        case _:
            raise InvariantViolated("I2", f"step {step.ordinal} is {step.state}, not closed")


def check_same(step: StepView, tool: Tool[..., Any], mark: bytes) -> None:
    """On replay the code must ask for the very call that is recorded at this ordinal."""
    if step.tool != tool.name:
        raise Suspended(f"diverged: step {step.ordinal} was {step.tool}, now it is {tool.name}")
    if step.fingerprint != mark:
        raise Suspended(f"diverged: step {step.ordinal}: {tool.name} has other arguments now")


def approval_binding(step: StepView) -> str:
    """What an approval is for: these arguments, under this key, of this version of the tool."""
    key = effect_key_from_bytes(step.effect_key)
    return f"{key}/{step.fingerprint.hex()}/{step.body.get('v', '')}"


def evidence_of(step: StepView, found: object) -> list[Body]:
    """What a person should see: every attempt, its end, and what the lookup said."""
    seen: list[Body] = [
        {"attempt": number, "started_ms": one.at_ms, "epoch": one.epoch, "fence": one.fence}
        for number, one in enumerate(step.attempts, start=1)
    ]
    if step.doubt:
        seen.append({"ended": step.doubt, **{k: v for k, v in step.error.items() if v}})
    if found is not None:
        seen.append({"lookup": found})
    return seen


def park_notice(book: Book, step: StepView, text: str, *, epoch: int) -> Notice:
    where = f"{book.view.task_id}/{step.ordinal}"
    return Notice(
        notice_id=f"parked/{where}/{epoch}",
        kind="parked",
        task_id=book.view.task_id,
        ordinal=step.ordinal,
        text=f"task {book.view.task_id} step {step.ordinal} ({step.tool}) is parked: {text}",
        hint=f"`holdfast effect show {where}`, then `holdfast effect settle {where}`",
        at_ms=book.journal.now_ms(),
    )


def _args_of(step: StepView) -> Args:
    args = step.args
    if not isinstance(args, dict):
        raise InvariantViolated("I4", f"step {step.ordinal} has no arguments")
    return {str(name): value for name, value in args.items()}


def _may_wait(tool: Tool[..., Any]) -> bool:
    effect = tool.effect
    return effect.merges or (isinstance(effect, Queryable) and effect.find_returns_result)


def _check(result: object, ordinal: str) -> None:
    if isinstance(result, Refusal):
        raise InvariantViolated("transition", f"step {ordinal}: {result.event.name}: {result.why}")


