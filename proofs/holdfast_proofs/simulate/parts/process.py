"""A simulated process: the places where it may die, stop or dawdle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast_proofs.simulate.parts.loop import OWNER, Owner

if TYPE_CHECKING:
    from holdfast_proofs.simulate.world import World

FREEZE_POINT = 0.05  # of the starts, in worlds whose machine stands still now and then


class Process(Owner):
    """Owns the callbacks of one process of a world."""

    __slots__ = ("name", "world")

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name

    async def point(self, where: str, *, delay_s: float = 0.0, sends: bool = False, marked: bool = False) -> None:
        """A place between two instructions, reached after a while.

        Whoever is paused here goes on with the very next instruction, before anything else that
        has become due in its process. `sends`: soon after it a byte leaves; `marked`: and nobody
        looks at the lease again before.
        """
        world, profile, dice = self.world, self.world.profile, self.world.dice
        if delay_s > 0.0:
            await asyncio.sleep(delay_s)
        if dice.hits(profile.crash_point):
            world.crash(self, where)
            await asyncio.get_running_loop().create_future()
        if sends and not marked and profile.freeze_every_s and dice.hits(FREEZE_POINT):
            world.freeze()
            await asyncio.sleep(0)
        long = sends and dice.hits(profile.zombie)
        if long or dice.hits(profile.pause_point):
            world.pause(self, where, long=long)
            await asyncio.sleep(0)


def current() -> Process:
    """The process whose code is running."""
    owner = OWNER.get()
    if not isinstance(owner, Process):
        raise RuntimeError("this runs outside every simulated process")
    return owner
