"""One effect: show the question, the evidence and what to do; decide a parked one; report what is known of one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Literal

from holdfast.app.holdfast import get_step
from holdfast.cli.command import over_journal
from holdfast.cli.input.input_journal import finish_decision, get_step_place, what_follows
from holdfast.cli.input.input_values import read_json
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import ago, clock_time, finish, json_line, print_fields
from holdfast.cli.task.page import decision_row
from holdfast.core.step import StepState
from holdfast.errors import BadInput
from holdfast.host.who import user_at_host
from holdfast.journal.records import StepView
from holdfast.views.tasks import Shape, epoch_text, failure_words, next_try_ms

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast


def ways(place: str, step: StepView, *, decided: bool) -> list[str]:
    """The commands that help with a step in this state."""
    match step.state:
        case StepState.PARKED if decided:
            return ["holdfast worker APP   # applies the decision"]
        case StepState.PARKED:
            return [
                f"holdfast effect settle {place} --done --result JSON   # it happened",
                f"holdfast effect settle {place} --run    # it did not happen: run it now",
                f"holdfast effect settle {place} --skip   # do not do it",
            ]
        case StepState.UNKNOWN | StepState.STARTED:
            return [
                "holdfast worker APP   # looks it up or sends it again, as its class allows",
                f"holdfast effect evidence {place} --result JSON   # if you know that it happened",
            ]
        case StepState.PLANNED:
            return ["holdfast worker APP   # runs it", f"holdfast approval grant {place}   # if it waits for a yes"]
        case StepState.SUCCEEDED | StepState.FAILED | StepState.SKIPPED:
            return []


def print_effect(shape: Shape, step: StepView, *, now_ms: int, decided: bool) -> None:
    state = str(shape["state"])
    if shape["compensation"]:
        state += f" ({shape['compensation']})"
    if shape["orphaned"]:
        state += " (the worker that sent it is dead)"
    if shape["ended_by"]:
        state += f" ({shape['ended_by']})"
    fields = [
        ("effect", str(shape["effect"])),
        ("task", str(shape["task_name"])),
        ("tool", f"{shape['tool']} ({shape['class']})"),
        ("state", state),
        ("effect key", str(shape["effect_key"])),
        ("arguments", json_line(shape["args"], chars_max=500)),
    ]
    if shape["question"]:
        fields.append(("question", str(shape["question"])))
    fields += _attempts(shape, step)
    fields += [("evidence", _evidence(one)) for one in shape["evidence"]]
    fields += [("said", _said(one)) for one in shape["decisions"]]
    if step.state is StepState.PARKED and not decided:
        left = step.not_before_ms - now_ms
        when = "now" if left <= 0 else f"in {ago(left)}: a request may still be in flight"
        fields.append(("may be decided", when))
    if step.state is StepState.SUCCEEDED:
        fields.append(("result", step.unkept or json_line(shape["result"], chars_max=500)))
    if shape["error"]:
        fields.append(("error", failure_words(step.error)))
        fields += [("raised at", step.failure.where)] if step.failure.where else []
    if (due_ms := next_try_ms(step)) > now_ms:
        fields.append(("next try", f"in {ago(due_ms - now_ms)}"))
    if step.closed_ms:
        fields.append(("ended", clock_time(step.closed_ms)))
    if step.note:
        fields.append(("note", step.note))
    if shape["ways"]:
        commands = (one.partition("#") for one in shape["ways"])  # the reason above its command: both fit 80 columns
        fields.append(("what to do", "\n".join(f"# {why.strip()}\n{way.strip()}" for way, _, why in commands)))
    print_fields(fields)


def _attempts(shape: Shape, step: StepView) -> list[tuple[str, str]]:
    return [
        (
            f"attempt {number}",
            f"{clock_time(one.at_ms)}, epoch {epoch_text(one.epoch)}, fence {one.fence}, "
            f"by {tried['worker'] or 'an unknown worker'}" + (f": {tried['reason']}" if tried["reason"] else ""),
        )
        for number, (one, tried) in enumerate(zip(step.earlier + step.attempts, shape["tries"], strict=True), start=1)
    ]


def _evidence(one: Shape) -> str:
    """What is known, with times and epochs as people read them."""
    said: list[str] = []
    for name, value in one.items():
        if name.endswith("_ms") and isinstance(value, int):
            said.append(f"{name.removesuffix('_ms').replace('_', ' ')} {clock_time(value)}")
        else:
            said.append(f"{name} {epoch_text(value) if name == 'epoch' else json_line(value, chars_max=500)}")
    return ", ".join(said)


def _said(one: Shape) -> str:
    """Who said what about the effect, and when."""
    _, what, by, at, note = decision_row(one)
    return f"{at} {by}: {what}" + (f" ({note})" if note else "")


MEANS = {
    "done": "the effect happened",
    "run": "the effect did not happen; Holdfast runs the step now, which repeats the effect if you are wrong",
    "skip": "Holdfast does not run the step; the task gets StepSkipped",
}


async def _settle(hf: Holdfast, args: argparse.Namespace) -> int:
    task_id, ordinal = await get_step_place(hf, args.effect)
    decision: Literal["done", "run", "skip"] = "done" if args.done else "run" if args.run_now else "skip"
    if args.result is not None and decision != "done":
        raise BadInput("--result needs --done")
    result = None if args.result is None else read_json(args.result, what="--result")
    place = f"{task_id}/{ordinal}"
    await hf.check_settle(task_id, ordinal, decision, result=result)
    _, step = await get_step(hf.journal, task_id, ordinal)
    gets = f"\nthe task gets {json_line(result)} as the result of {step.tool}" if decision == "done" else ""
    if gets and args.result is None:
        gets += ": give --result JSON if the call returns something"
    what = (
        f"effect {place}: {step.tool} {json_line(step.args)}\n"
        f"question: {step.question}\n"
        f"decision: {decision}: {MEANS[decision]}{gets}"
    )
    fields = {"effect": place, "decision": decision, "done": not args.dry_run}
    if args.dry_run:
        return finish(args, fields, f"{what}\nnothing was recorded (--dry-run)")
    confirm(decision, what, yes=args.yes)
    follows = await what_follows(hf, task_id)
    await hf.settle(task_id, ordinal, decision, result=result, by=args.by, note=args.note)
    said = f"recorded: {place} is decided as {decision} by {args.by or user_at_host()}; {follows}{gets}"
    return await finish_decision(hf, args, fields, said)


async def _report_evidence(hf: Holdfast, args: argparse.Namespace) -> int:
    if bool(args.effect) == bool(args.effect_key):
        raise BadInput("name the effect by TASK/ORDINAL or by --effect-key, not both")
    if args.did_not_happen and args.result is not None:
        raise BadInput("an effect that did not happen has no result", hint="leave out --result or --did-not-happen")
    if not args.did_not_happen and args.result is None:
        raise BadInput(
            "give --result with what the call returned, or --did-not-happen",
            hint="if the call returned nothing, give `--result null`",
        )
    result = None if args.result is None else read_json(args.result, what="--result")
    happened = not args.did_not_happen
    effect = ""
    if args.effect_key:
        await hf.evidence(effect_key=args.effect_key, result=result, happened=happened, source=args.source)
    else:
        task_id, ordinal = await get_step_place(hf, args.effect)
        effect = f"{task_id}/{ordinal}"
        await hf.evidence(task_id=task_id, ordinal=ordinal, result=result, happened=happened, source=args.source)
    fields = {"effect": effect, "effect_key": args.effect_key or "", "happened": happened}
    place = effect or f"effect key {args.effect_key}"
    said = f"recorded for {place}: it {'happened' if happened else 'did not happen'}"
    return await finish_decision(hf, args, fields, said)


run_settle, run_evidence = over_journal(_settle), over_journal(_report_evidence)
