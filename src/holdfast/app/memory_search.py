"""Searching an agent's memory: its files, and the lines that still wait in the journal.

A line is durable in the journal before it is in its file, and may wait there if the file cannot be
written. So a search reads both, and an entry that is in both counts once, by its id. What could not
be read is reported: "no match" must not be said of a file that was not read. Nothing is written here.
"""

from __future__ import annotations

import asyncio
import os

import msgspec
from msgspec import structs

from holdfast.app.binder import open_file_journal
from holdfast.core.ports import Recalled, Recollection, Unread
from holdfast.errors import HoldfastError
from holdfast.journal.contract import Journal, Remark, RemarkTo
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.memory_place import DAYS, MEMORY_FILE, MemoryPlace
from holdfast.memory import sidecar
from holdfast.memory.lines import day_of, entry_id, one_line
from holdfast.memory.projection import find_position
from holdfast.memory.search import recall, unread_of

WAITING_MAX = 500  # lines of the journal that a search looks at before they are in their files


async def recall_with(journal: Journal, place: MemoryPlace, words: str, *, limit: int, since: str = "") -> Recollection:
    """What the files say, and what the journal keeps that is not in them yet."""
    waiting, unread = await _waiting(journal, place)
    found = await asyncio.to_thread(recall, place, words, limit=limit, since=since, waiting=waiting)
    return structs.replace(found, unread=(*found.unread, *unread))


async def search(home: AgentHome, words: str, *, limit: int, since: str = "") -> Recollection:
    """The same for a person, with or without a worker; without a journal, only the files."""
    place = MemoryPlace(folder=home.folder)
    if not os.path.lexists(home.journal):
        return await asyncio.to_thread(recall, place, words, limit=limit, since=since)
    try:
        journal, _ = await open_file_journal(home.journal, create=False)
    except (HoldfastError, OSError) as error:
        found = await asyncio.to_thread(recall, place, words, limit=limit, since=since)
        return structs.replace(found, unread=(*found.unread, unread_of(home.journal.name, error)))
    try:
        return await recall_with(journal, place, words, limit=limit, since=since)
    finally:
        await journal.close()


async def _waiting(journal: Journal, place: MemoryPlace) -> tuple[list[Recalled], tuple[Unread, ...]]:
    try:
        position = await find_position(journal, place)
        kept = await journal.remarks_after(position, limit=WAITING_MAX + 1)
    except HoldfastError as error:
        return [], (unread_of("the journal", error),)
    more = Unread(
        file="the journal",
        why=f"more than {WAITING_MAX} lines wait to be written; only the first were searched",
        hint="`holdfast memory add` or a worker writes them, or says why it cannot",
    )
    lines = [_as_line(one.remark, one.at_ms) for one in kept[:WAITING_MAX]]
    return lines, (more,) if len(kept) > WAITING_MAX else ()


def _as_line(remark: Remark, at_ms: int) -> Recalled:
    return Recalled(
        file=file_of(remark, at_ms),
        line=0,
        text=one_line(remark.text),
        origin=remark.origin,
        day=day_of(at_ms),
        id=entry_id(remark.remark_id),
    )


class MissingFile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a memory file that is missing."""

    known: int = 0  # lines that it had after our last write: they are written again
    waiting: int = 0  # lines in the journal that are still to be written into it
    lost: int = 0  # lines in the journal that were in it, and are not written again
    why: str = ""  # the journal could not be read


async def look_for_missing(home: AgentHome, name: str) -> MissingFile:
    """Whether a missing file is new or lost. `name`: as in `Recalled.file`."""
    place = MemoryPlace(folder=home.folder)
    base = sidecar.load_state(place.sidecar(home.folder / name)).base
    known = 0 if base is None else len(base.splitlines())
    if not os.path.lexists(home.journal):
        return MissingFile(known=known)
    try:
        journal, _ = await open_file_journal(home.journal, create=False)
        try:
            position = await find_position(journal, place)
            kept = await journal.remarks_after(0, limit=WAITING_MAX)
        finally:
            await journal.close()
    except (HoldfastError, OSError) as error:
        return MissingFile(known=known, why=unread_of("", error).why)
    ours = [one.number for one in kept if file_of(one.remark, one.at_ms) == name]
    waiting = sum(number > position for number in ours)
    return MissingFile(known=known, waiting=waiting, lost=0 if known else len(ours) - waiting)


def file_of(remark: Remark, at_ms: int) -> str:
    return MEMORY_FILE if remark.to is RemarkTo.MEMORY else f"{DAYS}/{day_of(at_ms)}.md"
