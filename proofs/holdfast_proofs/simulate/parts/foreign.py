"""A foreign loop: code that Holdfast does not run, calling tools through a scope.

It names its slots stably and asks again until each call has given something; now and then it
loses patience in the middle of one, as a web handler does when its client hangs up.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.app.holdfast import Holdfast
from holdfast.errors import HoldfastError, StepFailed
from holdfast_proofs.simulate.parts.tools import TOOLS

if TYPE_CHECKING:
    from holdfast_proofs.simulate.world import World

SCOPE = "thread-7"
AGAIN_S = (0.2, 2.0)
PATIENCE_S = 1.5
SLOTS_MAX = 3

_TOOLS = (
    "read",
    "keyed",
    "keyed_found",
    "stored",
    "queryable",
    "queryable_whole",
    "unrepeatable",
    "unrepeatable_marked",
    "idempotent",
    "fenced",
    "transact",
)


class Foreign:
    """The calls of one scope and what they have given; outlives the processes that make them."""

    def __init__(self, world: World) -> None:
        dice = world.dice
        self._world = world
        self.plan = {
            f"slot-{number}": (dice.pick(_TOOLS), dice.number(1, 3)) for number in range(dice.number(1, SLOTS_MAX))
        }
        self.given: dict[str, Any] = {}  # Any: the tools' JSON results

    async def run(self, hf: Holdfast) -> None:
        """Ask until everything is answered or no more faults are to come."""
        world = self._world
        while len(self.given) < len(self.plan) and not world.dice.stopped:
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(PATIENCE_S if world.dice.coin(0.3) else None):
                    await self._ask(hf)
            await asyncio.sleep(world.dice.seconds(*AGAIN_S))

    async def _ask(self, hf: Holdfast) -> None:
        async with hf.scope(SCOPE) as scope:
            for slot, (name, what) in self.plan.items():
                if slot in self.given:
                    continue
                try:
                    given = await scope.call(TOOLS[name], slot=slot, what=what)
                except StepFailed as error:
                    given = {"failed": error.code}
                self._world.trace.note("foreign", f"{slot} ({name}): {given}")
                self.given[slot] = given
