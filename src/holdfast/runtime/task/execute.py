"""Running one claimed task to its next rest or to its end.

Whatever the task's code does, exactly one record ends the run: finished, or rested with the
reason. A fenced run writes nothing more: another worker owns the task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, assert_never, cast

from holdfast import errors
from holdfast.core import rest as rests
from holdfast.core.clock import iso
from holdfast.core.effect import Keyed
from holdfast.core.notices import Notice, approval_notice, task_parked_notice
from holdfast.core.step import StepState
from holdfast.core.values import checked, encode
from holdfast.core.waiting import is_closed_from_outside
from holdfast.host.traces import WHERE_CHARS_MAX, cut_trace, trace_of
from holdfast.journal.contract import Change, InboxKind
from holdfast.journal.records import ENDED, Body, NewRecord, RecordKind, StepView, TaskState, TaskView
from holdfast.runtime.gate.guard import Guard, OnRefused, silent
from holdfast.runtime.scratch.scratch import CANNOT_KEEP
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step.code_changes import MARKS, HeadChanges, Report, note_changes
from holdfast.runtime.step.sending import REASON_CHARS_MAX
from holdfast.runtime.task.awaited import check_awaited
from holdfast.runtime.task.run import Run
from holdfast.runtime.task.task import TaskType

TEXT_CHARS_MAX = 2_000


async def execute(
    task: TaskType, run: Run, writer: TaskWriter, *, on_change: Report, on_refused: OnRefused = silent
) -> TaskState | None:
    """Run the task's code; the state it ended in, or None where the run was fenced."""
    if writer.cancelled and not writer.view.steps and not writer.view.notes.keys() - {MARKS}:
        return await _finish(writer, TaskState.CANCELLED, {})  # asked before it had begun
    if task.gate is not None:
        run.steps.guard = Guard(task.gate, writer, on_refused=on_refused)
    try:
        park = task.on_change == "park"
        note_changes(writer, task.digests, park=park, report=on_change)
        run.steps.changes = HeadChanges(writer=writer, park=park, report=on_change)
        return await _succeed(task, writer, await _run_code(task, run, writer))
    except errors.RunFenced:
        return None
    except errors.Cancelled:
        return await _finish(writer, TaskState.CANCELLED, {})
    except rests.Suspended as signal:
        return await _rest(writer, signal.rest)
    except asyncio.CancelledError as error:
        if not writer.stopping:
            return await _fail(writer, error)
        await _give_back(writer)
        raise
    except (
        errors.InvariantViolated,
        errors.JournalStopped,
        errors.JournalGone,
        errors.JournalDamaged,
        errors.ReadOnly,
    ):
        raise  # the journal's trouble is not the code's outcome
    except BaseException as error:  # whatever the user's code raises ends the task, an exit too
        if is_closed_from_outside(error):
            raise
        return await _fail(writer, error)


async def _run_code(task: TaskType, run: Run, writer: TaskWriter) -> object:
    """What the code returned or raised, once nothing that it began is under way any more. A signal counts more than
    whatever the code has made of it."""
    args = cast("dict[str, Any]", writer.view.args or {})
    error: BaseException | None = None
    result: object = None
    try:
        result = await task.start(run, args)
    except BaseException as raised:  # kept until what the code began has ended
        if is_closed_from_outside(raised):
            raise
        error = raised
    stopped = isinstance(error, asyncio.CancelledError) and writer.stopping
    if not isinstance(error, errors.RunFenced) and not stopped:
        await run.steps.end_all()
    if run.signal is not None and not stopped:
        raise run.signal from None
    if error is not None:
        raise error
    check_awaited(run.steps)
    return result


async def _succeed(task: TaskType, writer: TaskWriter, result: object) -> TaskState | None:
    try:
        kept = writer.secrets.value(checked(result, what=f"result of {task.name}"))
        encode(kept, what=f"result of {task.name}")
    except (errors.BadValue, errors.TooLarge) as error:
        return await _fail(writer, error)
    try:
        return await _finish(writer, TaskState.SUCCEEDED, {"result": kept})
    except CANNOT_KEEP as error:
        return await _fail(writer, error)


async def _fail(writer: TaskWriter, error: BaseException) -> TaskState | None:
    clean, trace = writer.secrets.text, trace_of(error)
    body: Body = {"kind": type(error).__name__, "text": clean(errors.text_of(error))[:TEXT_CHARS_MAX]}
    if isinstance(error, errors.HoldfastError):
        body["code"] = error.code
    if trace.text:
        body |= {"where": clean(trace.where)[:WHERE_CHARS_MAX], "trace": cut_trace(clean(trace.text))}
    # A task that was asked to stop has stopped, whatever its code made of the skipped step.
    return await _finish(writer, TaskState.CANCELLED if writer.cancelled else TaskState.FAILED, body)


async def rest_as_defect(writer: TaskWriter, error: errors.InvariantViolated) -> TaskState | None:
    """A promise of our own code broke in this task: it rests for a person, not for the next run."""
    return await _rest(writer, rests.NeedsPerson(f"defect: {error.message}"))


async def _finish(writer: TaskWriter, state: TaskState, body: Body) -> TaskState | None:
    step = open_step(writer)
    if step is not None:
        # The code gave up while an effect is in doubt: the doubt outlives the code.
        return await _rest(writer, rests.Parked() if step.state is StepState.PARKED else rests.BrokenOff())
    if writer.scratch is not None:
        await writer.scratch.end(strict=state is TaskState.SUCCEEDED)
    entry = NewRecord(kind=RecordKind.FINISHED, body={"state": state.value, **body})
    change = Change(state=state, keep_until_ms=keep_until_ms(writer))
    return await _end(writer, entry, change)


async def _rest(writer: TaskWriter, rest: rests.Rest) -> TaskState | None:
    """Record why the run ends here, and when or by what the task is resumed."""
    body: Body = {"why": rest.text}
    notice: Notice | None = None
    due_ms: int | None = None
    match rest:
        case rests.Stopping():
            await _give_back(writer)
            return TaskState.QUEUED
        case rests.Sleep():
            state, due_ms = TaskState.SLEEPING, rest.due_ms
        case rests.WaitsForApproval():
            state, notice = TaskState.WAITING, waits_for_approval(writer)
        case rests.WaitsForMessage():
            state = TaskState.WAITING
        case rests.BrokenOff():
            state = TaskState.QUEUED
        case rests.Parked():
            state = TaskState.PARKED
            step = open_step(writer)
            if step is not None:
                body.update({"ordinal": step.ordinal, "question": step.question})
        case rests.Diverged() | rests.NeedsPerson():
            state, body["question"] = TaskState.PARKED, rest.text
            if isinstance(rest, rests.Diverged) and rest.detail:
                body["detail"] = rest.detail
            view, now_ms = writer.view, writer.journal.now_ms()
            notice = task_parked_notice(view.task_id, view.name, rest.text, epoch=writer.hold.epoch, now_ms=now_ms)
        case _:
            assert_never(rest)
    body["state"] = state.value
    entry = NewRecord(kind=RecordKind.RESTED, body=body)
    return await _end(writer, entry, Change(state=state, due_ms=due_ms, notice=notice))


async def _give_back(writer: TaskWriter) -> None:
    """The worker stops: the task goes back to the queue at once, for another one."""
    if writer.fenced:
        with contextlib.suppress(errors.RunFenced):
            await writer.flush()  # leaves what is known as evidence
        return
    entry = NewRecord(kind=RecordKind.RESTED, body={"state": "queued", "why": rests.Stopping().text})
    await _end(writer, entry, Change(state=TaskState.QUEUED))


async def _end(writer: TaskWriter, entry: NewRecord, change: Change) -> TaskState | None:
    # Cancels and retries are answered by the run having ended; the rest stays for the next one.
    answered = {InboxKind.RETRY, *((InboxKind.CANCEL,) if change.state in ENDED else ())}
    applied = tuple(item.number for item in writer.inbox if item.kind in answered)
    try:
        await writer.write([entry], change=change, applied=applied)
    except errors.RunFenced:
        return None
    return change.state


def why_ended(view: TaskView) -> dict[str, str]:
    """Why the run that has just ended did so, for the log: an error's message in part, no other payload."""
    end, rest = view.end, view.rest
    if view.finished is not None:
        why = {"why": f"{end.kind}: {end.text}"[:REASON_CHARS_MAX], "where": end.where}
        return why if end.kind else {}
    slept = rests.read_rest(rest.why)
    why_rested = f"sleeping until {iso(slept.due_ms)}" if isinstance(slept, rests.Sleep) else rest.question or rest.why
    return {"why": why_rested}


def open_step(writer: TaskWriter) -> StepView | None:
    """A step that may have had an effect and is not closed; parked ones first."""
    found = [
        step
        for step in _kept_steps(writer)
        if step.step is not None and not step.closed and (step.state is StepState.PARKED or step.step.maybe_sent > 0)
    ]
    found.sort(key=lambda step: step.state is not StepState.PARKED)
    return found[0] if found else None


def keep_until_ms(writer: TaskWriter) -> int:
    """Until when a far end may still remember a key of this task."""
    return max(
        (
            step.attempts[0].at_ms + step.planned.window_ms
            for step in _kept_steps(writer)
            if step.letter == Keyed.letter and step.attempts
        ),
        default=0,
    )


def _kept_steps(writer: TaskWriter) -> Iterable[StepView]:
    """The steps of the view, each once: those of one tool whose payload the run has left out are the same object."""
    return dict.fromkeys(writer.view.steps.values())


def waits_for_approval(writer: TaskWriter) -> Notice:
    view = writer.view
    asked = [
        *(key for key, note in view.notes.items() if note.what == "approve" and note.answer is None),
        *(key for key, step in view.steps.items() if step.state is StepState.PLANNED),
    ]
    return approval_notice(view.task_id, view.name, asked, now_ms=writer.journal.now_ms())
