"""A whole small agent on this disk: identity, vault, journal, memory, places with real Borg.

world/ada/      the agent's folder        world/vault, second, unlock    its keys
world/place-1/  a place of backups        world/witness                  who saw its log first
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.backup.backups import Backups, open_backups
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.core.clock import SystemEntropy
from holdfast.host.private_files import ensure_private_folder, write_atomically
from holdfast.identity.acts.make_agent import AgentPlan, make_agent
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.witness_address import WitnessFolder

NAME = "ada"


@holdfast.tool(effect=holdfast.Read())
async def look_up(call: holdfast.Call, number: int) -> int:
    return number + 1


@holdfast.task
async def count(run: holdfast.Run, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await run.call(look_up, number=number)
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    root: Path
    home: AgentHome
    words: str = field(default="", repr=False)  # of its sheet

    def place(self, number: int = 1) -> Path:
        return self.root / f"place-{number}"

    def repository(self, number: int = 1) -> Path:
        return self.place(number) / NAME / "repository"

    async def backups(self) -> Backups:
        return await open_backups(self.home)

    async def work(self, steps: int = 3) -> None:
        """The agent does something: a task with so many steps, and a line in its memory."""
        async with holdfast.open(self.home.journal, tasks=[count]) as hf:
            task = await hf.submit(count, steps=steps)
            await task.result()
        memory = self.home.memory_file
        before = memory.read_bytes() if memory.exists() else b""
        write_atomically(memory, before + b"- counted %d\n" % steps)


async def make_world(root: Path, *, places: int = 1, files: int = 10, bytes_each: int = 200) -> World:
    """A new agent that has done something, with so many places, and no snapshot yet."""
    ensure_private_folder(root)
    text = new_unlock_text(SystemEntropy())
    write_atomically(root / "unlock", text)
    keys = [file_key(root / "unlock", text)]
    plan = AgentPlan(
        name=NAME,
        folder=root / NAME,
        vault=root / "vault",
        second=root / "second",
        witnesses=(WitnessFolder(root / "witness"),),
        keys=keys,
        second_keys=keys,
    )
    words: list[str] = []
    made = await make_agent(
        plan, show=lambda phrase: words.extend(phrase.words), entropy=SystemEntropy(), port=Sodium()
    )
    world = World(root=root, home=made.home)
    write_files(world.home.folder, files, bytes_each)
    await world.work()
    if places:
        await add_places(world, range(1, places + 1))
    return World(root=root, home=load_home(root / NAME), words=" ".join(words))


async def add_places(world: World, numbers: Sequence[int]) -> None:
    places = await open_places(world.home)
    for number in numbers:
        ensure_private_folder(world.place(number))
        await places.add(PlaceRequest(name=f"place-{number}", address=str(world.place(number))))


def write_files(folder: Path, files: int, bytes_each: int) -> None:
    """Files of an agent's days: text that compresses, and bytes that do not."""
    for number in range(files):
        day = folder / "memory" / f"2026-{number // 28 % 12 + 1:02d}"
        ensure_private_folder(day)
        half = bytes_each // 2
        content = (b"entry %d\n" % number) * (half // 9 + 1) + os.urandom(half)
        write_atomically(day / f"{number:05d}.md", content[:bytes_each])
