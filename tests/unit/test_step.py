"""The transition function and the resumer's table: laws that hold for every class and any facts."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.effect import Letter
from holdfast.core.resume import QUESTIONS, Move, decide, question
from holdfast.core.step import CLOSED, Event, Facts, Lookup, NotAllowed, Step, StepState, apply, next_step
from holdfast.errors import InvariantViolated

LETTERS: tuple[Letter, ...] = get_args(Letter)
NAMES = (
    "owner",
    "previous_closed",
    "approved",
    "lease_ok",
    "quiet",
    "in_window",
    "attempts_left",
    "has_lookup",
    "unsent",
    "evidence",
    "key_reused",
    "left",
    "at_least_once",
    "refusals_stored",
)

EXAMPLES = settings().max_examples  # of the profile: more for `make mutants`
WILLING: dict[str, Any] = {"owner": True, "previous_closed": True, "lease_ok": True}
MOVES = {
    Move.ADOPT: Event.ADOPT,
    Move.UNSEND: Event.UNSENT,
    Move.START: Event.START,
    Move.FIND: Event.FIND,
    Move.PARK: Event.PARK,
}

# One whole number stands for all facts: drawing sixteen values for each would be slow.
FACTS_COUNT = 3 * len(Lookup) << len(NAMES)


def facts_of(number: int) -> Facts:
    number, bits = divmod(number, 1 << len(NAMES))
    epoch, lookup = divmod(number, len(Lookup))
    values: dict[str, Any] = {name: bool(bits >> n & 1) for n, name in enumerate(NAMES)}
    return Facts(epoch=epoch + 1, lookup=list(Lookup)[lookup], **values)


facts_any = st.integers(0, FACTS_COUNT - 1).map(facts_of)


def changed(facts: Facts, **more: Any) -> Facts:
    return msgspec.structs.replace(facts, **more)


def facts_with(**more: Any) -> Facts:
    values: dict[str, Any] = {"epoch": 1, **WILLING, **more}
    return Facts(**values)


def took(step: Step | None, event: Event, letter: Letter, **more: Any) -> Step:
    """The step after an event that must be accepted."""
    result = next_step(step, event, facts_with(**more), letter=letter)
    assert isinstance(result, Step), result
    return result


def refused(step: Step | None, event: Event, letter: Letter, **more: Any) -> bool:
    facts = facts_with(**more)
    return isinstance(next_step(step, event, facts, letter=letter), NotAllowed)


SEND_AGAIN: dict[Letter, dict[str, Any]] = {
    "R": {},
    "T": {},
    "F": {},
    "I": {},
    "K": {"in_window": True},
    "Q": {"quiet": True, "lookup": Lookup.ABSENT},
    "N": {"at_least_once": True},
}


# A walk: at each row any facts, then one of the events that are accepted under them. The rows met
# on walks are the reachable ones; laws are checked at each of them.


Walk = list[tuple[Step, Event, Facts]]  # the row after each accepted event


def walk_of(letter: Letter, numbers: list[int], **forced: Any) -> Walk:
    step = took(None, Event.PLAN, letter)
    walk: Walk = [(step, Event.PLAN, facts_with())]
    for number in numbers:
        facts = facts_of(number)
        epoch = max(walk[-1][2].epoch, facts.epoch)  # epochs only rise
        facts = changed(facts, owner=True, epoch=epoch, **forced)
        results = [(next_step(step, event, facts, letter=letter), event) for event in Event]
        accepted = [(row, event) for row, event in results if isinstance(row, Step)]
        if accepted:
            step, event = accepted[number // FACTS_COUNT % len(accepted)]
            walk.append((step, event, facts))
    return walk


numbers = st.lists(st.integers(0, FACTS_COUNT * len(Event) - 1), max_size=14)
walks = st.builds(walk_of, st.sampled_from(LETTERS), numbers)


def walks_of(letter: Letter, **forced: Any) -> st.SearchStrategy[Walk]:
    return numbers.map(lambda drawn: walk_of(letter, drawn, **forced))


ALL = settings(max_examples=4 * EXAMPLES)


@ALL
@given(walks, facts_any)
def test_a_closed_step_is_never_left(walk: Walk, facts: Facts) -> None:
    for step, _, _ in walk:
        if step.state in CLOSED:
            for event in Event:
                assert isinstance(next_step(step, event, facts, letter=step.letter), NotAllowed)
                with pytest.raises(InvariantViolated):
                    apply(step, event, epoch=facts.epoch, quiet=facts.quiet, letter=step.letter)


@ALL
@given(walks, facts_any)
def test_nothing_but_the_owner_writes(walk: Walk, facts: Facts) -> None:
    stale = changed(facts, owner=False)
    letter = walk[0][0].letter
    rows: list[Step | None] = [None, *(step for step, _, _ in walk)]
    for row, event in itertools.product(rows, Event):
        assert isinstance(next_step(row, event, stale, letter=letter), NotAllowed)


@ALL
@given(walks)
def test_what_is_accepted_folds_to_the_same_row(walk: Walk) -> None:
    step: Step | None = None
    letter = walk[0][0].letter
    for after, event, facts in walk:
        step = apply(step, event, epoch=facts.epoch, quiet=facts.quiet, letter=letter)
        assert step == after
        assert step.letter == letter


@ALL
@given(walks)
def test_a_planned_step_has_nothing_under_way(walk: Walk) -> None:
    for step, _, _ in walk:
        if step.state is StepState.PLANNED:
            assert step.maybe_sent == 0
        if step.state in (StepState.STARTED, StepState.UNKNOWN):
            assert step.maybe_sent >= 1


def outstanding(walk: Walk) -> list[int]:
    """Before each move: how many attempts may have taken effect, counted apart from the row."""
    count, counts = 0, list[int]()
    for _, event, _ in walk:
        counts.append(count)
        match event:
            case Event.START:
                count += 1
            case Event.UNSENT:
                count -= 1
            case Event.RETRY | Event.SETTLE_RUN:
                count = 0  # proof by the far end; a person's word, in quiet
            case Event.RESTORE:
                count = max(count, 1)
            case _:
                pass
    return counts


@ALL
@given(walks_of("N", at_least_once=False))
def test_an_unrepeatable_step_is_not_sent_again_in_doubt(walk: Walk) -> None:
    for count, (_, event, _) in zip(outstanding(walk), walk, strict=True):
        assert not (event is Event.START and count)


@ALL
@given(walks_of("Q"))
def test_a_queryable_step_is_sent_again_only_when_found_absent_in_quiet(walk: Walk) -> None:
    for count, (_, event, facts) in zip(outstanding(walk), walk, strict=True):
        if event is Event.START and count:
            assert facts.quiet
            assert not facts.left
            assert facts.lookup is Lookup.ABSENT


@ALL
@given(walks_of("K"))
def test_a_keyed_step_is_sent_again_only_in_its_window_or_when_absent(walk: Walk) -> None:
    for count, (_, event, facts) in zip(outstanding(walk), walk, strict=True):
        if event is Event.START and count:
            assert not facts.key_reused
            assert facts.in_window or (facts.quiet and not facts.left and facts.lookup is Lookup.ABSENT)


@ALL
@given(walks)
def test_failed_needs_proof(walk: Walk) -> None:
    for (before, _, _), (step, event, facts) in itertools.pairwise(walk):
        if step.state is StepState.FAILED:
            assert before.epoch == facts.epoch
            if event is Event.FAIL:
                assert step.letter in ("R", "T")
            else:
                assert event is Event.REFUSE
                assert before.alone


@ALL
@given(st.one_of(walks_of("I"), walks_of("N", at_least_once=True)))
def test_where_the_far_end_keeps_no_keys_a_refusal_closes_only_a_sole_attempt(walk: Walk) -> None:
    for count, (step, event, _) in zip(outstanding(walk), walk, strict=True):
        if event in (Event.REFUSE, Event.RETRY) and step.state is not StepState.UNKNOWN:
            assert count == 1


@ALL
@given(walks)
def test_only_a_decision_in_quiet_or_evidence_moves_a_parked_step(walk: Walk) -> None:
    for (before, _, _), (_, event, facts) in itertools.pairwise(walk):
        if before.state is StepState.PARKED:
            if event in (Event.SETTLE_DONE, Event.SETTLE_RUN, Event.SETTLE_SKIP):
                assert facts.quiet
            elif event is Event.ADOPT:
                assert facts.evidence
            else:
                assert event is Event.RESTORE


@ALL
@given(walks)
def test_succeeded_needs_an_answer_a_lookup_evidence_or_a_person(walk: Walk) -> None:
    suspect = False  # restored, and nothing was started since
    for (before, last, _), (step, event, facts) in itertools.pairwise(walk):
        suspect = last is Event.RESTORE or (suspect and last is not Event.START)
        if step.state is StepState.SUCCEEDED:
            match event:
                case Event.SUCCEED:
                    assert before.epoch == facts.epoch
                case Event.FIND:
                    assert facts.quiet
                    done = (Lookup.FOUND, Lookup.OTHER) if suspect else (Lookup.FOUND,)
                    assert facts.lookup in done
                case Event.ADOPT:
                    assert facts.evidence
                case _:
                    assert event is Event.SETTLE_DONE


def as_resumer(facts: Facts, walk: Walk) -> Facts:
    """A resumer holds a newer epoch, waits for its lease, and asks before it starts what is
    planned."""
    epoch = walk[-1][2].epoch + 1
    approved = facts.approved or walk[-1][0].state is StepState.PLANNED
    return changed(facts, owner=True, epoch=epoch, lease_ok=True, approved=approved)


@settings(max_examples=12 * EXAMPLES)
@given(walks, facts_any)
@example(  # the far end knows the key with another body, yet the lookup finds nothing
    [(Step(letter="K", state=StepState.UNKNOWN, attempts=1, maybe_sent=1), Event.DOUBT, Facts())],
    Facts(key_reused=True, has_lookup=True, quiet=True, lookup=Lookup.ABSENT),
)
@example([(Step(letter="K", state=StepState.PLANNED), Event.PLAN, Facts())], Facts(evidence=True))
def test_the_resumers_move_is_always_accepted(walk: Walk, facts: Facts) -> None:
    step, mine = walk[-1][0], as_resumer(facts, walk)
    move = decide(step, mine)
    event = MOVES.get(move)
    if event is not None:
        result = next_step(step, event, mine, letter=step.letter)
        assert isinstance(result, Step), (move, result)
    if move is Move.PARK:
        assert question(step, mine, restored=False) in QUESTIONS
    assert (move is Move.USE) is (step.state in CLOSED)
    if move is Move.REST:
        assert step.state is StepState.PARKED
    if move in (Move.WAIT, Move.ASK):
        assert step.letter in ("K", "Q")
        assert mine.has_lookup
        assert mine.quiet is (move is Move.ASK)


@settings(max_examples=12 * EXAMPLES)
@given(walks, facts_any)
def test_a_step_is_parked_only_where_the_resumer_cannot_send(walk: Walk, facts: Facts) -> None:
    step, mine = walk[-1][0], as_resumer(facts, walk)
    if decide(step, changed(mine, evidence=False, unsent=False)) is Move.START:
        assert isinstance(next_step(step, Event.PARK, mine, letter=step.letter), NotAllowed)


@pytest.mark.parametrize("letter", LETTERS)
def test_the_ordinary_life_of_a_step(letter: Letter) -> None:
    """T1, T2, T3, T5, T11."""
    planned = took(None, Event.PLAN, letter)
    assert planned.state is StepState.PLANNED
    assert refused(None, Event.PLAN, letter, previous_closed=False)
    assert took(planned, Event.SKIP, letter).state is StepState.SKIPPED
    assert refused(planned, Event.START, letter, lease_ok=False)
    assert refused(planned, Event.START, letter, approved=False)
    assert refused(planned, Event.START, letter, attempts_left=False)
    started = took(planned, Event.START, letter)
    assert (started.state, started.attempts, started.maybe_sent) == (StepState.STARTED, 1, 1)
    assert started.alone
    assert took(started, Event.SUCCEED, letter).state is StepState.SUCCEEDED
    assert took(started, Event.DOUBT, letter).state is StepState.UNKNOWN
    for event in (Event.SUCCEED, Event.REFUSE, Event.DOUBT, Event.FAIL, Event.RETRY):
        assert refused(started, event, letter, epoch=2)
    for event in (Event.START, Event.FIND, Event.ADOPT, Event.PARK):
        assert refused(started, event, letter, quiet=True, lookup=Lookup.FOUND, evidence=True, attempts_left=False)


@pytest.mark.parametrize("letter", LETTERS)
def test_a_refusal_closes_a_step_only_where_it_is_proof(letter: Letter) -> None:
    """T4 and T5."""
    started = took(took(None, Event.PLAN, letter), Event.START, letter)
    assert took(started, Event.REFUSE, letter).state is StepState.FAILED
    crowded = Step(letter=letter, state=StepState.STARTED, attempts=2, maybe_sent=2, epoch=1)
    assert took(crowded, Event.REFUSE, letter).state is StepState.UNKNOWN
    assert refused(started, Event.FAIL, letter) is (letter not in ("R", "T"))
    retried = took(started, Event.RETRY, letter)
    assert (retried.state, retried.attempts) == (StepState.PLANNED, 1)
    assert refused(started, Event.RETRY, letter, refusals_stored=True) is (letter not in "RT")
    assert refused(crowded, Event.RETRY, letter) is (letter not in "RT")


@pytest.mark.parametrize("letter", LETTERS)
def test_a_second_attempts_refusal_is_proof_only_in_quiet_and_where_keys_are_kept(letter: Letter) -> None:
    first = took(took(took(None, Event.PLAN, letter), Event.START, letter), Event.DOUBT, letter)
    again = {**SEND_AGAIN[letter], "epoch": 2}
    if letter != "Q":  # which is never sent again before quiet
        crowded = took(first, Event.START, letter, **again)
        assert took(crowded, Event.REFUSE, letter, epoch=2).state is StepState.UNKNOWN
    second = took(first, Event.START, letter, **{**again, "quiet": True})
    after = took(second, Event.REFUSE, letter, epoch=2).state
    assert after is (StepState.UNKNOWN if letter in ("I", "N") else StepState.FAILED)


def test_only_what_cannot_have_been_sent_is_skipped() -> None:
    impossible = Step(letter="K", state=StepState.PLANNED, maybe_sent=1)
    assert refused(impossible, Event.SKIP, "K")


@pytest.mark.parametrize("letter", LETTERS)
def test_what_was_not_sent_is_planned_again(letter: Letter) -> None:
    started = took(took(None, Event.PLAN, letter), Event.START, letter)
    again = took(started, Event.UNSENT, letter)
    assert (again.state, again.maybe_sent, again.attempts) == (StepState.PLANNED, 0, 1)
    assert refused(started, Event.UNSENT, letter, epoch=2)
    by_page = took(started, Event.UNSENT, letter, epoch=2, unsent=True)
    assert by_page.state is StepState.PLANNED
    second = Step(letter=letter, state=StepState.STARTED, attempts=2, maybe_sent=2, epoch=1)
    older_out = took(second, Event.UNSENT, letter)
    assert (older_out.state, older_out.maybe_sent) == (StepState.UNKNOWN, 1)


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("found", ["started", "unknown"])
def test_each_class_is_sent_again_by_its_own_rule(letter: Letter, found: str) -> None:
    """T6, from unknown and from an older epoch's started."""
    step = took(took(None, Event.PLAN, letter), Event.START, letter)
    if found == "unknown":
        step = took(step, Event.DOUBT, letter)
    again = took(step, Event.START, letter, epoch=2, **SEND_AGAIN[letter])
    assert (again.state, again.attempts, again.maybe_sent) == (StepState.STARTED, 2, 2)
    bare = {"K": True, "Q": True, "N": True}.get(letter, False)
    assert refused(step, Event.START, letter, epoch=2) is bare


def test_a_key_beyond_its_window_is_sent_only_when_absent() -> None:
    step = took(took(took(None, Event.PLAN, "K"), Event.START, "K"), Event.DOUBT, "K")
    assert refused(step, Event.START, "K", quiet=True, lookup=Lookup.FOUND)
    assert refused(step, Event.START, "K", quiet=False, lookup=Lookup.ABSENT)
    assert took(step, Event.START, "K", quiet=True, lookup=Lookup.ABSENT).attempts == 2
    assert refused(step, Event.START, "K", in_window=True, key_reused=True)


@pytest.mark.parametrize("letter", LETTERS)
def test_evidence_and_lookups_close_what_is_in_doubt(letter: Letter) -> None:
    """T7."""
    step = took(took(took(None, Event.PLAN, letter), Event.START, letter), Event.DOUBT, letter)
    assert took(step, Event.ADOPT, letter, evidence=True).state is StepState.SUCCEEDED
    assert refused(step, Event.ADOPT, letter)
    found = {"quiet": True, "lookup": Lookup.FOUND}
    assert took(step, Event.FIND, letter, **found).state is StepState.SUCCEEDED
    assert refused(step, Event.FIND, letter, lookup=Lookup.FOUND)
    for lookup in Lookup:
        if lookup is not Lookup.FOUND:
            assert refused(step, Event.FIND, letter, quiet=True, lookup=lookup)


@pytest.mark.parametrize("letter", LETTERS)
def test_what_a_lost_timeline_did_closes_a_step_with_whatever_arguments(letter: Letter) -> None:
    """T7 and rule 7: until the first start since the restore, and in quiet."""
    step = took(None, Event.RESTORE, letter)
    for lookup in Lookup:
        if lookup in (Lookup.FOUND, Lookup.OTHER):
            found = took(step, Event.FIND, letter, quiet=True, lookup=lookup)
            assert found.state is StepState.SUCCEEDED
        else:
            assert refused(step, Event.FIND, letter, quiet=True, lookup=lookup)
        assert refused(step, Event.FIND, letter, lookup=lookup)
    again = {"in_window": True, "at_least_once": True, "quiet": True, "lookup": Lookup.ABSENT}
    doubted = took(took(step, Event.START, letter, **again), Event.DOUBT, letter)
    assert refused(doubted, Event.FIND, letter, quiet=True, lookup=Lookup.OTHER)


PARK: dict[Letter, dict[str, Any]] = {
    "R": {"attempts_left": False},
    "T": {"attempts_left": False},
    "F": {"key_reused": True},
    "I": {"attempts_left": False},
    "K": {},
    "Q": {"has_lookup": True, "quiet": True, "lookup": Lookup.MANY},
    "N": {},
}


@pytest.mark.parametrize("letter", LETTERS)
def test_parked_steps_leave_by_evidence_or_a_person(letter: Letter) -> None:
    """T8, T9, T10."""
    step = took(took(took(None, Event.PLAN, letter), Event.START, letter), Event.DOUBT, letter)
    parked = took(step, Event.PARK, letter, **PARK[letter])
    assert parked.state is StepState.PARKED
    assert took(parked, Event.ADOPT, letter, evidence=True).state is StepState.SUCCEEDED
    ends = {
        Event.SETTLE_DONE: StepState.SUCCEEDED,
        Event.SETTLE_RUN: StepState.PLANNED,
        Event.SETTLE_SKIP: StepState.SKIPPED,
    }
    for event, state in ends.items():
        assert refused(parked, event, letter)
        assert took(parked, event, letter, quiet=True).state is state
    fresh = took(parked, Event.SETTLE_RUN, letter, quiet=True)
    assert (fresh.attempts, fresh.maybe_sent) == (0, 0)


@pytest.mark.parametrize("letter", LETTERS)
def test_a_planned_step_with_spent_attempts_is_parked(letter: Letter) -> None:
    planned = took(None, Event.PLAN, letter)
    assert refused(planned, Event.PARK, letter)
    assert took(planned, Event.PARK, letter, attempts_left=False).state is StepState.PARKED


@pytest.mark.parametrize("letter", LETTERS)
def test_after_a_restore_every_open_slot_is_in_doubt(letter: Letter) -> None:
    """T14."""
    suspect = took(None, Event.RESTORE, letter)
    assert (suspect.state, suspect.maybe_sent) == (StepState.UNKNOWN, 1)
    planned = took(None, Event.PLAN, letter)
    for step in (planned, took(planned, Event.START, letter)):
        again = took(step, Event.RESTORE, letter)
        assert (again.state, again.maybe_sent) == (StepState.UNKNOWN, 1)
        assert refused(again, Event.SKIP, letter)


@pytest.mark.parametrize("letter", LETTERS)
def test_a_suspect_slot_is_not_sent_without_the_approval_its_tool_needs(letter: Letter) -> None:
    """A restore forgets who said yes: a person is asked, whatever the class allows."""
    suspect = took(None, Event.RESTORE, letter)
    known = {
        "epoch": 2,
        "in_window": True,
        "at_least_once": True,
        "quiet": True,
        "has_lookup": True,
        "lookup": Lookup.ABSENT,
    }
    assert decide(suspect, facts_with(**known)) is Move.START
    assert decide(suspect, facts_with(**known, approved=False)) is Move.PARK
    assert refused(suspect, Event.START, letter, **known, approved=False)
    assert took(suspect, Event.PARK, letter, **known, approved=False).state is StepState.PARKED


@pytest.mark.parametrize("letter", LETTERS)
def test_a_compensation_is_a_step_of_its_own(letter: Letter) -> None:
    """T12: the child closes; the parent's row is not touched."""
    parent = took(took(took(None, Event.PLAN, letter), Event.START, letter), Event.SUCCEED, letter)
    child = took(took(took(None, Event.PLAN, letter), Event.START, letter), Event.SUCCEED, letter)
    assert parent.state is child.state is StepState.SUCCEEDED
    assert all(refused(parent, event, letter, quiet=True, evidence=True) for event in Event)


@pytest.mark.parametrize(
    ("letter", "facts", "move"),
    [
        ("R", {}, Move.START),
        ("T", {}, Move.START),
        ("I", {}, Move.START),
        ("F", {}, Move.START),
        ("K", {"in_window": True}, Move.START),
        ("K", {}, Move.PARK),
        ("K", {"has_lookup": True}, Move.WAIT),
        ("K", {"has_lookup": True, "quiet": True}, Move.ASK),
        ("K", {"has_lookup": True, "quiet": True, "lookup": Lookup.ABSENT}, Move.START),
        ("K", {"in_window": True, "attempts_left": False}, Move.PARK),
        ("K", {"in_window": True, "attempts_left": False, "has_lookup": True}, Move.WAIT),
        ("Q", {"has_lookup": True}, Move.WAIT),
        ("Q", {"has_lookup": True, "quiet": True}, Move.ASK),
        ("Q", {"has_lookup": True, "quiet": True, "left": True}, Move.PARK),
        ("Q", {"has_lookup": True, "quiet": True, "left": True, "lookup": Lookup.ABSENT}, Move.PARK),
        ("K", {"has_lookup": True, "quiet": True, "left": True}, Move.PARK),
        ("K", {"in_window": True, "left": True}, Move.START),
        ("Q", {"has_lookup": True, "quiet": True, "attempts_left": False}, Move.ASK),
        ("Q", {"has_lookup": True, "quiet": True, "lookup": Lookup.FOUND}, Move.FIND),
        ("Q", {"has_lookup": True, "quiet": True, "lookup": Lookup.ABSENT}, Move.START),
        ("Q", {"has_lookup": True, "quiet": True, "lookup": Lookup.MANY}, Move.PARK),
        ("Q", {"has_lookup": True, "quiet": True, "lookup": Lookup.UNSURE}, Move.PARK),
        ("Q", {"has_lookup": True, "quiet": True, "lookup": Lookup.OTHER}, Move.PARK),
        ("Q", {}, Move.PARK),
        ("N", {}, Move.PARK),
        ("N", {"unsent": True}, Move.UNSEND),
        ("N", {"at_least_once": True}, Move.START),
        ("N", {"at_least_once": True, "attempts_left": False}, Move.PARK),
        *((letter, {"evidence": True}, Move.ADOPT) for letter in LETTERS),
    ],
)
def test_the_resumers_table(letter: Letter, facts: dict[str, Any], move: Move) -> None:
    """Section 1.8 of the effect protocol, row "started by an older epoch"."""
    step = took(took(None, Event.PLAN, letter), Event.START, letter)
    assert decide(step, facts_with(**{"epoch": 2, **facts})) is move


@pytest.mark.parametrize(
    ("letter", "facts", "name"),
    [
        ("N", {}, "unrepeatable"),
        ("K", {}, "window"),
        ("Q", {"lookup": Lookup.MANY}, "many"),
        ("Q", {"lookup": Lookup.OTHER}, "other"),
        ("Q", {"lookup": Lookup.UNSURE}, "unsure"),
        ("K", {"key_reused": True}, "key-reused"),
        ("R", {"attempts_left": False}, "attempts"),
    ],
)
def test_a_parked_step_asks_what_a_person_can_answer(letter: Letter, facts: dict[str, Any], name: str) -> None:
    step = Step(letter=letter, state=StepState.UNKNOWN, maybe_sent=1)
    assert question(step, Facts(**facts), restored=False) == name
    assert QUESTIONS[name]


def test_a_step_of_a_lost_timeline_is_asked_about_as_such() -> None:
    step = Step(letter="K", state=StepState.UNKNOWN, maybe_sent=1)
    assert question(step, Facts(), restored=True) == "restored"
