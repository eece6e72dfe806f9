"""One tool call of a model's reply: what becomes of it, and what the model is told, also after a resume.

A call has its ordinal by its place in the recorded reply, so every run finds the same step. What the journal knows of
it decides: closed, its outcome is told; open, it is reconciled with its recorded arguments, and parked where its tool
is missing; unknown to the journal, it is new. A new call that cannot be made (no such tool, arguments that are none) is
refused by a note at its ordinal: recorded, and told like a tool's failure. So a tool that appears or vanishes between
two runs changes nothing that was told before.

What a model is told names no task, ordinal or effect key: it could only repeat them wrongly.

A model that is asked again after its worker died would believe what its talk says: that its calls were made once. So
the first request that is planned after such a death says what became of each call of the reply before it
(`resume_message`): found done, sent again, decided by a person; in words that are true of its class, because a model
that is told "once" will not look for a second. A request knows its own epoch, so nothing is told twice: what happened
between the epoch of the request before and that of this one is told in this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, assert_never, cast

from holdfast import errors
from holdfast.core.effect import CLASSES
from holdfast.core.ordinal import retry_slot
from holdfast.core.secret_handles import find_whole, handle
from holdfast.core.step import Event, StepState
from holdfast.core.values import Json, checked
from holdfast.journal.bodies import PlanNote, ToldNote
from holdfast.journal.records import Body, NewRecord, RecordKind, StepView, TaskView
from holdfast.journal.rules import COUNTER_BITS
from holdfast.runtime.models.reply import ToolCall
from holdfast.runtime.step.facts import MissingTool, outcome_of
from holdfast.runtime.step.plan import PLAN, SCHEMA, by_model, shown
from holdfast.runtime.step.sending import args_of
from holdfast.runtime.task.run import Run
from holdfast.runtime.task.talk import as_text
from holdfast.runtime.tool.tool import Tool
from holdfast.runtime.tool.validation import problems

RESULT_CHARS_MAX = 200_000  # of a result as a model is told it; the record has all of it
PROBLEMS_TOLD = 5
_PLAN_PARAMETERS = cast("dict[str, object]", SCHEMA["parameters"])

Tools = Mapping[str, Tool[..., Any]]


async def carry_out(run: Run, call: ToolCall, tools: Tools, *, plans: bool, unmade: str = "") -> ToldNote:
    """Bring one call to its end. Raises Signals where it cannot be brought there now. `unmade`: why no new call of this
    reply is made."""
    ordinal = run.take_ordinal()
    run.seek(0)  # `run.call` takes it again where the call is made
    view = run.steps.writer.view
    note = view.notes.get(ordinal)
    if note is not None:
        return _told_before(view, note.body)
    step = view.steps.get(ordinal)
    if step is None and unmade:
        return _refuse(run, ordinal, unmade)
    if step is None:
        return await _new(run, ordinal, call, tools, plans=plans)
    return await _outcome(run, ordinal, step, tools)


def last_slot(view: TaskView, ordinal: str) -> StepView | None:
    """The step at this ordinal, or the last of its retry slots."""
    found, number = view.steps.get(ordinal), 1
    while (again := view.steps.get(retry_slot(ordinal, number))) is not None:
        found, number = again, number + 1
    return found


async def _new(run: Run, ordinal: str, call: ToolCall, tools: Tools, *, plans: bool) -> ToldNote:
    if plans and call.tool == PLAN and call.arguments is not None:
        return _plan(run, ordinal, call.arguments)
    tool = tools.get(call.tool)
    why = _refusal(call, tool, tools, gated=run.steps.guard is not None, plans=plans)
    if why or tool is None:
        return _refuse(run, ordinal, why)
    try:
        result = await run.call(tool, **cast("dict[str, Any]", call.arguments))
        return ToldNote(told_result(result))
    except (errors.Misuse, errors.BadValue, errors.TooLarge, errors.ToolNotImportable) as error:
        if run.steps.writer.step(ordinal) is not None:
            raise
        return _refuse(run, ordinal, f"the call could not be made: {error.message}")
    except errors.ScratchNotKept as error:
        return _unkept(run, error)
    except errors.HoldfastError as error:
        return _failure(call.tool, error)


async def _outcome(run: Run, ordinal: str, step: StepView, tools: Tools) -> ToldNote:
    """What the journal says; an open call is brought to its end first."""
    tool = tools.get(step.tool)
    last = last_slot(run.steps.writer.view, ordinal) or step
    try:
        if last.closed:
            result = _recorded(run, last)
        elif tool is not None and tool.letter == last.letter:
            with run.open_step(ordinal):
                result = await run.steps.perform(tool, ordinal, args_of(step))
        elif last.state is StepState.PLANNED and last.parked is None:
            return ToldNote(
                text=f"the agent no longer has {step.tool}, or its effect class changed: it was not called", failed=True
            )
        else:
            with run.open_step(last.ordinal):  # by evidence or a person's word; parked until there is one
                result = _recorded(run, await run.steps.settle_open(MissingTool(last, tool), last))
        return ToldNote(told_result(result))
    except errors.ScratchNotKept as error:
        return _unkept(run, error)
    except errors.HoldfastError as error:
        return _failure(step.tool, error)


def _recorded(run: Run, step: StepView) -> Json:
    if run.steps.writer.scratch is not None:
        run.steps.writer.scratch.check_kept(step)
    return outcome_of(step)


def _unkept(run: Run, error: errors.ScratchNotKept) -> ToldNote:
    """What came of the call, and that its files are lost; the same on every later run."""
    try:
        text = told_result(outcome_of(run.steps.writer.get_step(error.ordinal)))
    except errors.HoldfastError as failure:
        text = _failure(error.tool, failure).text
    told = f"{text}\n[the files that it left could not be kept: {error.why}]"
    return ToldNote(told, failed=True)


def told_result(result: Json) -> str:
    text = as_text(result)
    if not text.strip():
        return "(it returned nothing)"
    if len(text) <= RESULT_CHARS_MAX:
        return text
    left = len(text) - RESULT_CHARS_MAX
    return f"{text[:RESULT_CHARS_MAX]}\n[cut here: {left:,} more characters are kept, not shown]"


def _failure(tool: str, error: errors.HoldfastError) -> ToldNote:
    """A closed step's failure in words without ids. Raises what is no outcome of the step."""
    match error:
        case errors.ResultNotKept():
            # Said as a success: a model that is told of a failure would try again.
            text = f"done; its result could not be kept ({error.why}). Do not repeat it"
            return ToldNote(text)
        case errors.DoneWithOtherArguments():
            # A success too: what it says is done, and the model decides what that means.
            done = as_text(checked({"arguments": error.args_done, "result": error.result}, what="what was done"))
            text = (
                f"this call was not made: before the journal was restored, {tool} was called "
                f"in its place, and that was done: {done}. Call it again only if your call is "
                "wanted in addition"
            )
            return ToldNote(text)
        case errors.Refused():
            return ToldNote(f"refused: {as_text(checked(error.proof, what='proof'))}", failed=True)
        case errors.ToolFailed():
            return ToldNote(f"{error.kind}: {error.text}", failed=True)
        case errors.GateRefused():
            later = "" if error.retry_after_s is None else f"; again in {error.retry_after_s:g} s"
            return ToldNote(f"not allowed: {error.why}{later}", failed=True)
        case errors.StepSkipped():
            note = f": {error.note}" if error.note and error.note != "refused" else ""
            return ToldNote(f"a person refused this call{note}; it was not made", failed=True)
        case _:
            raise error


def _refusal(call: ToolCall, tool: Tool[..., Any] | None, tools: Tools, *, gated: bool, plans: bool = False) -> str:
    """Why the call cannot be made; empty where it can."""
    if call.arguments is None:
        return f"the call is malformed and was not made: {call.error}"
    if tool is None:
        known = ", ".join(sorted({*tools, PLAN} if plans else tools)) or "none"
        return f"there is no tool {call.tool[:100]!r}; there are: {known}"
    for name, value in call.arguments.items():
        asked = find_whole(value)
        if asked is not None and name not in tool.secrets:
            return f"{name}: this argument takes no {handle(asked)}"
    if gated:
        return ""  # the gate holds the arguments against the schema, and records what it says
    try:
        found = problems(tool.schema["parameters"], call.arguments)
    except errors.NoSchema as error:
        return error.message
    return "the arguments do not fit: " + "; ".join(found[:PROBLEMS_TOLD]) if found else ""


def _refuse(run: Run, ordinal: str, why: str) -> ToldNote:
    body = ToldNote(why, failed=True).body()
    run.steps.writer.defer(NewRecord(kind=RecordKind.NOTE, ordinal=ordinal, body=body))
    return _told_before(run.steps.writer.view, run.steps.writer.view.notes[ordinal].body)


def _plan(run: Run, ordinal: str, arguments: Mapping[str, object]) -> ToldNote:
    writer = run.steps.writer
    before = [run.steps.plan[number] for number in sorted(run.steps.plan)]
    try:
        found = problems(_PLAN_PARAMETERS, dict(arguments))
        if found:
            raise errors.BadInput("; ".join(found[:PROBLEMS_TOLD]))
        items = by_model(before, arguments)
    except errors.BadInput as error:
        return _refuse(run, ordinal, error.message)
    writer.defer(NewRecord(kind=RecordKind.NOTE, ordinal=ordinal, body=PlanNote(items).body()))
    run.steps.plan.update({item.number: item for item in items})
    run.steps.plan_changes += 1
    return ToldNote(shown(run.steps.plan[number] for number in sorted(run.steps.plan)))


def _told_before(view: TaskView, body: Body) -> ToldNote:
    if body["what"] == PLAN:
        return ToldNote(shown(view.plan))
    return ToldNote.read(body)


OPENING = "[From the runtime, not from the user.] While you were away: "


def resume_message(view: TaskView, *, since: int, now: int, calls: Sequence[tuple[int, str, StepView | None]]) -> str:
    """What to tell of the time between two epochs; empty where nothing happened. `calls` are those of the newest reply:
    number, tool, the step that it became."""
    deaths = [taken for lost, taken in view.lost.items() if since <= lost and taken <= now]
    restored = since >> COUNTER_BITS != now >> COUNTER_BITS
    if not deaths and not restored:
        return ""
    told: list[str] = []
    if deaths:
        how = "died, and another one" if len(deaths) == 1 else f"died {len(deaths)} times; the newest one"
        told.append(f"the worker {how} took over at {_clock(view.claims[deaths[-1]].at_ms)}")
    if restored:
        told.append(
            "the journal was restored from an older copy of "
            f"{_clock(view.restored_ms)}; what was done after that was looked up where it could be"
        )
    fates = [f"call {number} ({tool}) {fate}" for number, tool, step in calls if step and (fate := _fate(view, step))]
    told += fates or (["none of your calls was in doubt"] if calls else [])
    return OPENING + "; ".join(told) + "."


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
    # Only a person starts a parked step again; its attempts are counted from then on.
    if step.parked is None or not step.attempts or step.attempts[0].epoch <= step.parked[0]:
        return again
    decided = "was in doubt; a person decided to run it again"
    return f"{decided}; then it {again}" if again else decided + _failed(step)


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
