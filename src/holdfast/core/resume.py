"""What a resumer does with an open step: one table, read top-down, no I/O.

`decide` proposes; `step.next_step` checks the same move again before it is written, so a
mistake here is refused there. The letters of the effect classes are R T F K Q I N.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from holdfast.core.step import CLOSED, Facts, Lookup, Step, StepState, is_suspect, lacks_approval


class Move(StrEnum):
    USE = "use"  # the record is the answer
    REST = "rest"  # parked: only evidence or a person moves it
    ADOPT = "adopt"  # evidence closes it
    UNSEND = "unsend"  # proven not sent: as if it had never started
    START = "start"  # send, under the same key
    WAIT = "wait"  # until quiet
    ASK = "ask"  # the lookup
    FIND = "find"  # the lookup found it; of a suspect row also with other arguments
    PARK = "park"


def decide(step: Step, facts: Facts) -> Move:
    """The one safe move for this row, given what is known."""
    if step.state in CLOSED:
        return Move.USE
    if facts.evidence:
        return Move.ADOPT
    if step.state is StepState.PARKED:
        return Move.REST
    if step.state is StepState.PLANNED:
        return Move.START if facts.attempts_left else Move.PARK
    if facts.unsent and step.state is StepState.STARTED:
        return Move.UNSEND
    may_start = facts.attempts_left and not lacks_approval(step, facts)
    move = _by_class(step, facts, may_start=may_start)
    return Move.PARK if move is Move.START and not may_start else move


def _by_class(step: Step, facts: Facts, *, may_start: bool) -> Move:
    match step.letter:
        case "R" | "T":
            return Move.START
        case "F" | "I":
            return Move.PARK if facts.key_reused else Move.START
        case "K":
            return _keyed(step, facts, may_start=may_start)
        case "Q":
            return _queried(step, facts) if facts.has_lookup else Move.PARK
        case "N":
            return Move.START if facts.at_least_once and not facts.key_reused else Move.PARK
        case _:
            assert_never(step.letter)


def _keyed(step: Step, facts: Facts, *, may_start: bool) -> Move:
    # With the attempts spent a lookup may still close what a re-send no longer can.
    if facts.in_window and may_start and not facts.key_reused:
        return Move.START
    return _queried(step, facts) if facts.has_lookup else Move.PARK


def _queried(step: Step, facts: Facts) -> Move:
    if facts.left:
        return Move.PARK  # an answer of now says nothing about what may still be sent
    if not facts.quiet:
        return Move.WAIT
    match facts.lookup:
        case Lookup.NONE:
            return Move.ASK
        case Lookup.FOUND:
            return Move.FIND
        case Lookup.ABSENT:
            return Move.PARK if facts.key_reused else Move.START
        case Lookup.OTHER:
            return Move.FIND if is_suspect(step) else Move.PARK
        case Lookup.MANY | Lookup.UNSURE:
            return Move.PARK
        case _:
            assert_never(facts.lookup)


QUESTIONS: dict[str, str] = {
    "unrepeatable": "was it done? Holdfast began to send it and does not know what came of it; "
    "the tool has no key and no lookup, so Holdfast does not repeat it",
    "window": "was it done? Its key window has ended, so the service may not know its key, and the tool has no lookup",
    "many": "which one counts? The lookup found the effect more than once",
    "other": "is it the same effect? The lookup found one with other arguments",
    "unsure": "was it done? The lookup could not find out",
    "key-reused": "what was done with this effect key? The far end has it with another body",
    "attempts": "why does it keep failing? All attempts are used up, and none had an outcome",
    "left": "has it ended, and was it done? Something that the tool started may still run and send: {left}. "
    "Holdfast cannot see when it ends, so it neither asks the lookup nor repeats the call",
    "restored": "was it done before the restore? The restored journal is an older copy and may not show it",
}


def question(step: Step, facts: Facts, *, restored: bool) -> str:
    """Which of QUESTIONS a parked step asks."""
    if facts.left:
        return "left"
    if facts.lookup is Lookup.MANY:
        return "many"
    if facts.lookup is Lookup.OTHER:
        return "other"
    if facts.lookup is Lookup.UNSURE:
        return "unsure"
    if facts.key_reused:
        return "key-reused"
    if not facts.attempts_left:
        return "attempts"
    if restored:
        return "restored"
    return "unrepeatable" if step.letter == "N" else "window"
