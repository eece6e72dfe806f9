"""What one task adds to the hand-off: pure, from its row, its folded records and its inbox.

It asks nothing of the world and concludes nothing: a started step is called started, an open
question open. A started call of a task that no worker holds is in doubt, and called so, before any
worker has looked at it.

Values are those of the records, in which known secrets are swapped for their handles already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from holdfast.core.effect import CLASSES
from holdfast.core.rest import WaitsForApproval, read_rest
from holdfast.core.step import Event, StepState
from holdfast.journal.bodies import ApprovalGiven, DecisionGiven, PlanState, QuestionNote, TaskEnd
from holdfast.journal.contract import InboxItem, InboxKind, TaskRow
from holdfast.journal.records import ENDED, Note, Record, StepView, TaskState, TaskView
from holdfast.memory.handoff import Fact, counted, moment, quoted

RECENT_MAX = 20  # closed steps, of each task, that are looked at
PLAN_SHOWN_MAX = 8

# The most pressing first: what a person must do, then doubt, then what continues by itself.
RANK_DECIDE, RANK_APPROVE, RANK_DOUBT, RANK_ANSWERED, RANK_ALONE, RANK_LATER = range(6)
STATE_RANK = {
    TaskState.PARKED: 0,
    TaskState.WAITING: 1,
    TaskState.RUNNING: 2,
    TaskState.SLEEPING: 3,
    TaskState.QUEUED: 4,
}
_ANSWERED = "answered, and not carried out yet"
_SETTLED = {Event.SETTLE_DONE: "it was done", Event.SETTLE_SKIP: "skip it"}


class Death(NamedTuple):
    """A worker that left no word, and the one that took the task over from it."""

    worker: str
    session_id: str
    after: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One task's part of the four answers."""

    task_id: str
    name: str
    state: TaskState
    created_ms: int
    ended_ms: int = 0
    where: str = ""
    waits: str = ""  # for HEARTBEAT.md: what it waits for, without times
    pending: tuple[Fact, ...] = ()
    decided: tuple[Fact, ...] = ()
    changed: tuple[Fact, ...] = ()
    closed: Mapping[str, Fact] = field(default_factory=dict[str, Fact])  # those of `changed` that stay as they are
    deaths: tuple[Death, ...] = ()

    @property
    def rank(self) -> tuple[int, int]:
        return (STATE_RANK.get(self.state, 9), self.created_ms)


def facts_of(
    row: TaskRow,
    view: TaskView | None,
    inbox: Sequence[InboxItem] = (),
    *,
    held: bool = False,
    before: TaskFacts | None = None,
) -> TaskFacts:
    """The facts of a task; `view` is None where its records are erased or damaged.
    `held`: a living worker holds it, so that what is started is under way and not in doubt.
    `before`: the facts of an earlier look at it."""
    if view is None or not view.name:
        return _bare(row)
    # Every look passes here with each task that has changed: its steps are read once.
    left = [step for step in view.steps.values() if not step.closed]
    pending, waits = _pending(row, view, left, inbox, held=held)
    ended = row.state in ENDED
    closed = _closed(row, view, {} if before is None else before.closed)
    return _facts(
        row,
        where="" if ended else _where(row, view, left, held=held),
        waits=waits,
        pending=() if ended else tuple(pending),
        decided=tuple(_decided(row, view, inbox)),
        changed=tuple(_changed(row, view, closed.values())),
        closed=closed,
        deaths=tuple(_deaths(view)),
    )


def death_facts(tasks: Iterable[TaskFacts]) -> Iterable[Fact]:
    """One line for each worker that died, however many tasks it held."""
    found: dict[str, list[Death]] = {}
    for task in tasks:
        for death in task.deaths:
            found.setdefault(death.session_id, []).append(death)
    for deaths in found.values():
        first, held = min(deaths, key=lambda death: death.at_ms), counted(len(deaths), "tasks")
        yield _at(first.at_ms, f"{quoted(first.worker)} died with {held}; {quoted(first.after)} took over")


def ended_facts(row: TaskRow, newest: Record | None) -> TaskFacts:
    """The facts of an ended task by its last record alone."""
    if newest is None:
        return _bare(row)
    return _facts(row, changed=(_at(newest.at_ms, f"{_named(row)} ended: {_end_words(row, newest.end)}"),))


def _bare(row: TaskRow) -> TaskFacts:
    why = "its records are erased" if row.erased else "its records cannot be read"
    where = "" if row.state in ENDED else f"{_named(row)}: {row.state}; {why}"
    return _facts(row, where=where, changed=(Fact(at_ms=row.changed_ms, text=f"{_named(row)} is {row.state}; {why}"),))


def _facts(row: TaskRow, **parts: Any) -> TaskFacts:  # Any: the fields of TaskFacts
    row_fields = {name: getattr(row, name) for name in ("task_id", "name", "state", "created_ms")}
    return TaskFacts(**row_fields, ended_ms=row.changed_ms, **parts)


def _where(row: TaskRow, view: TaskView, left: Sequence[StepView], *, held: bool) -> str:
    parts = [f"{_named(row)}: {row.state}"]
    if row.state is TaskState.RUNNING:
        worker = view.claims[view.epoch].worker if view.epoch in view.claims else ""
        parts.append(f"held by {quoted(worker)}" if held else "its worker died")
    step = _current(left)
    if step is not None:
        parts.append(f"at step {step.ordinal} {step.tool}, {_state_words(step, held=held)}")
    elif view.steps:
        last = next(reversed(view.steps.values()))
        parts.append(f"after step {last.ordinal} {last.tool}, {last.state}")
    else:
        parts.append("no step begun")
    parts.append(f"{counted(len(view.steps) - len(left), 'steps')} closed")
    if row.cancel_asked:
        parts.append("asked to stop")
    if plan := plan_lines(view):
        parts.append(f"plan: {plan}")
    parts.append(f"arguments {quoted(view.args)}")
    return "; ".join(parts)


def _current(left: Sequence[StepView]) -> StepView | None:
    """The open step that matters most: parked, then in doubt, then under way."""
    order = (StepState.PARKED, StepState.UNKNOWN, StepState.STARTED, StepState.PLANNED)
    return min(left, key=lambda step: order.index(step.state), default=None)


def _state_words(step: StepView, *, held: bool) -> str:
    match step.state:
        case StepState.PLANNED:
            return "planned, not sent"
        case StepState.STARTED:
            since = moment(step.attempts[-1].at_ms) if step.attempts else "?"
            if held:
                return f"started {since}, no answer yet"
            return f"started {since}, and its worker died: whether it happened is in doubt"
        case StepState.UNKNOWN:
            return f"unknown ({quoted(step.doubt)}): whether it happened is in doubt"
        case StepState.PARKED:
            return "parked: a person decides"
        case closed:
            return closed.value


def _pending(
    row: TaskRow, view: TaskView, left: Sequence[StepView], inbox: Sequence[InboxItem], *, held: bool
) -> tuple[list[Fact], str]:
    found: list[Fact] = []
    answers = (InboxKind.APPROVAL, InboxKind.DECISION)
    answered = {item.ordinal for item in inbox if not item.applied and item.kind in answers}
    found += [_pending_step(row, view, step, answered, held=held) for step in left]
    for ordinal, note in view.notes.items():
        if note.what == "approve" and note.answer is None:
            place = f"{row.task_id}/{ordinal}"
            text = f"{place} ({row.name}) waits for a yes or no: {quoted(QuestionNote.read(note.body).question)}"
            found.append(_question(text, note.at_ms, place, ordinal in answered))
    waits = _waits(row, view, found)
    if not found and row.state is not TaskState.RUNNING:
        found.append(Fact(at_ms=row.changed_ms, text=f"{_named(row)} {waits}", rank=RANK_LATER))
    return found, waits


def _pending_step(row: TaskRow, view: TaskView, step: StepView, answered: set[str], *, held: bool) -> Fact:
    place = f"{row.task_id}/{step.ordinal}"
    what = f"{place} ({step.tool})"
    rank = RANK_ALONE
    match step.state:
        case StepState.PARKED:
            hint, rank = f"`holdfast effect show {place}`, then `holdfast effect settle {place}`", RANK_DECIDE
            if step.ordinal in answered:
                hint, rank = _ANSWERED, RANK_ANSWERED
            text = f"{what} is parked: {quoted(step.question)}; {hint}"
        case StepState.UNKNOWN:
            text, rank = f"{what} is in doubt: {quoted(step.doubt)}; the next worker reconciles it", RANK_DOUBT
        case StepState.STARTED if not held and step.letter != "R":
            rank = RANK_DOUBT
            text = (
                f"{what} was started and its outcome is unknown; it is "
                f"{CLASSES[step.letter].name}: the next worker reconciles it, do not repeat it"
            )
        case StepState.STARTED:
            text = f"{what} was sent and has no answer yet, arguments {quoted(step.args)}"
        case StepState.PLANNED if _asks(view, step):
            text = f"{what} waits for a yes or no, arguments {quoted(step.args)}"
            return _question(text, step.planned_ms, place, step.ordinal in answered)
        case _:
            text = f"{what} is planned and was not sent"
    return Fact(at_ms=step.planned_ms, text=text, rank=rank)


def _asks(view: TaskView, step: StepView) -> bool:
    """A call that needs no yes is planned and started by one record: one that was never started
    and never parked waits for its yes, while the task runs or waits for approval."""
    if step.attempts or step.parked is not None:
        return False
    running = not view.rested and view.finished is None
    return running or isinstance(read_rest(view.rest.why), WaitsForApproval)


def _question(text: str, at_ms: int, place: str, answered: bool) -> Fact:
    if answered:
        return Fact(at_ms=at_ms, text=f"{text}; {_ANSWERED}", rank=RANK_ANSWERED)
    return Fact(at_ms=at_ms, text=f"{text}; `holdfast approval grant {place}` or refuse", rank=RANK_APPROVE)


def _waits(row: TaskRow, view: TaskView, found: Sequence[Fact]) -> str:
    pressing = min((fact.rank for fact in found), default=RANK_LATER)
    if pressing == RANK_DECIDE or (row.state is TaskState.PARKED and pressing > RANK_APPROVE):
        return f"is parked: {quoted(view.rest.question or 'a person must decide')}"
    if pressing == RANK_APPROVE:
        return "waits for a yes or no"
    if pressing == RANK_DOUBT:
        return "has an effect in doubt"
    match row.state:
        case TaskState.SLEEPING:
            return f"sleeps until {moment(row.due_ms)[:19]} UTC"
        case TaskState.WAITING:
            return f"waits: {quoted(view.rest.why)}"
        case TaskState.QUEUED:
            return "waits for a worker"
        case _:
            return "is under way"


def _decided(row: TaskRow, view: TaskView, inbox: Sequence[InboxItem]) -> Iterable[Fact]:
    for ordinal, note in view.notes.items():
        if note.what == "approve" and note.answer is not None:
            yield _answer(row, ordinal, note)
    for step in view.steps.values():
        if step.by or step.ending in _SETTLED:
            word = "run it" if step.ending is None else _SETTLED.get(step.ending, "it happened")
            text = f"{row.task_id}/{step.ordinal} ({step.tool}): {quoted(step.by)} decided: {word}"
            note = f"; {quoted(step.note)}" if step.note else ""
            yield Fact(at_ms=step.closed_ms or step.planned_ms, text=text + note)
    for item in inbox:
        if not item.applied:
            yield from _dropped(row, item)


def _answer(row: TaskRow, ordinal: str, note: Note) -> Fact:
    answer = ApprovalGiven.read(note.answer or {})
    said = "granted" if answer.granted else "refused"
    why = f"; {quoted(answer.note)}" if answer.note else ""
    text = f"{row.task_id}/{ordinal} ({row.name}): {quoted(QuestionNote.read(note.body).question)} was {said}"
    return Fact(at_ms=note.answered_ms, text=f"{text} by {quoted(answer.by)}{why}")


def _dropped(row: TaskRow, item: InboxItem) -> Iterable[Fact]:
    place, by = f"{row.task_id}/{item.ordinal}".rstrip("/"), quoted(item.body.get("by"))
    match item.kind:
        case InboxKind.APPROVAL:
            said = "granted" if ApprovalGiven.read(item.body).granted else "refused"
            text = f"{place}: {said} by {by}; not carried out yet"
        case InboxKind.DECISION:
            text = f"{place}: {by} decided {quoted(DecisionGiven.read(item.body).decision)}; not carried out yet"
        case InboxKind.CANCEL:
            text = f"{place} ({row.name}): {by} asked it to stop; not carried out yet"
        case _:
            return
    yield Fact(at_ms=item.at_ms, text=text)


def _closed(row: TaskRow, view: TaskView, known: Mapping[str, Fact]) -> dict[str, Fact]:
    """A line for each of the newest closed steps; nothing about a closed step changes any more."""
    return {
        step.ordinal: known.get(step.ordinal)
        or _at(step.closed_ms, f"{row.task_id}/{step.ordinal} ({step.tool}) {_closed_words(step)}")
        for step in islice(reversed(view.steps.values()), RECENT_MAX)
        if step.closed and step.letter != "R"
    }


def _changed(row: TaskRow, view: TaskView, closed: Iterable[Fact]) -> Iterable[Fact]:
    if row.state in ENDED:
        yield _at(view.ended_ms or row.changed_ms, f"{_named(row)} ended: {_end_words(row, view.end)}")
    yield from closed
    yield _at(view.accepted_ms, f"{_named(row)} was submitted")


def _deaths(view: TaskView) -> Iterable[Death]:
    for lost, taken in view.lost.items():
        claim, after = view.claims.get(lost), view.claims.get(taken)
        if claim is not None and after is not None:
            yield Death(claim.worker, claim.session_id, after.worker, after.at_ms)


def _closed_words(step: StepView) -> str:
    if step.state is StepState.SUCCEEDED:
        return f"succeeded: {quoted(step.result)}"
    if step.state is StepState.FAILED:
        failure = step.failure
        return f"failed: {quoted((failure.proof if failure.proven else None) or failure.text)}"
    return f"was skipped: {quoted(step.note)}"


def _end_words(row: TaskRow, end: TaskEnd) -> str:
    if row.state is TaskState.SUCCEEDED:
        return f"succeeded: {quoted(end.result)}"
    if row.state is TaskState.FAILED:
        return f"failed: {quoted(end.text)}"
    return row.state.value


def plan_lines(view: TaskView) -> str:
    """The plan in one line: what is under way and what is next, and how much is done."""
    items = view.plan
    if not items:
        return ""
    left = [item for item in items if item.state not in (PlanState.DONE, PlanState.DROPPED)]
    shown = [f"{item.state} {quoted(item.title)}" for item in left[:PLAN_SHOWN_MAX]]
    more = [f"{len(left) - len(shown)} more"] if len(left) > len(shown) else []
    return ", ".join([f"{len(items) - len(left)} of {len(items)} done", *shown, *more])


def _named(row: TaskRow) -> str:
    return f"task {row.task_id} {row.name}"


def _at(at_ms: int, text: str) -> Fact:
    return Fact(at_ms=at_ms, text=f"{moment(at_ms)[:19]} {text}")
