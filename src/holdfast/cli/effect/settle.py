"""Deciding a parked effect, and reporting what is known of one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Literal

from holdfast.app.holdfast import get_step
from holdfast.cli.command import over_journal
from holdfast.cli.input.input_journal import finish_decision
from holdfast.cli.input.input_values import read_json
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.reference import get_step_place
from holdfast.cli.screen.screen import finish, json_line
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

MEANS = {
    "done": "it happened; the task continues with the result you give",
    "run": "it did not happen; Holdfast runs it now, which repeats the effect if you are wrong",
    "skip": "Holdfast does not do it; the task gets StepSkipped",
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
    what = (
        f"effect {place}: {step.tool} {json_line(step.args)}\n"
        f"question: {step.question}\n"
        f"decision: {decision}: {MEANS[decision]}"
    )
    fields = {"effect": place, "decision": decision, "done": not args.dry_run}
    if args.dry_run:
        return finish(args, fields, f"{what}\nnothing was recorded (--dry-run)")
    confirm(decision, what, yes=args.yes)
    await hf.settle(task_id, ordinal, decision, result=result, by=args.by, note=args.note)
    said = f"recorded: {place} is decided as {decision}; the task continues"
    return await finish_decision(hf, args, fields, said)


async def _report_evidence(hf: Holdfast, args: argparse.Namespace) -> int:
    if bool(args.effect) == bool(args.effect_key):
        raise BadInput("name the effect by TASK/ORDINAL or by --effect-key, not both")
    if args.did_not_happen and args.result is not None:
        raise BadInput("an effect that did not happen has no result")
    if not args.did_not_happen and args.result is None:
        raise BadInput(
            "give --result with what it returned, or --did-not-happen", hint="`--result null` if it returns nothing"
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
