"""A person's decision answers the question that is asked, and no other."""

from __future__ import annotations

from holdfast.core.ids import TaskId
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import StepView
from holdfast.runtime.step.facts import is_answer

TASK = TaskId("1KEM627WQ64Y7PGWQRCQ6JMA5Y")
FIRST, RESTORED = 1 << 32 | 4, 2 << 32 | 5


def parked(epoch: int) -> StepView:
    step = StepView("3", "N")
    step.parked = (epoch, 1_000, 60_000)
    return step


def decision(*, epoch: int | None, ordinal: str = "3") -> InboxItem:
    body = {"decision": "run"} if epoch is None else {"decision": "run", "epoch": epoch}
    return InboxItem(task_id=TASK, ordinal=ordinal, kind=InboxKind.DECISION, body=body)


def test_a_decision_answers_the_park_it_was_made_for() -> None:
    assert is_answer(decision(epoch=FIRST), parked(FIRST))
    assert not is_answer(decision(epoch=FIRST, ordinal="4"), parked(FIRST))


def test_a_decision_kept_in_an_older_copy_of_the_journal_is_not_carried_out_again() -> None:
    """The lost timeline may have done so: what it decided ran once already."""
    assert not is_answer(decision(epoch=FIRST), parked(RESTORED))


def test_a_decision_that_names_no_park_answers_nothing() -> None:
    assert not is_answer(decision(epoch=None), parked(FIRST))
    assert not is_answer(decision(epoch=0), StepView("3", "N"))


def test_evidence_is_no_decision() -> None:
    item = InboxItem(task_id=TASK, ordinal="3", kind=InboxKind.EVIDENCE, body={"epoch": FIRST, "result": None})
    assert not is_answer(item, parked(FIRST))
