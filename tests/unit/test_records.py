"""Folding records: one story, whoever reads it and however often."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId
from holdfast.core.step import CLOSED, Event, Facts, Step, StepState, next_step
from holdfast.errors import InvariantViolated, JournalDamaged
from holdfast.journal.records import Record, RecordKind, TaskState, TaskView, fold
from holdfast.testing.journal_contract.world import folded, shown

EXAMPLES = settings().max_examples  # of the profile: more for `make mutants`

TASK = TaskId("01J9ZK3V5T8Q2M4N6P7R8S9T0V")
LETTERS: tuple[Letter, ...] = get_args(Letter)
EPOCH = 1 << 32 | 1

# One body that every event can be read from, as if each far end answered at length.
FULL: dict[str, Any] = {
    "tool": "charge",
    "args": {"cents": 42},
    "result": [1, "ok"],
    "reason": "timeout",
    "proof": {"status": 402},
    "question": "was it done?",
    "evidence": [{"attempt": 1}],
    "not_before_ms": 7,
    "note": "by hand",
    "lost_after_ms": 5,
    "kind": "Timeout",
    "text": "late",
}


class History:
    """Writes a legal history, choosing by number; the journal's side of the story is `records`."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.steps: dict[str, Step] = {}
        self.epoch = 0
        self.add(RecordKind.ACCEPTED, body={"name": "trip", "request_id": "o-77", "args": {}})
        self.claim()

    def add(self, kind: RecordKind, **more: Any) -> None:
        n = len(self.records)
        values: dict[str, Any] = {
            "number": 10 + 3 * n,
            "seq": n,
            "kind": kind,
            "ordinal": "",
            "events": (),
            "epoch": self.epoch,
            "at_ms": 1_000 + n,
            "boot_ms": 50 + n,
            "effect_key": b"",
            "fingerprint": b"",
            "slot": -1,
            "quiet": False,
            "body": {},
            **more,
        }
        self.records.append(Record(**values))

    def claim(self) -> None:
        self.epoch = (self.epoch or 1 << 32) + 1
        self.add(RecordKind.CLAIMED, body={"session": "s", "boot": "b", "worker": "w"})

    def move(self, choice: int) -> None:
        choice, what = divmod(choice, 8)
        if what == 0:
            self.claim()
        elif what == 1:
            self.add(RecordKind.NOTE, ordinal=f"n{choice % 3}", body={"what": "now", "value": choice})
        elif what == 2:
            self.add(RecordKind.RESTED, body={"state": "sleeping", "why": "asked"})
        elif what == 3:
            self.add(RecordKind.FINISHED, body={"state": "failed", "error": {"kind": "x"}})
            self.claim()  # a person's retry
        else:
            self.step(choice)

    def step(self, choice: int) -> None:
        choice, place = divmod(choice, 3)
        ordinal = str(place + 1)
        before = self.steps.get(ordinal)
        letter: Letter = LETTERS[place * 2] if before is None else before.letter
        choice, quiet = divmod(choice, 2)
        facts = Facts(
            epoch=self.epoch,
            owner=True,
            previous_closed=True,
            lease_ok=True,
            quiet=bool(quiet),
            in_window=True,
            unsent=True,
            evidence=True,
            at_least_once=True,
        )
        results = [(event, next_step(before, event, facts, letter=letter)) for event in Event]
        legal = [(event, row) for event, row in results if isinstance(row, Step)]
        if legal:
            event, after = legal[choice % len(legal)]
            self.steps[ordinal] = after
            self.add(
                RecordKind.STEP,
                ordinal=ordinal,
                events=(event,),
                body={**FULL, "letter": letter},
                effect_key=ordinal.encode() * 16,
                fingerprint=b"f" * 16,
                slot=choice % 5,
                quiet=bool(quiet),
            )


def history_of(numbers: list[int]) -> History:
    history = History()
    for number in numbers:
        history.move(number)
    return history


histories = st.lists(st.integers(0, 2**24), max_size=40).map(history_of)


def read_back(records: list[Record]) -> list[Record]:
    """The records as another process reads them: equal, sharing nothing."""
    return [msgspec.structs.replace(one, body=json.loads(json.dumps(one.body))) for one in records]


@settings(max_examples=4 * EXAMPLES)
@given(histories, st.integers(0, 60))
def test_reading_a_prefix_and_writing_the_rest_gives_the_whole(history: History, cut: int) -> None:
    whole = folded(TaskView(TASK), history.records)
    resumed = folded(TaskView(TASK), read_back(history.records[:cut]))
    folded(resumed, history.records[cut:])
    assert shown(resumed) == shown(whole)
    assert shown(folded(TaskView(TASK), read_back(history.records))) == shown(whole)


@settings(max_examples=4 * EXAMPLES)
@given(histories)
def test_a_folded_step_is_the_row_that_was_checked_before_writing(history: History) -> None:
    view = folded(TaskView(TASK), history.records)
    assert {ordinal: step.step for ordinal, step in view.steps.items()} == history.steps
    assert view.epoch == history.epoch
    assert view.seq == len(history.records) - 1
    for step in view.steps.values():
        assert step.closed is (step.state in CLOSED)
        assert (step.closed_ms > 0) >= step.closed
        assert step.effect_key == step.ordinal.encode() * 16
        assert len({one.fence for one in step.attempts}) == len(step.attempts)


@settings(max_examples=2 * EXAMPLES)
@given(histories, st.integers(0, 60), st.integers(-3, 3))
def test_a_missing_repeated_or_exchanged_record_is_found(history: History, place: int, shift: int) -> None:
    records = history.records
    place %= len(records)
    damaged = records[:]
    damaged[place] = records[(place + shift) % len(records)]
    if damaged[place] is not records[place]:
        with pytest.raises(JournalDamaged):
            folded(TaskView(TASK), damaged)
    if place < len(records) - 1:
        with pytest.raises(JournalDamaged):
            folded(TaskView(TASK), records[:place] + records[place + 1 :])
    with pytest.raises(JournalDamaged):
        folded(TaskView(TASK), records[: place + 1] + records[place:])


@settings(max_examples=2 * EXAMPLES)
@given(histories, st.sampled_from(Event), st.sampled_from(["1", "2", "3"]))
def test_an_event_that_cannot_follow_is_refused(history: History, event: Event, ordinal: str) -> None:
    before = history.steps.get(ordinal)
    letter = "K" if before is None else before.letter
    view = folded(TaskView(TASK), history.records)
    history.add(RecordKind.STEP, ordinal=ordinal, events=(event,), body={**FULL, "letter": letter})
    closed = before is not None and before.state in CLOSED
    if closed or (before is None and event not in (Event.PLAN, Event.RESTORE)):
        with pytest.raises(InvariantViolated):
            fold(view, history.records[-1])


def last_of(kind: RecordKind, **more: Any) -> tuple[TaskView, Record]:
    """A claimed task's view and one record to fold into it."""
    history = History()
    view = folded(TaskView(TASK), history.records)
    history.add(kind, **more)
    return view, history.records[-1]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (RecordKind.STEP, {"ordinal": "1", "events": (Event.PLAN,), "body": {}}),
        (RecordKind.STEP, {"ordinal": "1", "events": (Event.PLAN,), "body": {"letter": "K"}}),
        (RecordKind.NOTE, {"ordinal": "n1", "body": {}}),
        (RecordKind.ANSWER, {"ordinal": "n1", "body": {}}),
        (RecordKind.CLAIMED, {"body": {}, "epoch": EPOCH + 1}),
        (RecordKind.FINISHED, {"body": {}}),
        (RecordKind.FINISHED, {"body": {"state": "unheard of"}}),
        (RecordKind.RESTORED, {"body": {}}),
        (RecordKind.ACCEPTED, {"body": {"name": "again"}}),
        (RecordKind.RESTED, {"body": {}, "epoch": EPOCH + 1}),
        (RecordKind.NOTE, {"ordinal": "n1", "body": {"what": "now"}, "epoch": EPOCH - 1}),
        (RecordKind.CLAIMED, {"body": {"session": "s", "boot": "b", "worker": "w"}, "epoch": EPOCH}),
    ],
)
def test_what_no_owner_can_have_written_is_damage(kind: RecordKind, more: dict[str, Any]) -> None:
    view, record = last_of(kind, **more)
    with pytest.raises(JournalDamaged):
        fold(view, record)


def plan_and_start(history: History, ordinal: str = "1") -> None:
    history.add(
        RecordKind.STEP,
        ordinal=ordinal,
        events=(Event.PLAN, Event.START),
        body={**FULL, "letter": "K"},
        effect_key=b"k" * 16,
        slot=4,
    )


def test_a_step_in_one_record_is_planned_and_started() -> None:
    history = History()
    plan_and_start(history)
    step = folded(TaskView(TASK), history.records).steps["1"]
    assert step.state is StepState.STARTED
    assert (step.tool, step.args, step.effect_key) == ("charge", {"cents": 42}, b"k" * 16)
    (attempt,) = step.attempts
    number = history.records[-1].number
    assert (attempt.epoch, attempt.number, attempt.slot) == (EPOCH, number, 4)
    assert attempt.fence == 1 << 40 | number


def test_fences_rise_with_the_incarnation() -> None:
    history = History()
    plan_and_start(history)
    history.epoch = 2 << 32
    history.claim()
    body = {**FULL, "letter": "K"}
    history.add(RecordKind.STEP, ordinal="1", events=(Event.START,), body=body, number=11)
    one, two = folded(TaskView(TASK), history.records).steps["1"].attempts
    assert two.fence > one.fence


def test_progress_is_where_a_step_was_last_closed() -> None:
    history = History()
    plan_and_start(history)
    view = folded(TaskView(TASK), history.records)
    assert view.progress_epoch == 0
    history.add(RecordKind.STEP, ordinal="1", events=(Event.SUCCEED,), body=FULL)
    fold(view, history.records[-1])
    assert view.progress_epoch == EPOCH


def test_an_answer_belongs_to_its_note() -> None:
    history = History()
    history.add(RecordKind.NOTE, ordinal="2", body={"what": "sleep", "until_ms": 9})
    history.add(RecordKind.ANSWER, ordinal="2", body={"woken": True})
    note = folded(TaskView(TASK), history.records).notes["2"]
    assert (note.what, note.body["until_ms"], note.answer) == ("sleep", 9, {"woken": True})


def test_a_claim_opens_what_rested_or_failed() -> None:
    history = History()
    history.add(RecordKind.FINISHED, body={"state": "failed", "text": "no"})
    view = folded(TaskView(TASK), history.records)
    assert (view.finished, view.outcome["text"]) == (TaskState.FAILED, "no")
    history.claim()
    fold(view, history.records[-1])
    assert (view.finished, view.outcome, view.rested) == (None, {}, {})


def test_a_restore_puts_every_open_step_in_doubt() -> None:
    history = History()
    plan_and_start(history, "1")
    plan_and_start(history, "2")
    history.add(RecordKind.STEP, ordinal="1", events=(Event.SUCCEED,), body=FULL)
    history.add(RecordKind.STEP, ordinal="2", events=(Event.DOUBT,), body=FULL)
    history.add(RecordKind.RESTORED, body={"lost_after_ms": 5})
    view = folded(TaskView(TASK), history.records)
    assert view.restored_ms == 5
    assert view.steps["1"].state is StepState.SUCCEEDED
    open_step = view.steps["2"]
    assert (open_step.state, open_step.doubt) == (StepState.UNKNOWN, "restored")
    assert open_step.ended is None


def test_a_persons_run_forgets_the_attempts_before() -> None:
    history = History()
    plan_and_start(history)
    for event in (Event.DOUBT, Event.PARK, Event.SETTLE_RUN):
        history.add(RecordKind.STEP, ordinal="1", events=(event,), body={**FULL, "reason": "busy"})
    step = folded(TaskView(TASK), history.records).steps["1"]
    assert step.state is StepState.PLANNED
    assert (step.attempts, step.spared) == ((), 0)
