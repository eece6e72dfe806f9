"""What can happen to an instance, and how it comes back."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from dataclasses import dataclass

from holdfast_proofs.takeovers.lab import Instance, Lab

LOST = ("kill", "stop", "cut", "disk")
PARTITIONS = ("alone", "journal-away", "deaf", "mute", "flapping", "all-apart")
REMOVED = "removed"  # its disk is deleted, it runs on, and its owner removes it
FLAP_S = 8.0


@dataclass(slots=True)
class Breaker:
    """Breaks one instance in one of the ways, and brings it back."""

    lab: Lab
    chance: random.Random

    def victims(self, kind: str, victim: Instance) -> list[Instance]:
        return list(self.lab.instances.values()) if kind == "all-apart" else [victim]

    async def begin(self, kind: str, victim: Instance) -> None:
        net = self.lab.net
        match kind:
            case "kill":
                victim.kill()
            case "stop":
                victim.send(signal.SIGSTOP)
            case "disk" | "removed":
                self._delete(victim)
                if kind == "disk":
                    victim.kill()
            case "cut" | "alone":
                net.cut(victim.host, from_world=True)
            case "journal-away":
                net.cut(victim.host)  # the services can be reached
            case "deaf":
                net.lose(victim.host, to_region=True)
            case "mute":
                net.lose(victim.host, to_region=False)
            case "all-apart":
                for one in self.lab.instances.values():
                    net.cut(one.host, from_world=self.chance.random() < 0.5)
            case _:  # flapping
                await self._flap(victim)

    def _delete(self, victim: Instance) -> None:
        """As `rm -r` does beside a worker that writes there."""
        for folder in (victim.folder, self.lab.folder / f"{victim.name}-vault"):
            while folder.exists():
                shutil.rmtree(folder, ignore_errors=True)

    async def _flap(self, victim: Instance) -> None:
        left_s = FLAP_S
        while left_s > 0:
            self.lab.net.cut(victim.host, from_world=True)
            down_s, up_s = self.chance.uniform(0.2, 1.5), self.chance.uniform(0.1, 0.8)
            await asyncio.sleep(down_s)
            self.lab.net.heal(victim.host)
            await asyncio.sleep(up_s)
            left_s -= down_s + up_s

    async def end(self, kind: str, victim: Instance, helper: Instance) -> None:
        """The instance is back. A disk that is gone: its owner removes it and enrols another in its place."""
        if kind in ("disk", REMOVED):
            await asyncio.to_thread(victim.kill)
            if kind == "disk":
                await self.remove(victim, helper)
            self._delete(victim)  # what a worker that ran on has put there since
            new = await asyncio.to_thread(self.lab.join, victim.name, victim.host, by=helper)
            new.start()
        elif kind == "kill":
            victim.start()
        elif kind == "stop":
            victim.send(signal.SIGCONT)
        else:
            for one in self.victims(kind, victim):
                self.lab.net.heal(one.host)

    async def remove(self, victim: Instance, helper: Instance) -> None:
        await asyncio.to_thread(self.lab.command, helper, "instance", "remove", victim.name, "--yes")
