"""The step row and its transition function: the one place that says what may follow what.

A step is the fold of its records through `apply`. Before a record is written, `next_step`
checks it: the event, the row and a handful of facts that the caller has worked out (is the
step quiet, is its key window open, what did the lookup say). It reads no clock, no file and no
network, so that production, the simulation and the state explorer run the same lines.

What holds at all times (numbers as in docs/formats/effect-protocol.md):

* nothing is sent from `planned`; `started` is durable before the first byte can leave (I4);
* `succeeded`, `failed`, `skipped` are closed and never left (I7);
* `failed` needs proof: a refusal of an attempt that was alone on its way (I3, T4). A timeout, a
  reset, a cancelled or dead attempt is `unknown`, never failed (T5);
* `unknown` is left by evidence, by a lookup in quiet, by a re-send the class allows, or by
  parking (T6 to T8); `parked` only by late evidence or a person's decision in quiet (T9, T10);
* what an attempt has started may outlive it. While that is so there is no quiet, and no lookup counts;
* only the owner of the task's epoch writes (I8); others leave evidence in the inbox.

`maybe_sent` counts the attempts that may have reached the far end. An attempt that provably was
not sent is taken off again, so a row returns to `planned` only when nothing can be under way.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import assert_never, cast

import msgspec

from holdfast.core.effect import CLASSES, Letter
from holdfast.errors import InvariantViolated


class StepState(StrEnum):
    PLANNED = "planned"
    STARTED = "started"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    PARKED = "parked"


CLOSED = frozenset((StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED))


class Event(IntEnum):
    """What can happen to a step. The numbers are stored: they never change meaning."""

    PLAN = 1  # T1   - -> planned
    START = 2  # T2   planned -> started;  T6  unknown, older started -> started
    SUCCEED = 3  # T3   started -> succeeded
    REFUSE = 4  # T4   started -> failed, or T5 -> unknown where the refusal is no proof
    DOUBT = 5  # T5   started -> unknown
    UNSENT = 6  #      started -> planned (or unknown where an older attempt may be out)
    FAIL = 7  #      started -> failed, Read and Transactional only: nothing outside changed
    RETRY = 8  #      started -> planned: proven refusal that the far end does not store
    FIND = 9  # T7   unknown -> succeeded, by lookup
    ADOPT = 10  # T7, T9  open -> succeeded, by evidence; planned too: after a settlement or a loss
    PARK = 11  # T8   unknown -> parked; planned -> parked where attempts are spent
    SETTLE_DONE = 12  # T10  parked -> succeeded
    SETTLE_RUN = 13  # T10  parked -> planned
    SETTLE_SKIP = 14  # T10  parked -> skipped
    SKIP = 15  # T11  planned -> skipped
    RESTORE = 16  # T14  -, open -> unknown: the timeline that wrote the rest is lost


class Lookup(StrEnum):
    """What the downstream said when it was asked about the effect key."""

    NONE = "none"
    FOUND = "found"
    ABSENT = "absent"
    MANY = "many"
    UNSURE = "unsure"
    OTHER = "other"  # found, but with other arguments


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step's protocol state. Payloads and times are beside it in the journal's view."""

    letter: Letter
    state: StepState
    attempts: int = 0
    maybe_sent: int = 0
    epoch: int = 0
    alone: bool = False  # a refusal of the newest attempt counts for all attempts


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the caller has established at the moment of the event."""

    epoch: int = 0  # under which the writer acts
    owner: bool = False  # that epoch is the task's current one
    previous_closed: bool = False
    approved: bool = True
    lease_ok: bool = False
    quiet: bool = False
    in_window: bool = False
    attempts_left: bool = True
    lookup: Lookup = Lookup.NONE
    has_lookup: bool = False
    left: bool = False  # something that an attempt started may still run, and nothing shows when it ends
    unsent: bool = False  # the newest attempt provably handed no byte to the kernel
    evidence: bool = False
    key_reused: bool = False
    at_least_once: bool = False
    refusals_stored: bool = False


class NotAllowed(msgspec.Struct, frozen=True):
    """The transition is not allowed; nothing may be written."""

    event: Event
    why: str


_FROM: dict[Event, frozenset[StepState | None]] = {
    Event.PLAN: frozenset((None,)),
    Event.START: frozenset((StepState.PLANNED, StepState.STARTED, StepState.UNKNOWN)),
    Event.SUCCEED: frozenset((StepState.STARTED,)),
    Event.REFUSE: frozenset((StepState.STARTED,)),
    Event.DOUBT: frozenset((StepState.STARTED,)),
    Event.UNSENT: frozenset((StepState.STARTED,)),
    Event.FAIL: frozenset((StepState.STARTED,)),
    Event.RETRY: frozenset((StepState.STARTED,)),
    Event.FIND: frozenset((StepState.STARTED, StepState.UNKNOWN)),
    Event.ADOPT: frozenset((StepState.PLANNED, StepState.STARTED, StepState.UNKNOWN, StepState.PARKED)),
    Event.PARK: frozenset((StepState.PLANNED, StepState.STARTED, StepState.UNKNOWN)),
    Event.SETTLE_DONE: frozenset((StepState.PARKED,)),
    Event.SETTLE_RUN: frozenset((StepState.PARKED,)),
    Event.SETTLE_SKIP: frozenset((StepState.PARKED,)),
    Event.SKIP: frozenset((StepState.PLANNED,)),
    Event.RESTORE: frozenset((None, StepState.PLANNED, StepState.STARTED, StepState.UNKNOWN, StepState.PARKED)),
}


# Far ends that do not know an earlier attempt by its key: a refusal of the second proves nothing
# about the first, even in quiet. "Not enough money" may be what the first one left behind.
_FORGETFUL: frozenset[Letter] = frozenset(("I", "N"))


# Both functions are pure and most calls ask what was asked before: a task's steps go the same way.
_MEMO_MAX = 10_000
_next_memo: dict[tuple[Step | None, Event, Facts, Letter], Step | NotAllowed] = {}
_apply_memo: dict[tuple[Step | None, tuple[Event, ...], int, bool, Letter], Step | None] = {}


def next_step(step: Step | None, event: Event, facts: Facts, *, letter: Letter) -> Step | NotAllowed:
    """The row after the event, or why it must not be written."""
    asked = (step, event, facts, letter)
    known = _next_memo.get(asked)
    if known is not None:
        return known
    why = _objection(step, event, facts, letter)
    if why is not None:
        result: Step | NotAllowed = NotAllowed(event, why)
    else:
        result = apply(step, event, epoch=facts.epoch, quiet=facts.quiet, letter=letter)
    if len(_next_memo) >= _MEMO_MAX:
        _next_memo.clear()
    _next_memo[asked] = result
    return result


def apply(step: Step | None, event: Event, *, epoch: int, quiet: bool, letter: Letter) -> Step:
    """Fold one stored event into the row. The guards were checked when it was written."""
    return cast(Step, apply_all(step, (event,), epoch, quiet, letter))


def apply_all(step: Step | None, events: tuple[Event, ...], epoch: int, quiet: bool, letter: Letter) -> Step | None:
    """Fold the events of one record into the row."""
    asked = (step, events, epoch, quiet, letter)
    known = _apply_memo.get(asked)
    if known is not None:
        return known
    result = step
    for event in events:
        result = _applied(result, event, epoch=epoch, quiet=quiet, letter=letter)
    if len(_apply_memo) >= _MEMO_MAX:
        _apply_memo.clear()
    _apply_memo[asked] = result
    return result


def _applied(step: Step | None, event: Event, *, epoch: int, quiet: bool, letter: Letter) -> Step:
    state = None if step is None else step.state
    if state not in _FROM[event]:
        raise InvariantViolated("I7", f"{event.name} cannot follow {state}")
    if step is None:
        if event is Event.RESTORE:
            return Step(letter=letter, state=StepState.UNKNOWN, maybe_sent=1)
        return Step(letter=letter, state=StepState.PLANNED)
    match event:
        case Event.START:
            return Step(
                letter=step.letter,
                state=StepState.STARTED,
                attempts=step.attempts + 1,
                maybe_sent=step.maybe_sent + 1,
                epoch=epoch,
                alone=step.maybe_sent == 0 or (quiet and step.letter not in _FORGETFUL),
            )
        case Event.SUCCEED | Event.FIND | Event.ADOPT | Event.SETTLE_DONE:
            return _with(step, StepState.SUCCEEDED)
        case Event.REFUSE:
            return _with(step, StepState.FAILED if step.alone else StepState.UNKNOWN)
        case Event.DOUBT:
            return _with(step, StepState.UNKNOWN)
        case Event.UNSENT:
            left = max(step.maybe_sent - 1, 0)
            state = StepState.UNKNOWN if left else StepState.PLANNED
            return msgspec.structs.replace(step, state=state, maybe_sent=left, alone=False)
        case Event.FAIL:
            return _with(step, StepState.FAILED)
        case Event.RETRY:
            return msgspec.structs.replace(step, state=StepState.PLANNED, maybe_sent=0, alone=False)
        case Event.PARK:
            return _with(step, StepState.PARKED)
        case Event.SETTLE_RUN:
            return Step(letter=step.letter, state=StepState.PLANNED)
        case Event.SETTLE_SKIP | Event.SKIP:
            return _with(step, StepState.SKIPPED)
        case Event.RESTORE:
            return Step(letter=step.letter, state=StepState.UNKNOWN, maybe_sent=max(step.maybe_sent, 1))
        case Event.PLAN:
            raise InvariantViolated("I7", "a planned step cannot be planned again")
        case _:
            assert_never(event)


def _with(step: Step, state: StepState) -> Step:
    return msgspec.structs.replace(step, state=state)


def _objection(step: Step | None, event: Event, facts: Facts, letter: Letter) -> str | None:
    state = None if step is None else step.state
    if state not in _FROM[event]:
        return f"{event.name.lower()} cannot follow {state or 'nothing'}"
    if not facts.owner:
        return "the epoch is stale"
    if step is None:
        if event is Event.PLAN and not facts.previous_closed:
            return "the step before is still open"
        return None
    mine = step.state is StepState.STARTED and step.epoch == facts.epoch
    match event:
        case Event.START:
            return _start_objection(step, facts, mine=mine)
        case Event.SUCCEED | Event.REFUSE | Event.DOUBT:
            return None if mine else "that attempt was started under another epoch"
        case Event.UNSENT:
            return None if mine or facts.unsent else "nothing proves that it was not sent"
        case Event.FAIL:
            if not mine:
                return "that attempt was started under another epoch"
            return None if CLASSES[letter].changes_nothing else "only Read and Transactional fail by raising"
        case Event.RETRY:
            return _retry_objection(step, facts, mine=mine)
        case Event.FIND:
            return _find_objection(step, facts, mine=mine)
        case Event.ADOPT:
            if mine:
                return "the attempt is still under way in this run"
            return None if facts.evidence else "there is no evidence"
        case Event.PARK:
            return _park_objection(step, facts, mine=mine)
        case Event.SETTLE_DONE | Event.SETTLE_RUN | Event.SETTLE_SKIP:
            return None if facts.quiet else "a request may still be under way"
        case Event.SKIP:
            return None if step.maybe_sent == 0 else "it may have been sent"
        case Event.RESTORE | Event.PLAN:
            return None
        case _:
            assert_never(event)


def _start_objection(step: Step, facts: Facts, *, mine: bool) -> str | None:
    if mine:
        return "the newest attempt is still under way in this run"
    if not facts.lease_ok:
        return "the lease ends too soon"
    if not facts.attempts_left:
        return "the attempts are spent"
    if lacks_approval(step, facts) or (step.state is StepState.PLANNED and not facts.approved):
        return "the approval is missing"
    if step.state is StepState.PLANNED:
        return None
    if facts.key_reused and not CLASSES[step.letter].changes_nothing:
        return "the far end knows this key with another body"
    absent = facts.quiet and not facts.left and facts.lookup is Lookup.ABSENT
    match step.letter:
        case "R" | "T" | "F" | "I":
            return None
        case "K":
            return None if facts.in_window or absent else "the key window is closed"
        case "Q":
            return None if absent else "it was not found absent in quiet"
        case "N":
            return None if facts.at_least_once else "it may have happened; at most once"
        case _:
            assert_never(step.letter)


def lacks_approval(step: Step, facts: Facts) -> bool:
    """Whether nothing in this timeline was ever started, nor approved: a suspect slot is not sent
    to find out what became of it where a person must say yes first."""
    return step.attempts == 0 and not facts.approved


def is_suspect(step: Step) -> bool:
    """Whether a restore left the row open and nothing of it was started since (rule 7). What a lookup finds there was
    done by the lost timeline, with that timeline's arguments: it is adopted as it is, because the step that asks now
    was never sent."""
    return step.state is StepState.UNKNOWN and step.attempts == 0


def _retry_objection(step: Step, facts: Facts, *, mine: bool) -> str | None:
    if not mine:
        return "that attempt was started under another epoch"
    if CLASSES[step.letter].changes_nothing:
        return None
    if not step.alone:
        return "another attempt may be under way: the refusal is no proof"
    return "the far end stores refusals: a retry slot is needed" if facts.refusals_stored else None


def _find_objection(step: Step, facts: Facts, *, mine: bool) -> str | None:
    if mine:
        return "the attempt is still under way in this run"
    if not facts.quiet or facts.left:
        return "a request may still be under way"
    if facts.lookup is Lookup.OTHER and is_suspect(step):
        return None
    return None if facts.lookup is Lookup.FOUND else "it was not found exactly once"


def _park_objection(step: Step, facts: Facts, *, mine: bool) -> str | None:
    """Parking costs a person's time: only where the machine has no safe move left."""
    if mine:
        return "the attempt is still under way in this run"
    spent = not facts.attempts_left
    if step.state is StepState.PLANNED:
        return None if spent else "it can simply run"
    held = spent or lacks_approval(step, facts)
    match step.letter:
        case "R" | "T":
            return None if held else "it can simply run again"
        case "F" | "I":
            return None if held or facts.key_reused else "it can simply run again"
        case "K":
            if facts.in_window and not facts.key_reused and not held:
                return "it can be sent again"
            return _asked_objection(facts, held=held) if facts.has_lookup else None
        case "Q":
            return _asked_objection(facts, held=held) if facts.has_lookup else None
        case "N":
            again = facts.at_least_once and not facts.key_reused and not held
            return "it may be repeated" if again else None
        case _:
            assert_never(step.letter)


def _asked_objection(facts: Facts, *, held: bool) -> str | None:
    """A step with a lookup is parked only when the lookup was asked and leaves no way on, or must not be asked."""
    if facts.left or facts.lookup in _UNCLEAR:
        return None
    if facts.lookup is Lookup.ABSENT and (facts.key_reused or held):
        return None
    return "it can be sent again or looked up"


_UNCLEAR = frozenset((Lookup.MANY, Lookup.UNSURE, Lookup.OTHER))
