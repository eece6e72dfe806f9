"""How far this folder's memory files are in the journal's remarks.

The position is believed only where the journal has the remark that it names, with that hash. After
a restore of an older journal, or with a new one, it is not: then the folder's mark in the journal counts, and
what is in the files already is known by its id.
"""

from __future__ import annotations

import asyncio
import socket

from holdfast.host.machine import host_id
from holdfast.journal.contract import Journal
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory import sidecar


async def find_position(journal: Journal, place: MemoryPlace) -> int:
    """Behind which remark the files continue."""
    known, here = await asyncio.to_thread(lambda: (sidecar.load_position(place.position), host_id(place.instance)))
    if known.journal_id != journal.journal_id or not known.number:
        return await _mark(journal, here)
    link = await journal.find_remark_link(known.number)
    if link is not None:
        return known.number if link.hex() == known.link else await _mark(journal, here)
    # Erased, because it is in its file since long; or never there, after a restore.
    later = await journal.remarks_after(known.number, limit=1)
    written = await _mark(journal, here)
    return known.number if later and known.number <= written else written


async def _mark(journal: Journal, here: str) -> int:
    """Up to which number the journal knows them to be in this folder's files. An embedded journal has one folder: where
    its mark has another id, the folder was moved, or restored with the journal."""
    marks = {one.folder: one.number for one in await journal.remark_marks()}
    return marks.get(here, 0 if journal.capabilities.hosts else min(marks.values(), default=0))


async def close_position(journal: Journal, place: MemoryPlace, number: int) -> None:
    """Note in the journal that this folder's files have the remarks up to this one."""
    here = await asyncio.to_thread(host_id, place.instance)
    await journal.close_remarks(number, folder=here, name=f"{socket.gethostname()}:{place.folder}")
    if not journal.capabilities.hosts:
        for one in await journal.remark_marks():
            if one.folder != here:
                await journal.forget_folder(one.folder)
