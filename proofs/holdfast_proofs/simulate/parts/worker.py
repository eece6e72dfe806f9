"""A simulated worker: the production engine in a process and with a journal handle of its own.

It lives in one of two ways. With a dead-man timer it is a `holdfast worker`: past its lease the
kernel kills it, even while it is paused, and its supervisor starts another. Without one it is a
program that called `holdfast.open`: it is never killed, may wake up late, fences itself and
begins a new session.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.app.holdfast import Holdfast
from holdfast.errors import HoldfastError, InvariantViolated, SessionLost
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.session.deadman import DeadMan
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.simulate.parts.journal import SimJournal
from holdfast_proofs.simulate.parts.process import Process
from holdfast_proofs.simulate.parts.tools import TOOLS
from holdfast_proofs.simulate.workload import work

if TYPE_CHECKING:
    from holdfast_proofs.simulate.world import World

NEW_SESSION_S = 0.05


class SimDeadMan(DeadMan):
    """The kernel's timer: it counts while the process is paused, and asks nobody."""

    __slots__ = ("_alarm", "_process")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._alarm: asyncio.Handle | None = None

    def arm(self, seconds: float) -> None:
        self.arm_at(self._process.world.clock.boot_ms() + int(seconds * 1000))

    def arm_at(self, boot_ms: int) -> None:
        self.disarm()
        world = self._process.world
        left_s = max(boot_ms - world.clock.boot_ms(), 0) / 1000
        self._alarm = world.loop.at(left_s, self._ring, boot_ms)

    def _ring(self, boot_ms: int) -> None:
        world = self._process.world
        if world.clock.boot_ms() < boot_ms:
            self.arm_at(boot_ms)  # the machine stood still meanwhile
        else:
            world.crash(self._process, "dead-man timer")

    def disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


class Worker(Process):
    """One worker process, from its start to its end."""

    __slots__ = ("engine", "hf")

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        entropy = SeededEntropy(world.entropy_seed(name))
        journal = SimJournal(self, entropy)
        self.hf = Holdfast(
            journal=journal,
            keys=world.keys,
            clock=world.clock,
            entropy=entropy,
            tasks=[work],
            tools=TOOLS.values(),
            settings=world.settings(name),
        )
        self.hf.engine = self.engine = Engine(
            journal=journal,
            keys=world.keys,
            clock=world.clock,
            entropy=entropy,
            tasks=[work],
            tools=TOOLS.values(),
            settings=world.settings(name),
            dead_man=SimDeadMan(self) if world.profile.dead_man else None,
        )

    async def main(self) -> None:
        """What the process does; ends where a supervisor would have to start another."""
        while True:
            try:
                await self.engine.serve()
                break
            except SessionLost as error:
                self.world.trace.note(self.name, f"session lost: {error.message}")
                if self.world.profile.dead_man:
                    break
                await asyncio.sleep(NEW_SESSION_S)
            except InvariantViolated as error:
                self.world.breach(error.message)
                break
            except HoldfastError as error:
                self.world.trace.note(self.name, f"ended by {error.code}: {error.message}")
                break
        self.world.crash(self, "ended")
