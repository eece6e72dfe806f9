"""How far this machine's journal has come, kept outside the journal file.

A journal file copied back from an older day looks healthy from inside. What gives it away is the high-water mark: the
highest record number (under the highest incarnation) that any session here has seen committed. It lives in two kinds of
place: each session's own page, and `high-water.json`, into which the marks of dead sessions are folded.

The mark is never ahead of the durable journal: a session raises it only after a synced commit has returned, and no
later write lowers the journal but a restore, which raises the incarnation. It may lag (a kill between commit and mark,
power loss before the page reached the disk), so a journal above the mark is normal and one below it is an older copy.

No process waits for a lock here. A session writes no page but its own; folding is one process's turn
at a time, and a process that does not get the turn leaves the folding to the next sweep. The order is:
prove the session dead, read its mark, write `high-water.json` durably, only then delete the page.
A crash before the write changes nothing; between write and delete it leaves a page whose mark is
folded a second time, to no effect. Readers take the pages first and the file second, so a page
deleted under their eyes is one whose mark the file already holds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import cast

from holdfast.errors import HighWaterDamaged, InvariantViolated
from holdfast.host.private_files import TEMPORARY_SUFFIX, open_private, sync_folder, write_atomically
from holdfast.journal.admin import HighWater
from holdfast.journal.sqlite.host.page_layout import SESSIONS, is_foreign_format, page_ids, page_path, parsed
from holdfast.journal.sqlite.host.page_reader import is_alive, read_bytes
from holdfast.journal.sqlite.host.use_lock import turn

FORMAT = 1
_FILE = "high-water.json"
_TURN = "fold.lock"
_LEFTOVER_AGE_S = 3_600  # longer than any write takes; a younger one may still be under way


def high_water(folder: Path) -> HighWater:
    """The highest mark of `high-water.json` and all pages. Raises HighWaterDamaged."""
    marks = [mark for session_id in page_ids(folder) if (mark := find_mark(folder, session_id))]
    return max([*marks, stored_mark(folder)])


def fold_marks(folder: Path, keep: Collection[str], *, at_ms: int) -> list[str]:
    """Fold the marks of dead sessions into `high-water.json`, then delete their pages.

    Pages in `keep` stay: their slots are still needed by tasks that were not resumed yet. Pages
    of living sessions, of other formats and of unrepaired failed syncs stay always. Returns the
    ids whose pages are gone; none when it is another process's turn. Blocks for a few syncs.
    """
    with turn(folder / _TURN) as mine:
        if not mine:
            return []
        _remove_leftovers(folder / SESSIONS)
        _remove_leftovers(folder)
        dead = [one for one in page_ids(folder) if one not in keep and _is_done(folder, one)]
        marks = [mark for session_id in dead if (mark := find_mark(folder, session_id))]
        if marks:
            _store(folder, max(marks), at_ms=at_ms)
        for session_id in dead:
            page_path(folder, session_id).unlink(missing_ok=True)
        if dead:
            sync_folder(folder / SESSIONS)
        return dead


def raise_stored(folder: Path, mark: HighWater, *, at_ms: int) -> bool:
    """Write a mark that belongs to no page: the new incarnation of a restore.
    Never lowers what is stored. False where another process is folding: try again."""
    with turn(folder / _TURN) as mine:
        if mine:
            _store(folder, mark, at_ms=at_ms)
        return mine


def stored_mark(folder: Path) -> HighWater:
    """What `high-water.json` says; zero where there is none. Raises HighWaterDamaged."""
    return read_mark(folder, _FILE, number="sequence")


def read_mark(folder: Path, name: str, *, number: str) -> HighWater:
    """The mark in a small JSON file of the instance folder; zero where there is none. Raises HighWaterDamaged."""
    try:
        fd = open_private(folder / name, os.O_RDONLY)
    except FileNotFoundError:
        return HighWater()
    with open(fd, "rb") as file:
        raw = file.read(4_096)
    try:
        fields = cast("dict[str, object]", json.loads(raw))
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']!r} is not known")
        if fields["journal_id"] != folder.name:
            raise ValueError(f"it belongs to journal {fields['journal_id']!r}")
        return HighWater(whole_number(fields["incarnation"]), whole_number(fields[number]))
    except (ValueError, KeyError, TypeError, RecursionError, InvariantViolated) as error:
        raise HighWaterDamaged(f"{folder / name} cannot be read: {error}") from error


def whole_number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value


def find_mark(folder: Path, session_id: str) -> HighWater | None:
    """A page's mark, or None where the page is torn: a torn page says nothing, high or low."""
    image = parsed(read_bytes(folder, session_id), session_id=session_id)
    if image is None or image.sequence is None:
        return None
    return HighWater(image.incarnation, image.sequence)


def _store(folder: Path, mark: HighWater, *, at_ms: int) -> None:
    if mark <= stored_mark(folder):
        return
    fields = {"format": FORMAT, "journal_id": folder.name, **asdict(mark), "at": at_ms}
    write_atomically(folder / _FILE, json.dumps(fields, indent=1).encode() + b"\n")


def _is_done(folder: Path, session_id: str) -> bool:
    """Dead, of our format, and not the only witness of a failed sync."""
    if is_alive(folder, session_id):
        return False
    raw = read_bytes(folder, session_id)
    image = parsed(raw, session_id=session_id)
    return not is_foreign_format(raw) and not (image and image.stopped)


def _remove_leftovers(folder: Path) -> None:
    """Temporary files of writers that were killed."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        try:
            if time.time() - path.lstat().st_mtime > _LEFTOVER_AGE_S:
                path.unlink()
        except FileNotFoundError:
            continue
