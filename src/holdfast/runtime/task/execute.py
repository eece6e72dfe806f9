"""Running one claimed task to its next rest or to its end.

Whatever the task's code does, exactly one record ends the run: finished, or rested with the
reason. A fenced run writes nothing more: another worker owns the task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

from holdfast.core.effect import Keyed
from holdfast.core.ports import Notice
from holdfast.core.step import StepState
from holdfast.core.values import checked, encode
from holdfast.core.waiting import is_closed_from_outside
from holdfast.errors import (
    BadValue,
    Cancelled,
    HoldfastError,
    InvariantViolated,
    JournalDamaged,
    JournalStopped,
    ReadOnly,
    RunFenced,
    Suspended,
    TooLarge,
    text_of,
)
from holdfast.journal.contract import Change, InboxKind
from holdfast.journal.records import ENDED, Body, Entry, Kind, StepView, TaskState
from holdfast.runtime.gate.guard import Guard, OnRefused, silent
from holdfast.runtime.scratch.scratch import CANNOT_KEEP
from holdfast.runtime.session.task_writer import STOPPING, Book
from holdfast.runtime.step.code_changes import MARKS, Changes, note_marks
from holdfast.runtime.task.run import Run
from holdfast.runtime.task.task import TaskType

TEXT_CHARS_MAX = 2_000


async def execute(
    task: TaskType, run: Run, book: Book, *, on_change: Callable[[list[str]], None], on_refused: OnRefused = silent
) -> TaskState | None:
    """Run the task's code; the state it ended in, or None where the run was fenced."""
    if book.cancelled and not book.view.steps and not book.view.notes.keys() - {MARKS}:
        return await _finish(book, TaskState.CANCELLED, {})  # asked before it had begun
    if task.gate is not None:
        run.steps.guard = Guard(task.gate, book, on_refused=on_refused)
    try:
        park = task.on_change == "park"
        note_marks(book, task.marks, park=park, report=on_change)
        run.steps.changes = Changes(book, park=park, report=on_change)
        return await _succeed(task, book, await _run_code(task, run, book))
    except RunFenced:
        return None
    except Cancelled:
        return await _finish(book, TaskState.CANCELLED, {})
    except Suspended as signal:
        return await _rest(book, signal.reason)
    except asyncio.CancelledError as error:
        if not book.stopping:
            return await _fail(book, error)
        await _give_back(book)
        raise
    except (InvariantViolated, JournalStopped, JournalDamaged, ReadOnly):
        raise  # the journal's trouble is not the code's outcome
    except BaseException as error:
        if is_closed_from_outside(error):
            raise
        return await _fail(book, error)


async def _run_code(task: TaskType, run: Run, book: Book) -> object:
    """What the code returned or raised, once nothing that it began is under way any more.

    A signal counts more than whatever the code has made of it.
    """
    args = cast("dict[str, Any]", book.view.accepted.get("args") or {})
    error: BaseException | None = None
    result: object = None
    try:
        result = await task.start(run, args)
    except BaseException as raised:
        if is_closed_from_outside(raised):
            raise
        error = raised
    stopped = isinstance(error, asyncio.CancelledError) and book.stopping
    if not isinstance(error, RunFenced) and not stopped:
        await run.steps.end_all()
    if run.signal is not None and not stopped:
        raise run.signal from None
    if error is not None:
        raise error
    return result


async def _succeed(task: TaskType, book: Book, result: object) -> TaskState | None:
    try:
        kept = book.secrets.value(checked(result, what=f"result of {task.name}"))
        encode(kept, what=f"result of {task.name}")
    except (BadValue, TooLarge) as error:
        return await _fail(book, error)
    try:
        return await _finish(book, TaskState.SUCCEEDED, {"result": kept})
    except CANNOT_KEEP as error:
        return await _fail(book, error)


async def _fail(book: Book, error: BaseException) -> TaskState | None:
    text = book.secrets.text(text_of(error))
    body: Body = {"kind": type(error).__name__, "text": text[:TEXT_CHARS_MAX]}
    if isinstance(error, HoldfastError):
        body["code"] = error.code
    # A task that was asked to stop has stopped, whatever its code made of the skipped step.
    return await _finish(book, TaskState.CANCELLED if book.cancelled else TaskState.FAILED, body)


async def rest_as_defect(book: Book, error: InvariantViolated) -> TaskState | None:
    """A promise of our own code broke in this task: it rests for a person, not for the next run."""
    return await _rest(book, f"defect: {error.message}")


async def _finish(book: Book, state: TaskState, body: Body) -> TaskState | None:
    step = open_step(book)
    if step is not None:
        # The code gave up while an effect is in doubt: the doubt outlives the code.
        return await _rest(book, "parked" if step.state is StepState.PARKED else "broken-off")
    if book.scratch is not None:
        await book.scratch.end(strict=state is TaskState.SUCCEEDED)
    entry = Entry(kind=Kind.FINISHED, body={"state": state.value, **body})
    change = Change(state=state, keep_until_ms=keep_until_ms(book))
    return await _end(book, entry, change)


async def _rest(book: Book, reason: str) -> TaskState | None:
    """Record why the run ends here, and when or by what it goes on."""
    if reason == STOPPING:
        await _give_back(book)
        return TaskState.QUEUED
    word, _, rest = reason.partition(" ")
    body: Body = {"why": reason}
    notice: Notice | None = None
    due_ms: int | None = None
    match word:
        case "sleeping":
            state, due_ms = TaskState.SLEEPING, int(rest)
        case "approval":
            state, notice = TaskState.WAITING, approval_notice(book)
        case "waiting":
            state = TaskState.WAITING
        case "broken-off":
            # The code has left a call before its end. The call has come to its end without the
            # code; run again, the code gets what it gave.
            state = TaskState.QUEUED
        case "parked":
            state = TaskState.PARKED
            step = open_step(book)
            if step is not None:
                body.update({"ordinal": step.ordinal, "question": step.question})
        case _:
            state = TaskState.PARKED
            body["question"] = reason
            notice = _task_notice(book, reason)
    body["state"] = state.value
    entry = Entry(kind=Kind.RESTED, body=body)
    return await _end(book, entry, Change(state=state, due_ms=due_ms, notice=notice))


async def _give_back(book: Book) -> None:
    """The worker stops: the task goes back to the queue at once, for another one."""
    if book.fenced:
        with contextlib.suppress(RunFenced):
            await book.flush()  # leaves what is known as evidence
        return
    entry = Entry(kind=Kind.RESTED, body={"state": "queued", "why": "the worker stopped"})
    await _end(book, entry, Change(state=TaskState.QUEUED))


async def _end(book: Book, entry: Entry, change: Change) -> TaskState | None:
    # Cancels and retries are answered by the run having ended; the rest stays for the next one.
    answered = {InboxKind.RETRY, *((InboxKind.CANCEL,) if change.state in ENDED else ())}
    applied = tuple(item.number for item in book.inbox if item.kind in answered)
    try:
        await book.write([entry], change=change, applied=applied)
    except RunFenced:
        return None
    return change.state


def open_step(book: Book) -> StepView | None:
    """A step that may have had an effect and is not closed; parked ones first."""
    found = [step for step in book.view.steps.values() if _in_doubt(step)]
    found.sort(key=lambda step: step.state is not StepState.PARKED)
    return found[0] if found else None


def _in_doubt(step: StepView) -> bool:
    if step.closed or step.step is None:
        return False
    return step.state is StepState.PARKED or step.step.maybe_sent > 0


def keep_until_ms(book: Book) -> int:
    """Until when a far end may still remember a key of this task."""
    return max(
        (
            step.attempts[0].at_ms + int(step.body.get("window_ms") or 0)
            for step in book.view.steps.values()
            if step.letter == Keyed.letter and step.attempts
        ),
        default=0,
    )


def approval_notice(book: Book) -> Notice:
    view = book.view
    asked = [
        *(key for key, note in view.notes.items() if note.what == "approve" and note.answer is None),
        *(key for key, step in view.steps.items() if step.state is StepState.PLANNED),
    ]
    ordinal = asked[0] if asked else ""
    return Notice(
        notice_id=f"approval/{view.task_id}/{','.join(asked)}"[:500],
        kind="approval",
        task_id=view.task_id,
        ordinal=ordinal,
        text=f"task {view.task_id} ({view.name}) waits for an approval of {', '.join(asked)}",
        hint=f"`holdfast approval list`, then `holdfast approval grant {view.task_id}/{ordinal}`",
        at_ms=book.journal.now_ms(),
    )


def _task_notice(book: Book, reason: str) -> Notice:
    view = book.view
    return Notice(
        notice_id=f"parked/{view.task_id}/{book.hold.epoch}",
        kind="parked",
        task_id=view.task_id,
        text=f"task {view.task_id} ({view.name}) is parked: {reason}",
        hint=f"`holdfast task show {view.task_id}`, then `holdfast task retry {view.task_id}`",
        at_ms=book.journal.now_ms(),
    )
