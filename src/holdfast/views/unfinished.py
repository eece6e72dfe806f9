"""What unfinished tasks wait for: questions to a person, in all tasks of a journal; and which of them send a secret."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from holdfast.core.ids import TaskId
from holdfast.core.ordinal import sort_key
from holdfast.core.rest import WaitsForApproval, read_rest
from holdfast.errors import JournalDamaged
from holdfast.journal.bodies import QuestionNote
from holdfast.journal.contract import Filter, InboxItem, Journal
from holdfast.journal.records import ENDED, StepView, TaskState, TaskView
from holdfast.runtime.secrets import pins_of
from holdfast.runtime.step.decisions import find_approval, waits_for_yes
from holdfast.runtime.step.facts import approval_binding

TASKS_MAX = 100_000
_ASKING = frozenset((TaskState.WAITING, TaskState.RUNNING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One question without an answer."""

    task_id: TaskId
    ordinal: str
    task_name: str
    question: str
    details: object
    at_ms: int


async def list_approvals(journal: Journal) -> list[Waiting]:
    """Every question that waits and has no answer yet, oldest task first. Also of running tasks: one call may wait
    while a parallel one is slow. The worker reports a running task that is damaged."""
    rows = await journal.list_tasks(Filter(states=_ASKING, limit=TASKS_MAX, newest_first=False))
    found: list[Waiting] = []
    for row in rows:
        try:
            view = await journal.read_task(row.task_id)
        except JournalDamaged:
            if row.state is TaskState.WAITING:
                raise
            continue
        asked = questions_of(view)
        if asked:
            items = await journal.inbox_of(row.task_id)
            found += [one for one in asked if not _is_answered(view, one.ordinal, items)]
    return found


def _is_answered(view: TaskView, ordinal: str, items: list[InboxItem]) -> bool:
    step = view.steps.get(ordinal)
    return find_approval(items, ordinal, UNSET if step is None else approval_binding(step)) is not None


def questions_of(view: TaskView) -> list[Waiting]:
    """The open questions of one task: those of its code, and calls that need a yes."""
    found = [
        Waiting(
            task_id=view.task_id,
            ordinal=ordinal,
            task_name=view.name,
            question=str(asked.question),
            details=asked.details,
            at_ms=note.at_ms,
        )
        for ordinal, note in view.notes.items()
        if note.what == "approve" and note.answer is None and (asked := QuestionNote.read(note.body))
    ]
    running = not view.rested and view.finished is None
    if running or isinstance(read_rest(view.rest.why), WaitsForApproval):
        found += [
            Waiting(
                task_id=view.task_id,
                ordinal=step.ordinal,
                task_name=view.name,
                question=_question(step),
                details=step.args,
                at_ms=step.planned_ms,
            )
            for step in view.steps.values()
            if waits_for_yes(view, step)
        ]
    return found


def _question(step: StepView) -> str:
    asked = f"may {step.tool} be called?"
    said = step.planned.gate
    return asked if said is None else f"{asked} {said.why}"


USERS_TASKS_MAX = 10_000


async def find_users(journal: Journal, name: str, *, below: int | None = None) -> list[str]:
    """TASK/ORDINAL of each open step that recorded this secret; only versions below the number.
    Reads the oldest 10,000 open tasks; skips damaged ones."""
    states = frozenset(state for state in TaskState if state not in ENDED)
    rows = await journal.list_tasks(Filter(states=states, limit=USERS_TASKS_MAX, newest_first=False))
    found: list[str] = []
    for row in rows:
        try:
            view = await journal.read_task(row.task_id)
        except JournalDamaged:
            continue
        for ordinal in sorted(view.steps, key=sort_key):
            step = view.steps[ordinal]
            version = dict(pins_of(step)).get(name)
            if version is not None and not step.closed and (below is None or version < below):
                found.append(f"{row.task_id}/{ordinal}")
    return found
