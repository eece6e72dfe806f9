"""What unfinished tasks wait for: everything that a person must decide; and which of them send a secret."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from holdfast.core.ids import TaskId
from holdfast.core.ordinal import sort_key
from holdfast.core.rest import WaitsForApproval, WaitsForMessage, read_rest
from holdfast.core.step import StepState
from holdfast.errors import JournalDamaged
from holdfast.journal.bodies import QuestionNote
from holdfast.journal.contract import Filter, InboxItem, Journal, TaskRow
from holdfast.journal.records import ENDED, StepView, TaskState, TaskView
from holdfast.runtime.secrets import pins_of
from holdfast.runtime.step.decisions import find_approval, waits_for_yes
from holdfast.runtime.step.facts import approval_binding
from holdfast.views.tasks import conversation_of, is_in_doubt, next_try_ms

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Todo:
    """One thing that waits for a person, and the command to begin with."""

    kind: str  # effect, approval, task, damage, worker
    about: str  # TASK/ORDINAL, or TASK
    name: str  # the tool or the task
    text: str
    command: str
    since_ms: int


async def list_todo(journal: Journal) -> list[Todo]:
    """Everything in this journal that waits for a person, oldest first."""
    sessions = {session.session_id: session for session in await journal.list_sessions()}
    served = any(session.alive for session in sessions.values())
    found = [_approval(one) for one in await list_approvals(journal)]
    for row in await journal.list_tasks(Filter(states=frozenset(TaskState) - ENDED, limit=TASKS_MAX)):
        if row.records < 3 and row.state is not TaskState.PARKED:
            continue  # accepted and claimed only: no step yet
        try:
            view = await journal.read_task(row.task_id)
        except JournalDamaged as error:
            found.append(_of_task(row, "damage", error.message, "holdfast doctor --deep"))
            continue
        doubts = [step for step in view.steps.values() if is_in_doubt(view, step, sessions)]
        asked = [_of_step(view, step) for step in doubts if step.state is StepState.PARKED or not served]
        if row.state is TaskState.PARKED and not any(one.kind == "effect" for one in asked):
            question = view.rest.question or "its records are damaged"
            asked.append(_of_task(row, "task", question, f"holdfast task show {row.task_id}"))
        found += asked
    return sorted(found, key=lambda one: one.since_ms)


def _approval(one: Waiting) -> Todo:
    place = f"{one.task_id}/{one.ordinal}"
    command = f"holdfast approval grant {place}"
    return Todo(
        kind="approval", about=place, name=one.task_name, text=one.question, command=command, since_ms=one.at_ms
    )


def _of_task(row: TaskRow, kind: str, text: str, command: str) -> Todo:
    return Todo(kind=kind, about=row.task_id, name=row.name, text=text, command=command, since_ms=row.changed_ms)


def _of_step(view: TaskView, step: StepView) -> Todo:
    place = f"{view.task_id}/{step.ordinal}"
    parked = step.state is StepState.PARKED
    return Todo(
        kind="effect" if parked else "worker",
        about=place,
        name=step.tool,
        text=step.question if parked else "its outcome is unknown, and no worker is there to find out",
        command=f"holdfast effect show {place}" if parked else "holdfast worker APP",
        since_ms=step.attempts[-1].at_ms if step.attempts else step.planned_ms,
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What one task waits for, and the commands that end the wait."""

    text: str
    commands: tuple[str, ...] = ()
    due_ms: int = 0


def waits_of(row: TaskRow, view: TaskView, items: list[InboxItem]) -> list[Wait]:
    """What a task that has not ended waits for. Empty where it can run, or a parked question says it all."""
    if row.state in ENDED or row.state is TaskState.PARKED:
        return []
    waits: list[Wait] = []
    for one in questions_of(view) if row.state in _ASKING else ():
        place = f"{view.task_id}/{one.ordinal}"
        if _is_answered(view, one.ordinal, items):
            waits.append(Wait(text=f"a worker that takes your answer to step {one.ordinal}"))
        else:
            commands = (f"holdfast approval grant {place}", f"holdfast approval refuse {place}")
            waits.append(Wait(text=f"your answer to step {one.ordinal}: {one.question}", commands=commands))
    tried = [step for step in view.steps.values() if next_try_ms(step)]
    waits += [Wait(text=f"the next try of step {one.ordinal} ({one.tool})", due_ms=next_try_ms(one)) for one in tried]
    if row.state is TaskState.SLEEPING and not tried:
        waits.append(Wait(text="the end of its sleep", due_ms=row.due_ms))
    if row.state is TaskState.WAITING and isinstance(read_rest(view.rest.why), WaitsForMessage):
        waits.append(Wait(text=f"the next message of the conversation {conversation_of(view)!r}"))
    return waits


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
