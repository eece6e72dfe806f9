"""Several instances write one memory, each in its own folder, while people save it on two hosts in two ways."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nacl.signing import SigningKey

from holdfast.app.binder import open_journal
from holdfast.core.journal_address import file_at
from holdfast.host.private_files import write_atomically
from holdfast.instances.channels import FolderChannel
from holdfast.instances.envelope import Peers
from holdfast.instances.merging import Merging
from holdfast.journal.contract import Journal, Remark, RemarkTo
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory.lines import entry_id, key_of
from holdfast.memory.projection import project_now
from holdfast_proofs.memory_edits.editor import WAYS, line_of

AGENT = "hf1" + "e" * 58
SETTLE_ROUNDS = 60
EDITORS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """What became of the edits of several instances and two editors."""

    how: str
    instances: int
    edits: int
    lost: int
    doubled: int
    differ: int  # files that are not as the first one
    sent_bytes: int
    seconds: float

    @property
    def well(self) -> bool:
        return not (self.lost or self.doubled or self.differ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One instance: its journal, and its merges."""

    name: str
    place: MemoryPlace
    journal: Journal
    merging: Merging

    async def write(self, number: int) -> None:
        text = f"the agent on {self.name} says {number:05}"
        await self.journal.add_remarks(
            [Remark(remark_id=f"{self.name} {number}", to=RemarkTo.MEMORY, origin="model", text=text)]
        )
        await project_now(self.journal, self.place, sweep=False)

    async def merge(self) -> bool:
        now_ms = self.journal.now_ms()
        if not await asyncio.to_thread(self.merging.is_due, now_ms=now_ms):
            return False
        await asyncio.to_thread(self.merging.run, now_ms=now_ms)
        return True


async def open_writers(folder: Path, count: int) -> list[Writer]:
    names = [f"host{number}" for number in range(count)]
    keys = {name: SigningKey(name.encode().ljust(32)) for name in names}
    shared = folder / "shared"
    shared.mkdir()
    writers: list[Writer] = []
    for name in names:
        place = MemoryPlace(folder=folder / name)
        place.folder.mkdir(mode=0o700)
        journal, _ = await open_journal(file_at(place.folder / "journal.db"))
        peers = Peers(
            agent=AGENT,
            incarnation=1,
            me=name,
            keys={one: bytes(key.verify_key) for one, key in keys.items()},
            sign=lambda text, key=keys[name]: key.sign(text).signature,
        )
        channel = FolderChannel(shared, agent=AGENT, instance=name)
        merging = Merging(place, channel, peers, bytes(32))
        writers.append(Writer(name=name, place=place, journal=journal, merging=merging))
    return writers


async def settle(writers: list[Writer]) -> None:
    for _ in range(SETTLE_ROUNDS):
        for one in writers:
            await project_now(one.journal, one.place)
        if not any([await one.merge() for one in writers]):
            return


async def group(folder: Path, how: str, *, edits: int, seed: int, instances: int) -> GroupOutcome:
    """`how`: how the first editor saves; the second one takes the next way."""
    began = time.monotonic()
    writers = await open_writers(folder, instances)
    write_atomically(writers[0].place.memory_file, b"# Memory\n\n- a line from before\n")
    await settle(writers)
    each, ways = edits // (instances + EDITORS), [*WAYS, *WAYS]
    saving = {one.name: ways[ways.index(how) + at] for at, one in enumerate(writers[:EDITORS])}
    editors = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast_proofs.memory_edits.editor",
            str(one.place.memory_file),
            saving[one.name],
            str(each),
            str(seed + at),
            one.name,
        )
        for at, one in enumerate(writers[:EDITORS])
    ]
    try:
        for number in range(each):
            for one in writers:
                await one.write(number)
                await one.merge()
        for editor in editors:
            while editor.returncode is None:
                for one in writers:
                    await one.merge()
                await asyncio.sleep(0.05)
            if editor.returncode:
                raise SystemExit(f"an editor ({how}) failed")
        await settle(writers)
    finally:
        for editor in editors:
            if editor.returncode is None:
                editor.kill()
        for one in writers:
            await one.journal.close()
    wanted = [entry_id(f"{one.name} {number}") for one in writers for number in range(each)]
    wanted += [f"={line_of(saving[one.name], number, one.name)}" for one in writers[:EDITORS] for number in range(each)]
    texts = [one.place.memory_file.read_text() for one in writers]
    counts = [Counter(key_of(line) for line in text.splitlines()) for text in texts]
    return GroupOutcome(
        how=how,
        instances=instances,
        edits=len(wanted),
        lost=sum(one[key] == 0 for one in counts for key in (*wanted, "=- a line from before")),
        doubled=sum(one[key] > 1 for one in counts for key in (*wanted, "=- a line from before")),
        differ=sum(text != texts[0] for text in texts),
        sent_bytes=sum(one.merging.sent_bytes for one in writers),
        seconds=round(time.monotonic() - began, 1),
    )
