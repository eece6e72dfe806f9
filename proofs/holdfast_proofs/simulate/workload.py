"""What simulated tasks do: a plan drawn from the seed, carried out step by step.

The task is an interpreter of its argument, so one function is every task, and its code decides
nothing by chance. What each call gave is part of the task's result and is compared with the
records afterwards.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from holdfast.core.ordinal import base, sort_key
from holdfast.core.step import StepState
from holdfast.errors import GateRefused, Refused, StepFailed, StepSkipped, ToolFailed
from holdfast.journal.records import TaskView
from holdfast.runtime.task.run import Run
from holdfast.runtime.task.task import task
from holdfast_proofs.simulate.faults import Dice
from holdfast_proofs.simulate.parts.tools import TOOLS

Plan = list[Any]  # Any: JSON, read back by the interpreter below

RESOURCES = 3  # that fenced calls share


@task
async def work(run: Run, plan: Plan) -> list[Any]:  # Any: what each item gave
    return [await _do(run, item) for item in plan]


async def _do(run: Run, item: Any) -> Any:  # Any: JSON in, JSON out
    match item:
        case ["call", str(name), int(what)]:
            return await _call(run, name, what)
        case ["timed", str(name), int(what), float(seconds)]:
            try:
                async with asyncio.timeout(seconds):
                    return await _call(run, name, what)
            except TimeoutError:
                return "gave up"
        case ["gather", *branches]:
            return await run.gather(*(_branch(one) for one in branches))
        case ["undo", str(name), str(other), int(what)]:
            step = run.call(TOOLS[name], what=what)
            try:
                first = await step
            except StepFailed as error:
                return {"failed": error.code}
            undone = await run.compensate(step, TOOLS[other], what=what)
            return [first, undone]
        case ["sleep", float(seconds)]:
            await run.sleep(seconds)
        case ["approve", str(question)]:
            return (await run.approve(question)).granted
        case ["note"]:
            return [run.random(), run.uuid(), run.now().isoformat()]
        case _:
            raise ValueError(f"unknown item {item!r}")
    return None


async def _call(run: Run, name: str, what: int) -> Any:  # Any: the tool's JSON result
    try:
        return await run.call(TOOLS[name], what=what)
    except StepFailed as error:
        return {"failed": error.code}


def _branch(plan: Plan) -> Any:  # Any: a branch function, as run.gather takes it
    async def branch(run: Run) -> list[Any]:
        return [await _do(run, item) for item in plan]

    return branch


def draw_plan(dice: Dice) -> Plan:
    """One task's plan: a few calls, now and then something else between them."""
    return [_draw_item(dice) for _ in range(dice.number(1, 4))]


def _draw_item(dice: Dice) -> Plan:
    if dice.coin(0.75):
        return _draw_call(dice)
    match dice.number(1, 6):
        case 1:
            branches = [[_draw_call(dice) for _ in range(dice.number(1, 2))] for _ in range(dice.number(2, 3))]
            return ["gather", *branches]
        case 2:
            return ["sleep", dice.pick((0.5, 1.5, 4.0))]
        case 3:
            return ["approve", "go on?"]
        case 4:
            return ["undo", dice.pick(("keyed", "queryable")), "keyed", dice.number(1, 999)]
        case 5:
            call = _draw_call(dice)
            return ["timed", *call[1:], dice.pick((0.01, 0.3, 2.0))]
        case _:
            return ["note"]


def _draw_call(dice: Dice) -> Plan:
    name = dice.pick(tuple(TOOLS))
    what = dice.number(1, RESOURCES) if name == "fenced" else dice.number(1, 999)
    return ["call", name, what]


def recorded_results(plan: Plan, view: TaskView, prefix: str = "") -> list[Any]:
    """What a task that went through this plan must have been given, read from its records."""
    results: list[Any] = []
    next_ordinal = 1
    for item in plan:
        ordinal = f"{prefix}{next_ordinal}"
        next_ordinal += 3 if item[0] == "note" else 1
        match item:
            case ["call" | "timed", *_]:
                results.append(recorded_result(view, ordinal))
            case ["gather", *branches]:
                results.append(
                    [
                        recorded_results(branch, view, f"{ordinal}.{number}.")
                        for number, branch in enumerate(branches, start=1)
                    ]
                )
            case ["undo", *_]:
                first = recorded_result(view, ordinal)
                undone = view.steps.get(f"{ordinal}.c1")
                results.append(first if undone is None else [first, recorded_result(view, undone.ordinal)])
            case ["approve", _]:
                answer = view.notes[ordinal].answer or {}
                results.append(bool(answer.get("granted")))
            case ["note"]:
                results.append(_recorded_values(view, prefix, next_ordinal - 3))
            case _:
                results.append(None)
    return results


def recorded_result(view: TaskView, ordinal: str) -> Any:  # Any: the tool's JSON result
    """What the call at this ordinal must have given, in whichever of its retry slots."""
    slots = [o for o in view.steps if base(o) == ordinal]
    step = view.steps[max(slots, key=sort_key)]
    match step.state:
        case StepState.SUCCEEDED:
            return step.result
        case StepState.SKIPPED:
            refused = (said := step.planned.gate) is not None and said.refused
            return {"failed": GateRefused.code if refused else StepSkipped.code}
        case _:
            return {"failed": Refused.code if step.failure.proven else ToolFailed.code}


def _recorded_values(view: TaskView, prefix: str, first: int) -> list[Any]:
    values = [view.notes[f"{prefix}{first + n}"].body["value"] for n in range(3)]
    return [values[0], values[1], datetime.fromtimestamp(values[2] / 1000, UTC).isoformat()]
