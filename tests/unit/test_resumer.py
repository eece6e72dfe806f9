"""The resumer's table, told a second time: one safe move for every row and all facts.

`core/resume.py` decides by guards, read top-down; here the moves of each class stand side by side.
"""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from holdfast.core.effect import Letter
from holdfast.core.resume import QUESTIONS, Move, decide, question
from holdfast.core.step import Event, Facts, Lookup, Step, StepState, next_step

LETTERS: tuple[Letter, ...] = get_args(Letter)
MINE, OLDER = 2, 1
S = StepState


def moves(step: Step, f: Facts) -> Move:
    if step.state in (S.SUCCEEDED, S.FAILED, S.SKIPPED):
        return Move.USE
    if f.evidence:
        return Move.ADOPT
    if step.state is S.PARKED:
        return Move.REST
    if step.state is S.PLANNED:
        return Move.START if f.attempts_left else Move.PARK
    if step.state is S.STARTED and f.unsent:
        return Move.UNSEND
    able = f.attempts_left and (step.attempts > 0 or f.approved)
    # Only a restore leaves a row in doubt without an attempt: what is found was done before it.
    suspect = step.state is S.UNKNOWN and step.attempts == 0
    asking: dict[Lookup, Move] = {
        Lookup.NONE: Move.ASK,
        Lookup.FOUND: Move.FIND,
        Lookup.MANY: Move.PARK,
        Lookup.UNSURE: Move.PARK,
        Lookup.OTHER: Move.FIND if suspect else Move.PARK,
        Lookup.ABSENT: Move.START if able and not f.key_reused else Move.PARK,
    }
    asked = (asking[f.lookup] if f.quiet else Move.WAIT) if f.has_lookup and not f.left else Move.PARK
    send = Move.START if able else Move.PARK
    by_class: dict[str, Move] = {
        "R": send,
        "T": send,
        "F": Move.PARK if f.key_reused else send,
        "I": Move.PARK if f.key_reused else send,
        "K": Move.START if f.in_window and able and not f.key_reused else asked,
        "Q": asked,
        "N": send if f.at_least_once and not f.key_reused else Move.PARK,
    }
    return by_class[step.letter]


RESUMER = ("attempts_left", "approved", "key_reused", "quiet", "in_window", "has_lookup", "at_least_once", "left")


@pytest.mark.parametrize("letter", LETTERS)
def test_the_resumer_makes_the_one_safe_move(letter: Letter) -> None:
    every = [
        Facts(epoch=MINE, owner=True, lookup=lookup, **dict(zip(RESUMER, bits, strict=True)))
        for lookup in Lookup
        for bits in itertools.product((False, True), repeat=len(RESUMER))
    ]
    for state, attempts in itertools.product(S, (0, 1)):
        step = Step(letter=letter, state=state, attempts=attempts, maybe_sent=1, epoch=OLDER)
        for facts in every:
            assert decide(step, facts) is moves(step, facts), (step, facts)
        for evidence, unsent, left in itertools.product((False, True), repeat=3):
            facts = Facts(epoch=MINE, evidence=evidence, unsent=unsent, attempts_left=left)
            assert decide(step, facts) is moves(step, facts), (step, facts)


@pytest.mark.parametrize("letter", LETTERS)
def test_a_park_is_refused_where_the_step_could_be_sent_and_accepted_where_it_is_proposed(letter: Letter) -> None:
    for lookup, bits in itertools.product(Lookup, itertools.product((False, True), repeat=len(RESUMER))):
        facts = Facts(epoch=MINE, owner=True, lookup=lookup, **dict(zip(RESUMER, bits, strict=True)))
        for state, attempts in itertools.product((S.STARTED, S.UNKNOWN), (0, 1)):
            step = Step(letter=letter, state=state, attempts=attempts, maybe_sent=1, epoch=OLDER)
            move, parked = decide(step, facts), next_step(step, Event.PARK, facts, letter=letter)
            if move in (Move.START, Move.PARK):
                assert isinstance(parked, Step) is (move is Move.PARK), (step, facts)


ASKS: list[tuple[str, Letter, dict[str, Any], bool]] = [
    ("unrepeatable", "N", {}, False),
    ("window", "K", {}, False),
    ("window", "Q", {}, False),
    ("restored", "N", {}, True),
    ("restored", "K", {}, True),
    ("attempts", "N", {"attempts_left": False}, False),
    ("attempts", "N", {"attempts_left": False}, True),
    ("key-reused", "K", {"key_reused": True}, False),
    ("key-reused", "K", {"key_reused": True, "attempts_left": False}, True),
    ("unsure", "Q", {"lookup": Lookup.UNSURE, "key_reused": True}, True),
    ("other", "Q", {"lookup": Lookup.OTHER, "key_reused": True}, True),
    ("many", "Q", {"lookup": Lookup.MANY, "key_reused": True}, True),
    ("window", "K", {"lookup": Lookup.ABSENT}, False),
    ("left", "N", {"left": True}, False),
    ("left", "Q", {"left": True, "lookup": Lookup.MANY}, True),
]


@pytest.mark.parametrize(("name", "letter", "known", "restored"), ASKS)
def test_a_parked_step_asks_the_nearest_question(
    name: str, letter: Letter, known: dict[str, Any], restored: bool
) -> None:
    """What still runs comes first, then what the lookup said, the key, the attempts, the restore, the class."""
    step = Step(letter=letter, state=S.UNKNOWN, attempts=1, maybe_sent=1)
    assert question(step, Facts(**known), restored=restored) == name


def test_every_question_has_words_of_its_own() -> None:
    asked = {name for name, *_ in ASKS}
    assert asked == QUESTIONS.keys()
    assert len(set(QUESTIONS.values())) == len(QUESTIONS)
    assert all("?" in text for text in QUESTIONS.values())


def test_moves_are_named_once() -> None:
    assert len({move.value for move in Move}) == len(Move) == 9
