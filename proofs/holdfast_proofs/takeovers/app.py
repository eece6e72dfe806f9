"""The load: steps of every class that take a moment before and after their request, and lines for the memory.

A fault so finds steps before their request, steps whose effect has happened, and notes. In a worker of the proof's own
red runs one rule of the product is taken out here, where the worker loads its code.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import holdfast
from holdfast.runtime.tool.tool import Call
from holdfast_proofs.soak.app import class_of, make_tools
from holdfast_proofs.support.counted_tools import Function

TASK = "takeover"
APP = "holdfast_proofs.takeovers.app:app"
PLANT = "TAKEOVERS_PLANT"  # which rule is taken out in this process
PAUSE_S = 0.1
MEMORY_EVERY = 4  # of so many tasks one writes to MEMORY.md


@holdfast.task(name=TASK)
async def takeover(run: holdfast.Run, urls: dict[str, str], number: int, steps: int) -> int:
    for step in range(1, steps + 1):
        name = class_of(number, step)
        await run.call(TOOLS[name], url=urls.get(name, ""), number=step)
    await run.note(note_of(number), to="day" if number % MEMORY_EVERY else "MEMORY")
    return steps


def note_of(number: int) -> str:
    return f"order {number} is done."


def slow(function: Function) -> Function:
    async def called(call: Call, url: str, number: int) -> Any:  # Any: JSON of the far end
        await asyncio.sleep(PAUSE_S)
        found = await function(call, url, number)
        await asyncio.sleep(PAUSE_S)
        return found

    return called


TOOLS = make_tools(slow)
app = holdfast.App([takeover], tools=TOOLS.values())


def plant(name: str) -> None:
    """Take out one rule. Names: role, waiting."""
    from holdfast.app.instances import standing

    acting = {
        "role": (standing.StandingKind.STANDBY,),  # it acts whatever its role is
        "waiting": (standing.StandingKind.COPY,),  # a folder that only waited gets its turn
    }[name]
    allowed = (standing.StandingKind.ALONE, standing.StandingKind.PRIMARY, *acting)
    patched: Any = standing.Standing
    patched.may_act = property(lambda self: self.kind in allowed)


if os.environ.get(PLANT):
    plant(os.environ[PLANT])
