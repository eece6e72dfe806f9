"""Deciding a parked effect, and telling what is known of one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Literal

from holdfast.app.open import get_step
from holdfast.cli.input.confirm import confirm
from holdfast.cli.input.input_values import read_json
from holdfast.cli.screen.reference import get_step_place
from holdfast.cli.screen.screen import json_line, print_json, talk
from holdfast.cli.task.workers import hint_at_workers
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.app.open import Holdfast

MEANS = {
    "done": "it happened; the task goes on with the result you give",
    "run": "it did not happen; it is run now, and that may repeat an effect if you are wrong",
    "skip": "it is not done; the task is told so",
}


async def settle(hf: Holdfast, args: argparse.Namespace) -> int:
    task_id, ordinal = await get_step_place(hf, args.effect)
    decision: Literal["done", "run", "skip"] = "done" if args.done else "run" if args.run_now else "skip"
    if args.result is not None and decision != "done":
        raise BadInput("--result goes with --done only")
    result = None if args.result is None else read_json(args.result, what="--result")
    place = f"{task_id}/{ordinal}"
    await hf.check_settle(task_id, ordinal, decision, result=result)
    _, step = await get_step(hf.journal, task_id, ordinal)
    what = (
        f"effect {place}: {step.tool} {json_line(step.args)}\n"
        f"question: {step.question}\n"
        f"decision: {decision}: {MEANS[decision]}"
    )
    if args.dry_run:
        if args.json:
            print_json({"effect": place, "decision": decision, "done": False})
            return 0
        talk(f"{what}\nnothing was recorded (--dry-run)")
        return 0
    confirm(decision, what, yes=args.yes)
    await hf.settle(task_id, ordinal, decision, result=result, by=args.by, note=args.note)
    if args.json:
        print_json({"effect": place, "decision": decision, "done": True})
        return 0
    talk(f"recorded: {place} is settled as {decision}; the task goes on")
    await hint_at_workers(hf)
    return 0


async def tell_evidence(hf: Holdfast, args: argparse.Namespace) -> int:
    if bool(args.effect) == bool(args.effect_key):
        raise BadInput("name the effect by TASK/ORDINAL or by --effect-key, not both")
    if args.did_not_happen and args.result is not None:
        raise BadInput("an effect that did not happen has no result")
    if not args.did_not_happen and args.result is None:
        raise BadInput(
            "say what it returned with --result, or --did-not-happen", hint="`--result null` where it returns nothing"
        )
    result = None if args.result is None else read_json(args.result, what="--result")
    happened = not args.did_not_happen
    if args.effect_key:
        place = f"effect key {args.effect_key}"
        await hf.evidence(effect_key=args.effect_key, result=result, happened=happened, source=args.source)
    else:
        task_id, ordinal = await get_step_place(hf, args.effect)
        place = f"{task_id}/{ordinal}"
        await hf.evidence(task_id=task_id, ordinal=ordinal, result=result, happened=happened, source=args.source)
    if args.json:
        effect = "" if args.effect_key else place
        print_json({"effect": effect, "effect_key": args.effect_key or "", "happened": happened})
        return 0
    talk(f"recorded for {place}: it {'happened' if happened else 'did not happen'}")
    await hint_at_workers(hf)
    return 0
