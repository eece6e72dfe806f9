"""What simulated tasks do: a plan drawn from the seed, carried out step by step.

The task is an interpreter of its argument, so one function is every task, and its code decides
nothing by chance. What each call gave is part of the task's result and is compared with the
records afterwards.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import StepFailed
from holdfast.runtime.run import Run
from holdfast.runtime.task import task
from holdfast.testing.simulate.faults import Dice
from holdfast.testing.simulate.tools import TOOLS

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
            branches = [
                [_draw_call(dice) for _ in range(dice.number(1, 2))]
                for _ in range(dice.number(2, 3))
            ]
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
