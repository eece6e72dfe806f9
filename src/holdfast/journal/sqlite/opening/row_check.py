"""Whether a task's row says what its records say: the row's clear columns carry no seal.

The chain proves the records; sequence, head and epoch are compared with it at every claim. The
other columns are copies for quick reading or follow from the records and the inbox, and each is
held here against what it follows from. When a row was last changed follows from nothing, but it
cannot be before its newest record; there is no upper bound, because clocks are set back. Pure:
values in, findings out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from holdfast.core.rest import Sleep, read_rest
from holdfast.core.step import StepState
from holdfast.journal.contract import InboxItem, InboxKind
from holdfast.journal.records import ENDED, Kind, Record, TaskState, TaskView
from holdfast.journal.rules import CRASHES_MAX, NEVER_MS, RESTING

ROW_COLUMNS = "name, state, due_ms, created_ms, changed_ms, crashes, cancel_asked, session"
_STATES = frozenset(state.value for state in TaskState)


class Row(NamedTuple):
    """The columns of ROW_COLUMNS, as they lie in the file."""

    name: object
    state: object
    due_ms: object
    created_ms: object
    changed_ms: object
    crashes: object
    cancel_asked: object
    session: object


def find_odd(row: Row, view: TaskView, last: Record, inbox: Collection[InboxItem]) -> Iterator[str]:
    """What of the row its records contradict, one line each."""
    if row.state not in _STATES:
        yield f"there is no state {row.state!r}"
        return
    state = TaskState(str(row.state))
    if row.name != view.name:
        yield f"the row is named {row.name!r}, its records {view.name!r}"
    if row.created_ms != view.accepted_ms:
        yield f"the row was made at {row.created_ms}, its first record at {view.accepted_ms}"
    if not _is_between(row.changed_ms, last.at_ms, NEVER_MS):
        yield f"the row changed at {row.changed_ms}, before its newest record ({last.at_ms})"
    if not _is_between(row.crashes, 0, CRASHES_MAX):
        yield f"{row.crashes} crashes are counted"
    if state not in _possible(view, last):
        yield f"the row is {state}, which its newest record ({last.kind.name.lower()}) is not"
    yield from _odd_due(row, state, view)
    if (row.session is not None) != (state is TaskState.RUNNING):
        yield f"the row is {state} and its session is {row.session}"
    yield from _odd_cancel(row, inbox)


def find_odd_item(item: InboxItem, view: TaskView) -> Iterator[str]:
    """What of an inbox item the task's records contradict."""
    if item.at_ms < view.accepted_ms:
        yield f"inbox item {item.number} is of {item.at_ms}, before its task"
    if not item.applied:
        return
    step, note = view.steps.get(item.ordinal), view.notes.get(item.ordinal)
    match item.kind:
        case InboxKind.DECISION:
            parked = step is not None and step.state is StepState.PARKED and step.parked
            if parked and parked[0] == item.body.get("epoch"):
                yield f"inbox item {item.number} is marked as applied, its step is still parked"
        case InboxKind.APPROVAL:
            if note is not None and note.what == "approve" and note.answer is None:
                yield f"inbox item {item.number} is marked as applied, its question is still open"
        case InboxKind.EVIDENCE | InboxKind.CANCEL | InboxKind.RETRY | InboxKind.SAID:
            pass


def _possible(view: TaskView, last: Record) -> frozenset[TaskState]:
    """The states that a row may have behind this newest record."""
    match last.kind:
        case Kind.FINISHED:
            ended = view.finished or TaskState.FAILED
            again = (TaskState.QUEUED,) if ended is TaskState.FAILED else ()  # a person's retry
            return frozenset((ended, *again))
        case Kind.RESTED:
            told = view.rest.state
            rests = (TaskState(told),) if told else RESTING
            return frozenset((*rests, TaskState.QUEUED))
        case Kind.ACCEPTED | Kind.RESTORED:
            return frozenset((TaskState.QUEUED, *(ENDED if view.finished else ())))
        case Kind.CLAIMED | Kind.STEP | Kind.NOTE | Kind.ANSWER | Kind.FILES | Kind.CONTENT | Kind.REMARK:
            return frozenset((TaskState.RUNNING, TaskState.QUEUED))


def _odd_due(row: Row, state: TaskState, view: TaskView) -> Iterator[str]:
    rest = read_rest(view.rest.why)
    match state:
        case TaskState.SLEEPING:
            if isinstance(rest, Sleep) and row.due_ms != rest.due_ms:
                yield f"it is due at {row.due_ms}, its records say {rest.due_ms}"
        case TaskState.QUEUED | TaskState.RUNNING:
            if not isinstance(row.due_ms, int) or row.due_ms < 0:
                yield f"it is due at {row.due_ms}"
            elif state is TaskState.QUEUED and row.due_ms > _int(row.changed_ms):
                yield f"it is queued and due at {row.due_ms}, after it was queued"
        case _:
            if row.due_ms != NEVER_MS:
                yield f"it is {state} and due at {row.due_ms}"


def _odd_cancel(row: Row, inbox: Collection[InboxItem]) -> Iterator[str]:
    asked = any(item.kind is InboxKind.CANCEL for item in inbox)
    if row.cancel_asked not in (0, 1):
        yield f"the cancel mark is {row.cancel_asked!r}"
    elif row.cancel_asked and not asked:
        yield "the row says that a cancel was asked for; the inbox knows of none"


def _is_between(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and low <= value <= high


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
