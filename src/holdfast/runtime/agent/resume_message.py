"""What happened while the model was away, in one message: pure, from a task's view to words.

A model that is asked again after its worker died would believe what its talk says: that its calls
were made once. So the first request that is planned after such a death says
what became of each call of the reply before it: found done, sent again, decided by a person; in
words that are true of its class, because a model that is told "once" will not look for a second. A
request knows its own epoch, so nothing is told twice: what happened between the epoch of the request
before and that of this one is told in this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import assert_never

from holdfast.core.effect import CLASSES
from holdfast.core.step import Event, StepState
from holdfast.journal.records import StepView, TaskView
from holdfast.journal.rules import COUNTER_BITS

OPENING = "[From the runtime, not from the user.] While you were away: "


def resume_message(view: TaskView, *, since: int, now: int, calls: Sequence[tuple[int, str, StepView | None]]) -> str:
    """What to tell of the time between two epochs; empty where nothing happened.

    `calls` are those of the newest reply: number, tool, the step that it became.
    """
    deaths = [taken for lost, taken in view.lost.items() if since <= lost and taken <= now]
    restored = since >> COUNTER_BITS != now >> COUNTER_BITS
    if not deaths and not restored:
        return ""
    told = [*_deaths(view, deaths)]
    if restored:
        told.append(
            "the journal was restored from an older copy of "
            f"{_clock(view.restored_ms)}; what was done after that was looked up where it could be"
        )
    fates = [
        f"call {number} ({tool}) {fate}"
        for number, tool, step in calls
        if step is not None and (fate := _fate(view, step))
    ]
    told += fates or (["none of your calls was in doubt"] if calls else [])
    return OPENING + "; ".join(told) + "."


def _deaths(view: TaskView, epochs: Sequence[int]) -> Iterable[str]:
    if not epochs:
        return
    at = _clock(view.claims[epochs[-1]].at_ms)
    if len(epochs) == 1:
        yield f"the worker died, and another one took over at {at}"
    else:
        yield f"the worker died {len(epochs)} times; the newest one took over at {at}"


def _fate(view: TaskView, step: StepView) -> str:
    """What became of a call that was open when the worker died; empty where it was not."""
    match step.ending:
        case Event.FIND if (found := step.found_at) is not None and found.with_others:
            return "was not made: it was looked up and found done with other arguments"
        case Event.FIND:
            return "had been made before; it was looked up and found done once"
        case Event.ADOPT:
            return f"had been made before; {step.by or 'evidence'} says that it was done"
        case Event.SETTLE_DONE:
            return "was in doubt; a person says that it was done"
        case Event.SETTLE_SKIP:
            return "was in doubt; a person decided that it is not made"
        case _:
            pass
    epochs = {attempt.epoch for attempt in step.attempts}
    again = ""
    if len(epochs) > 1 and any(epoch in view.lost for epoch in epochs):
        again = _again(step)
    if not _run_by_person(step):
        return again
    decided = "was in doubt; a person decided to run it again"
    return f"{decided}; then it {again}" if again else decided + _failed(step)


def _run_by_person(step: StepView) -> bool:
    """Only a person starts a parked step again; its attempts are counted from then on."""
    started = step.attempts[0].epoch if step.attempts else 0
    return step.parked is not None and started > step.parked[0]


def _again(step: StepView) -> str:
    """What a repeat means, by the contract of its class and by what the row has counted."""
    if not CLASSES[step.letter].changes_nothing and step.step is not None and step.step.maybe_sent < 2:
        return "had not taken effect before and was made again" + _failed(step)
    match step.letter:
        case "R":
            return "was asked again"
        case "T":
            return "had changed nothing yet and was made again"
        case "F" | "K":
            once = ", so that it took effect once"
            told = "was sent again under the same key"
            return told + (once if step.state is StepState.SUCCEEDED else _failed(step))
        case "Q":
            return "was looked up, not found and sent again" + _failed(step)
        case "I":
            if step.state is StepState.FAILED:
                return "was done again, and failed"
            return "was done again; the end state is that of doing it once"
        case "N":
            return "was sent again and may have happened twice" + _failed(step)
        case _:
            assert_never(step.letter)


def _failed(step: StepView) -> str:
    return ", and failed" if step.state is StepState.FAILED else ""


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
