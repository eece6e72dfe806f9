"""Whether the memory files in a restored snapshot and its journal belong together.

The journal's remarks are projected onto the restored files, as a worker does when it starts. The
files may be newer than the journal, or a pass behind it; so lines may be added, but none may go,
and a second pass must find nothing to do. It works on the scratch copy of a test restore alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.backup.archive.reader import Snapshot
from holdfast.backup.snapshot.verify import JOURNAL, Check
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ports import KeyRing
from holdfast.errors import BackupDamaged, HoldfastError
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import home_in
from holdfast.layout.memory_place import MemoryPlace
from holdfast.memory.projection import project_now


def projection_check(keys: KeyRing) -> Check:
    """For test restores; never for a tree that is to be used."""

    def check(snapshot: Snapshot) -> None:
        if snapshot.about.journal is not None:
            asyncio.run(_project(snapshot.state, keys))

    return check


async def _project(state: Path, keys: KeyRing) -> None:
    home = home_in(state)  # of an adopted agent a folder inside
    place = MemoryPlace(folder=home)
    before = _lines(place)
    try:
        journal = await journal_at(home / JOURNAL, instance=state.with_name("instance")).open(
            keys=keys, clock=SystemClock(), entropy=SystemEntropy(), create=False, allow_network_fs=True
        )
        try:
            await project_now(journal, place)
            once = _lines(place)
            await project_now(journal, place)
        finally:
            await journal.close()
    except HoldfastError as error:
        raise BackupDamaged(f"its journal cannot be gone on with: {error.message}") from error
    for path, lines in before.items():
        if set(lines) - set(once.get(path, ())):
            raise BackupDamaged(f"{path.name} loses lines when the journal is projected on it")
    if _lines(place) != once:
        raise BackupDamaged("its memory files and its journal do not come to rest")


def _lines(place: MemoryPlace) -> dict[Path, tuple[bytes, ...]]:
    paths = [place.memory_file, *sorted(place.days.glob("*.md"))]
    return {path: tuple(path.read_bytes().splitlines()) for path in paths if path.is_file()}
