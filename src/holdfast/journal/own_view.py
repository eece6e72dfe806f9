"""The owner's view of its task: what it has written itself, taken in without reading it back.

It is the fold of the same records (`records.py`), with two short ways. The two records of a plain step are taken in as
they are about to be written. Of a step that the run itself has closed it may keep only that it is closed (`left_out`):
the payloads are in the journal, and the memory of a long run does not grow with them.
"""

from __future__ import annotations

from holdfast.core.step import Event, apply_all
from holdfast.journal.records import Attempt, NewRecord, StepView, TaskView, as_kept, fence_of, fold, take_success

# The events of a plain step, in its two records. They are compared by `is`: what is made elsewhere takes the long way.
BEGIN = (Event.PLAN, Event.START)
SUCCESS = (Event.SUCCEED,)


def left_out(step: StepView) -> StepView:
    """What a run keeps of the steps of one tool that it has closed itself: that they are, and when the newest began.
    Their payloads are in the journal. Only for steps that neither the run nor the hand-off asks for again."""
    body = {name: value for name, value in step.body.items() if name != "args"}
    return StepView("", step.letter, step.step, step.tool, body, attempts=step.attempts)


def fold_own(view: TaskView, entry: NewRecord, number: int, epoch: int, at_ms: int, boot_ms: int) -> None:
    """Take into the owner's view what it has written itself: the same as `fold` of the record that it becomes. A plain
    step has two of them, so these two are taken without making the record."""
    events, ordinal = entry.events, entry.ordinal
    if epoch == view.epoch:
        if events is BEGIN and ordinal not in view.steps:
            body = entry.body
            letter = body["letter"]
            row = apply_all(None, events, epoch, entry.quiet, letter)
            first = Attempt(epoch, number, at_ms, boot_ms, entry.slot, fence_of(epoch, number))
            view.steps[ordinal] = step = StepView(
                ordinal, letter, row, body["tool"], body, entry.effect_key, entry.fingerprint, (first,)
            )
            step.planned_ms = at_ms
            view.seq += 1
            return
        if events is SUCCESS:
            step = view.steps[ordinal]
            step.step = apply_all(step.step, events, epoch, entry.quiet, step.letter)
            take_success(step, entry)
            step.closed_ms, step.ending, view.progress_epoch = at_ms, Event.SUCCEED, epoch
            view.seq += 1
            return
    fold(view, as_kept(entry, number=number, seq=view.seq + 1, epoch=epoch, at_ms=at_ms, boot_ms=boot_ms))
