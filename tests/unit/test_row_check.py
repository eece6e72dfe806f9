"""A task's row must say what its records say: each column that lies is told."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.ids import TaskId
from holdfast.core.step import Event
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import Body, Record, RecordKind, TaskView, fold
from holdfast.journal.rules import NEVER_MS
from holdfast.journal.sqlite.opening.check import Row, find_odd, find_odd_item

TASK = TaskId("00000000000000000000000001")
SOUND = Row(name="pay", state="running", due_ms=10, created_ms=10, changed_ms=30, crashes=0, cancel_asked=0, session=1)


def record(seq: int, kind: RecordKind, body: Body, **rest: Any) -> Record:  # Any: fields of a record
    fields: dict[str, Any] = {
        "number": seq + 1,
        "seq": seq,
        "kind": kind,
        "ordinal": "",
        "events": (),
        "epoch": 1,
        "at_ms": 10 + 10 * seq,
        "boot_ms": 0,
        "effect_key": b"",
        "fingerprint": b"",
        "slot": -1,
        "quiet": True,
        "body": body,
    }
    return Record(**fields | rest)


def story(*later: Record) -> tuple[TaskView, Record]:
    """Accepted, claimed, and what came then."""
    records = [
        record(0, RecordKind.ACCEPTED, {"name": "pay"}, epoch=0),
        record(1, RecordKind.CLAIMED, {"session": "s", "boot": "b", "worker": "w"}),
        *later,
    ]
    view = TaskView(TASK)
    for one in records:
        fold(view, one)
    return view, records[-1]


def rested(why: str, state: str) -> Record:
    return record(2, RecordKind.RESTED, {"why": why, "state": state})


def test_a_sound_row_is_not_complained_about() -> None:
    view, last = story()
    assert list(find_odd(SOUND, view, last, ())) == []


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("name", "pax", "has the name"),
        ("state", "punning", "the unknown state"),
        ("state", "succeeded", "which is not possible after its newest record"),
        ("created_ms", 11, "was made at"),
        ("changed_ms", 19, "before its newest record"),
        ("changed_ms", "19", "before its newest record"),
        ("crashes", 4, "crashes"),
        ("crashes", -1, "crashes"),
        ("cancel_asked", 1, "the inbox has no such request"),
        ("cancel_asked", 3, "cancel mark"),
        ("due_ms", -10, "due at"),
        ("session", None, "session is None"),
    ],
)
def test_a_column_that_lies_is_told(column: str, value: object, told: str) -> None:
    view, last = story()
    findings = list(find_odd(SOUND._replace(**{column: value}), view, last, ()))
    assert any(told in finding for finding in findings), findings


def test_a_sleeper_wakes_when_its_record_says() -> None:
    view, last = story(rested("sleeping 500", "sleeping"))
    row = SOUND._replace(state="sleeping", due_ms=500, session=None)
    assert list(find_odd(row, view, last, ())) == []
    assert any("its records say 500" in one for one in find_odd(row._replace(due_ms=501), view, last, ()))


def test_what_is_queued_is_due() -> None:
    view, last = story(rested("the worker stopped", "queued"))
    row = SOUND._replace(state="queued", session=None)
    assert list(find_odd(row, view, last, ())) == []
    assert any("after it was queued" in one for one in find_odd(row._replace(due_ms=31), view, last, ()))


def test_what_is_parked_is_never_due() -> None:
    view, last = story(rested("parked", "parked"))
    row = SOUND._replace(state="parked", due_ms=NEVER_MS, session=None)
    assert list(find_odd(row, view, last, ())) == []
    assert any("the due time 5" in one for one in find_odd(row._replace(due_ms=5), view, last, ()))


def test_a_cancel_that_was_asked_for() -> None:
    view, last = story()
    cancel = InboxItem(task_id=TASK, ordinal="", kind=InboxKind.CANCEL, body={}, number=1, at_ms=20)
    assert list(find_odd(SOUND._replace(cancel_asked=1), view, last, (cancel,))) == []


def parked_step() -> TaskView:
    plan = record(
        2, RecordKind.STEP, {"tool": "t", "letter": "N", "args": {}}, ordinal="1", events=(Event.PLAN, Event.START)
    )
    doubt = record(3, RecordKind.STEP, {"reason": "timeout"}, ordinal="1", events=(Event.DOUBT,))
    park = record(
        4, RecordKind.STEP, {"question": "?", "evidence": [], "not_before_ms": 0}, ordinal="1", events=(Event.PARK,)
    )
    return story(plan, doubt, park)[0]


def decision(**rest: Any) -> InboxItem:  # Any: fields of an item
    fields: dict[str, Any] = {
        "task_id": TASK,
        "ordinal": "1",
        "kind": InboxKind.DECISION,
        "body": {"epoch": 1},
        "number": 7,
        "at_ms": 60,
        "applied": False,
    }
    return InboxItem(**fields | rest)


def test_a_decision_that_only_looks_applied() -> None:
    view = parked_step()
    assert list(find_odd_item(decision(), view)) == []
    assert any("still parked" in one for one in find_odd_item(decision(applied=True), view))
    assert any("before its task" in one for one in find_odd_item(decision(at_ms=9), view))


def test_an_approval_that_only_looks_applied() -> None:
    view, _ = story(record(2, RecordKind.NOTE, {"what": "approve"}, ordinal="1"))
    approval = decision(kind=InboxKind.APPROVAL, body={"granted": True})
    assert list(find_odd_item(approval, view)) == []
    applied = decision(kind=InboxKind.APPROVAL, body={"granted": True}, applied=True)
    assert any("still open" in one for one in find_odd_item(applied, view))
