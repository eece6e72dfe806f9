"""The transitions, told a second time: docs/formats/effect-protocol.md as sets of conditions.

`core/step.py` decides by guards, read top-down; here each event has the conditions under which it
is allowed, and what it makes of the row, in one line each. The two are compared for every row and
every combination of the facts that an event could look at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import pytest

from holdfast.core import step as steps
from holdfast.core.effect import Letter
from holdfast.core.step import Event, Facts, Lookup, NotAllowed, Step, StepState, apply, next_step
from holdfast.errors import InvariantViolated

LETTERS: tuple[Letter, ...] = get_args(Letter)
MINE, OLDER = 2, 1
S = StepState
OPEN = (S.PLANNED, S.STARTED, S.UNKNOWN, S.PARKED)
UNCLEAR = (Lookup.MANY, Lookup.UNSURE, Lookup.OTHER)

STATES: dict[Event, tuple[StepState | None, ...]] = {
    Event.PLAN: (None,),
    Event.START: (S.PLANNED, S.STARTED, S.UNKNOWN),
    Event.SUCCEED: (S.STARTED,),
    Event.REFUSE: (S.STARTED,),
    Event.DOUBT: (S.STARTED,),
    Event.UNSENT: (S.STARTED,),
    Event.FAIL: (S.STARTED,),
    Event.RETRY: (S.STARTED,),
    Event.FIND: (S.STARTED, S.UNKNOWN),
    Event.ADOPT: OPEN,
    Event.PARK: (S.PLANNED, S.STARTED, S.UNKNOWN),
    Event.SETTLE_DONE: (S.PARKED,),
    Event.SETTLE_RUN: (S.PARKED,),
    Event.SETTLE_SKIP: (S.PARKED,),
    Event.SKIP: (S.PLANNED,),
    Event.RESTORE: (None, *OPEN),
}


def mine(step: Step, facts: Facts) -> bool:
    """The newest attempt runs under the writer's own epoch."""
    return step.state is S.STARTED and step.epoch == facts.epoch


def lookup_is_of_no_use(facts: Facts, *, held: bool) -> bool:
    absent = facts.lookup is Lookup.ABSENT and (facts.key_reused or held)
    return facts.left or facts.lookup in UNCLEAR or absent


def may_start(step: Step, f: Facts) -> bool:
    if mine(step, f) or not (f.lease_ok and f.attempts_left):
        return False
    if not f.approved and (step.attempts == 0 or step.state is S.PLANNED):
        return False
    found_absent = f.quiet and not f.left and f.lookup is Lookup.ABSENT
    again = {
        "R": True,
        "T": True,
        "F": not f.key_reused,
        "I": not f.key_reused,
        "K": not f.key_reused and (f.in_window or found_absent),
        "Q": not f.key_reused and found_absent,
        "N": not f.key_reused and f.at_least_once,
    }
    return step.state is S.PLANNED or again[step.letter]


def may_park(step: Step, f: Facts) -> bool:
    if mine(step, f):
        return False
    spent = not f.attempts_left
    if step.state is S.PLANNED:
        return spent
    held = spent or (step.attempts == 0 and not f.approved)
    in_vain = not f.has_lookup or lookup_is_of_no_use(f, held=held)
    blocked = {
        "R": held,
        "T": held,
        "F": held or f.key_reused,
        "I": held or f.key_reused,
        "K": (held or f.key_reused or not f.in_window) and in_vain,
        "Q": in_vain,
        "N": held or f.key_reused or not f.at_least_once,
    }
    return blocked[step.letter]


def may_retry(step: Step, f: Facts) -> bool:
    free = step.letter in "RT"
    return mine(step, f) and (free or (step.alone and not f.refusals_stored))


def may_find(step: Step, f: Facts) -> bool:
    """With other arguments only where nothing was started since a restore."""
    suspect = step.state is S.UNKNOWN and step.attempts == 0
    found = f.lookup is Lookup.FOUND or (suspect and f.lookup is Lookup.OTHER)
    return not mine(step, f) and f.quiet and not f.left and found


ALLOWED: dict[Event, Callable[[Step, Facts], bool]] = {
    Event.START: may_start,
    Event.SUCCEED: mine,
    Event.REFUSE: mine,
    Event.DOUBT: mine,
    Event.UNSENT: lambda step, f: mine(step, f) or f.unsent,
    Event.FAIL: lambda step, f: mine(step, f) and step.letter in "RT",
    Event.RETRY: may_retry,
    Event.FIND: may_find,
    Event.ADOPT: lambda step, f: not mine(step, f) and f.evidence,
    Event.PARK: may_park,
    Event.SETTLE_DONE: lambda _step, f: f.quiet,
    Event.SETTLE_RUN: lambda _step, f: f.quiet,
    Event.SETTLE_SKIP: lambda _step, f: f.quiet,
    Event.SKIP: lambda step, _f: step.maybe_sent == 0,
    Event.RESTORE: lambda _step, _f: True,
    Event.PLAN: lambda _step, _f: True,
}
LOOKS_AT: dict[Event, tuple[str, ...]] = {
    Event.START: ("lease_ok", "attempts_left", "approved", "key_reused", "quiet", "in_window", "at_least_once", "left"),
    Event.PARK: ("attempts_left", "approved", "key_reused", "in_window", "has_lookup", "at_least_once", "left"),
    Event.UNSENT: ("unsent",),
    Event.RETRY: ("refusals_stored",),
    Event.FIND: ("quiet", "left"),
    Event.ADOPT: ("evidence",),
    Event.SETTLE_DONE: ("quiet",),
    Event.SETTLE_RUN: ("quiet",),
    Event.SETTLE_SKIP: ("quiet",),
}
GENEROUS: dict[str, Any] = {
    "owner": True,
    "previous_closed": True,
    "lease_ok": True,
    "approved": True,
    "attempts_left": True,
}


def rows(
    letter: Letter, states: Iterable[StepState | None] = S, *, alone: tuple[bool, ...] = (False, True)
) -> Iterator[Step]:
    for state, attempts, sent, alone_too, epoch in itertools.product(states, (0, 1), (0, 1, 2), alone, (MINE, OLDER)):
        if state is None:
            continue
        yield Step(letter=letter, state=state, attempts=attempts, maybe_sent=sent, alone=alone_too, epoch=epoch)


def all_facts(event: Event) -> Iterator[Facts]:
    names = LOOKS_AT.get(event, ())
    lookups: tuple[Lookup, ...] = (Lookup.NONE,)
    if event in (Event.PARK, Event.FIND):
        lookups = tuple(Lookup)
    elif event is Event.START:
        lookups = (Lookup.NONE, Lookup.ABSENT, Lookup.FOUND)
    for lookup, bits in itertools.product(lookups, itertools.product((False, True), repeat=len(names))):
        yield Facts(epoch=MINE, lookup=lookup, **{**GENEROUS, **dict(zip(names, bits, strict=True))})


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("letter", LETTERS)
def test_an_event_is_accepted_exactly_where_its_conditions_hold(letter: Letter, event: Event) -> None:
    every = list(all_facts(event))
    alone = (False,) if event in (Event.START, Event.PARK) else (False, True)
    for step in rows(letter, STATES[event], alone=alone):
        for facts in every:
            result = next_step(step, event, facts, letter=letter)
            wanted = ALLOWED[event](step, facts)
            assert isinstance(result, Step) is wanted, (step, event, facts, result)
            if isinstance(result, NotAllowed):
                assert result.event is event
                assert result.why
            else:
                assert result == after(step, event, epoch=MINE, quiet=facts.quiet)


@pytest.mark.parametrize("event", Event)
def test_an_event_follows_only_the_states_it_may_follow(event: Event) -> None:
    facts = Facts(epoch=MINE, unsent=True, evidence=True, quiet=True, **GENEROUS)
    others = [state for state in S if state not in STATES[event]]
    for letter in LETTERS:
        for step in rows(letter, others):
            assert isinstance(next_step(step, event, facts, letter=letter), NotAllowed)


def after(step: Step, event: Event, *, epoch: int, quiet: bool) -> Step:
    """The row after an event, field by field."""
    letter, attempts, sent = step.letter, step.attempts, step.maybe_sent
    ends = {
        Event.SUCCEED: S.SUCCEEDED,
        Event.FIND: S.SUCCEEDED,
        Event.ADOPT: S.SUCCEEDED,
        Event.SETTLE_DONE: S.SUCCEEDED,
        Event.DOUBT: S.UNKNOWN,
        Event.FAIL: S.FAILED,
        Event.PARK: S.PARKED,
        Event.SETTLE_SKIP: S.SKIPPED,
        Event.SKIP: S.SKIPPED,
        Event.REFUSE: S.FAILED if step.alone else S.UNKNOWN,
    }
    kept = {"letter": letter, "attempts": attempts, "epoch": step.epoch}
    if event in ends:
        return Step(**kept, state=ends[event], maybe_sent=sent, alone=step.alone)  # pyright: ignore
    if event is Event.START:
        alone = sent == 0 or (quiet and letter not in "IN")
        return Step(
            letter=letter, state=S.STARTED, attempts=attempts + 1, maybe_sent=sent + 1, epoch=epoch, alone=alone
        )
    if event is Event.UNSENT:
        left = sent - 1 if sent else 0
        state = S.PLANNED if left == 0 else S.UNKNOWN
        return Step(**kept, state=state, maybe_sent=left)  # pyright: ignore
    if event is Event.RETRY:
        return Step(**kept, state=S.PLANNED)  # pyright: ignore
    if event is Event.SETTLE_RUN:
        return Step(letter=letter, state=S.PLANNED)
    assert event is Event.RESTORE
    return Step(letter=letter, state=S.UNKNOWN, maybe_sent=sent or 1)


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("event", Event)
def test_only_a_plan_or_a_restore_makes_a_row(letter: Letter, event: Event) -> None:
    facts = Facts(epoch=MINE, owner=True, previous_closed=True)
    made = next_step(None, event, facts, letter=letter)
    wanted = {
        Event.PLAN: Step(letter=letter, state=S.PLANNED),
        Event.RESTORE: Step(letter=letter, state=S.UNKNOWN, maybe_sent=1),
    }.get(event)
    assert (made if isinstance(made, Step) else None) == wanted
    held_up = Facts(epoch=MINE, owner=True, previous_closed=False)
    open_before = next_step(None, event, held_up, letter=letter)
    assert isinstance(open_before, Step) is (event is Event.RESTORE)


@pytest.mark.parametrize("event", Event)
def test_nobody_but_the_owner_writes_anything(event: Event) -> None:
    willing = {**GENEROUS, "owner": False, "unsent": True, "evidence": True, "quiet": True}
    for letter, lookup in itertools.product(LETTERS, (Lookup.FOUND, Lookup.MANY, Lookup.ABSENT)):
        stale = Facts(epoch=MINE, lookup=lookup, **willing)
        for step in (None, *rows(letter)):
            assert isinstance(next_step(step, event, stale, letter=letter), NotAllowed)


@pytest.mark.parametrize("event", Event)
def test_a_stored_event_out_of_place_is_a_broken_promise(event: Event) -> None:
    for letter in LETTERS:
        for step in (None, *rows(letter)):
            state = None if step is None else step.state
            if state in STATES[event]:
                made = apply(step, event, epoch=7, quiet=True, letter=letter)
                if step is not None:
                    assert made == after(step, event, epoch=7, quiet=True)
            else:
                with pytest.raises(InvariantViolated):
                    apply(step, event, epoch=7, quiet=True, letter=letter)


def test_the_numbers_of_events_are_stored_and_never_change() -> None:
    assert " ".join(event.name for event in Event) == " ".join(
        (
            "PLAN",
            "START",
            "SUCCEED",
            "REFUSE",
            "DOUBT",
            "UNSENT",
            "FAIL",
            "RETRY",
            "FIND",
            "ADOPT",
            "PARK",
            "SETTLE_DONE",
            "SETTLE_RUN",
            "SETTLE_SKIP",
            "SKIP",
            "RESTORE",
        )
    )
    assert [int(event) for event in Event] == list(range(1, 17))


def test_three_states_are_closed() -> None:
    assert {S.SUCCEEDED, S.FAILED, S.SKIPPED} == steps.CLOSED
    assert {*steps.CLOSED, *OPEN} == set(S)


def test_what_nobody_says_is_taken_as_the_worse() -> None:
    """The defaults of the facts allow nothing, but an approval and attempts that nobody limits."""
    facts = Facts()
    assert facts.epoch == 0
    assert facts.lookup is Lookup.NONE
    said = {name for name in Facts.__struct_fields__ if getattr(facts, name) is True}
    assert said == {"approved", "attempts_left"}
    fresh = Step(letter="K", state=S.PLANNED)
    assert (fresh.attempts, fresh.maybe_sent, fresh.epoch, fresh.alone) == (0, 0, 0, False)


# The memo


def test_what_was_asked_before_is_not_worked_out_again() -> None:
    facts = Facts(epoch=MINE, **GENEROUS)
    planned = apply(None, Event.PLAN, epoch=MINE, quiet=True, letter="K")
    first = next_step(planned, Event.START, facts, letter="K")
    assert next_step(planned, Event.START, facts, letter="K") is first
    refused = next_step(planned, Event.SUCCEED, facts, letter="K")
    assert isinstance(refused, NotAllowed)
    assert next_step(planned, Event.SUCCEED, facts, letter="K") is refused
    begun = apply(planned, Event.START, epoch=MINE, quiet=True, letter="K")
    assert apply(planned, Event.START, epoch=MINE, quiet=True, letter="K") is begun


@pytest.mark.parametrize("name", ["_next_memo", "_apply_memo"])
def test_the_memo_is_bounded(name: str) -> None:
    memo: dict[object, object] = getattr(steps, name)
    memo.clear()
    largest = 0
    for epoch in range(10_005):
        if name == "_next_memo":
            next_step(None, Event.PLAN, Facts(epoch=epoch), letter="K")
        else:
            apply(None, Event.PLAN, epoch=epoch, quiet=False, letter="K")
        largest = max(largest, len(memo))
    assert largest == 10_000
    assert len(memo) == 5
