"""From the journal's remarks to the memory files.

A remark is durable in the journal before anything here begins; the files follow. The order of a
pass: each file with the remarks that are for it (writing.py), then the position, then the
journal's own mark that lets retention erase them. A crash between any two leaves the position
behind the files: the remarks are read again, and each that is there already is known by its
id. So an entry is in its file once, however often a pass was broken off.

The position is believed only where the journal has the remark that it names, with that hash. After
a restore of an older journal, or with a new one, it is not: then the journal's own mark counts, and
what is in the files already is known by its id.

At the start every file that may have been left half way is compared: what was put aside is joined in,
and what is missing behind the position is written.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from holdfast.errors import MemoryFileBusy
from holdfast.journal.contract import Journal, KeptRemark, Remark, RemarkTo
from holdfast.layout.memory_place import MEMORY_FILE, MemoryPlace
from holdfast.memory import sidecar
from holdfast.memory.lines import day_of, entry_id, heading, rendered
from holdfast.memory.writing import Written, locked, write_file

__all__ = ["MEMORY_HEADING", "project_now", "write_remarks", "write_straight"]

BATCH = 500
LOOK_AGAIN_S = 0.1  # while a process has a displaced file open
LOOKS_MAX = 20
MEMORY_HEADING = ("# Memory", "")


async def project_now(journal: Journal, place: MemoryPlace, *, sweep: bool = True) -> list[Written]:
    """Write what the journal has for the files, and join in what was left aside.

    Safe beside other processes that do the same. With `sweep=False` only files with new lines are
    looked at. Raises MemoryFileBusy, ReadOnly, JournalFull, SymlinkRefused and their like: what is
    not written stays in the journal.
    """
    told: list[Written] = []
    position = await find_position(journal, place)
    while True:
        remarks = await journal.remarks_after(position, limit=BATCH)
        if not remarks:
            break
        told += await asyncio.to_thread(write_remarks, place, remarks, journal.journal_id, now_ms=journal.now_ms())
        position = remarks[-1].number
        await journal.close_remarks(position)
    if sweep or any(one.left for one in told):
        told += await asyncio.to_thread(sweep_asides, place, journal.now_ms())
    return told


async def find_position(journal: Journal, place: MemoryPlace) -> int:
    """Behind which remark the files continue."""
    known = await asyncio.to_thread(sidecar.load_position, place.position)
    if known.journal_id != journal.journal_id or not known.number:
        return await journal.remarks_written()
    link = await journal.find_remark_link(known.number)
    if link is not None:
        return known.number if link.hex() == known.link else await journal.remarks_written()
    # Erased, because it is in its file since long; or never there, after a restore.
    later = await journal.remarks_after(known.number, limit=1)
    written = await journal.remarks_written()
    return known.number if later and known.number <= written else written


def write_remarks(
    place: MemoryPlace, remarks: Sequence[KeptRemark], journal_id: str = "", *, now_ms: int
) -> list[Written]:
    """Write these into their files; then the position."""
    files: dict[str, list[str]] = {}
    for kept in remarks:
        day = "" if kept.remark.to is RemarkTo.MEMORY else day_of(kept.at_ms)
        files.setdefault(day, []).append(line_of(kept))
    with locked(place):
        told = [_write(place, day, lines, now_ms) for day, lines in files.items()]
        newest = remarks[-1]
        known = sidecar.load_position(place.position)
        # Another process may be further: going back would write again what people have removed.
        if journal_id and (journal_id != known.journal_id or newest.number > known.number):
            sidecar.save_position(
                place.position, sidecar.Position(journal_id=journal_id, number=newest.number, link=newest.link.hex())
            )
        _keep_report(place, told)
    return told


def write_straight(place: MemoryPlace, remark: Remark, *, now_ms: int) -> list[Written]:
    """Into its file, where there is no journal to go through."""
    kept = KeptRemark(number=0, remark=remark, at_ms=now_ms, link=b"")
    return write_remarks(place, [kept], now_ms=now_ms)


def line_of(kept: KeptRemark) -> str:
    remark = kept.remark
    return rendered(
        id=entry_id(remark.remark_id),
        at_ms=kept.at_ms,
        text=remark.text,
        origin=remark.origin,
        timed=remark.to is RemarkTo.DAY,
    )


def sweep_asides(place: MemoryPlace, now_ms: int) -> list[Written]:
    """Join in what was displaced and not taken: of a pass that died, or by a writer in place.

    Also where a save from before our last write has put away what it added. Waits a moment for
    writers that still have a displaced file open.
    """
    told: list[Written] = []
    for _ in range(LOOKS_MAX):
        with locked(place):
            asides = {one.name for one in place.asides.iterdir()}
            days = {name[:10] for name in asides if not name.startswith(f"{MEMORY_FILE}.")}
            days |= {day_of(now_ms, back=back) for back in (0, 1)}
            passes = [_write(place, day, (), now_ms) for day in ("", *sorted(days))]
            _keep_report(place, passes)
        told += passes
        if not any(one.left for one in passes):
            break
        time.sleep(LOOK_AGAIN_S)
    return told


def signature(place: MemoryPlace, now_ms: int) -> tuple[object, ...]:
    """Changes when a watched file was saved."""
    found: list[object] = []
    for path in (place.memory_file, *(place.day_file(day_of(now_ms, back=at)) for at in (0, 1))):
        try:
            entry = os.lstat(path)
            found.append((entry.st_ino, entry.st_mtime_ns, entry.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _write(place: MemoryPlace, day: str, lines: Sequence[str], now_ms: int) -> Written:
    path = place.day_file(day) if day else place.memory_file
    head = heading(day) if day else MEMORY_HEADING
    try:
        return write_file(place, path, lines, heading=head, now_ms=now_ms)
    except OSError as error:
        raise MemoryFileBusy(f"{path} could not be written: {error}") from error


def _keep_report(place: MemoryPlace, told: Sequence[Written]) -> None:
    import msgspec

    sidecar.add_reports(place.report, [msgspec.to_builtins(one) for one in told if one.worth_telling])
