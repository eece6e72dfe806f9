"""How far this machine's journal has come, kept outside its file: the high-water mark, and the stamp of the file.

A journal file copied back from an older day looks healthy from inside. What gives it away is the high-water mark: the
highest record number (under the highest incarnation) that any session here has seen committed. It is kept in two kinds
of place: each session's own page, and `high-water.json`, into which the marks of dead sessions are folded.

The mark is never ahead of the durable journal: a session raises it only after a synced commit has returned, and no
later write lowers the journal but a restore, which raises the incarnation. It may lag (a kill between commit and mark,
power loss before the page reached the disk), so a journal above the mark is normal and one below it is an older copy.

No process waits for a lock here. A session writes no page but its own; folding is one process's turn at a time, and a
process that does not get the turn leaves the folding to the next sweep. The order is: prove the session dead, read its
mark, write `high-water.json` durably, only then delete the page. A crash before the write changes nothing; between
write and delete it leaves a page whose mark is folded a second time, to no effect. Readers take the pages first and the
file second, so a page deleted under their eyes is one whose mark the file already holds.

The stamp tells whether the journal's file and the log beside it belong together. SQLite plays a write-ahead log into
whatever file has its name. A file copied back from an older day under the log of a killed process becomes a mixture:
new pages where the log has them, old ones elsewhere. It looks as new as its log, and yet what a wal_checkpoint had
moved into the lost file is missing: a task that has paid is not found any more, and pays again. The stamp is a number
in the file that rises right before every wal_checkpoint (also the one that SQLite makes when the last writer closes),
so that each state of the file has one of its own. `stamp.json` keeps the highest stamp that the file *alone*, without
its log, is known to hold: noted after every complete wal_checkpoint, before the log can start again, and where the file
is opened without a log. A crash before the note leaves a log that still holds everything. A file whose own stamp is
lower is an older copy. The file is read past its log only while no process has the journal open
(`JournalUse.exclusive`): no wal_checkpoint runs then, and no lock of this process is dropped by closing it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import cast

import apsw

from holdfast.errors import HighWaterDamaged, InvariantViolated, JournalOlderCopy
from holdfast.host.private_files import TEMPORARY_SUFFIX, open_private, sync_folder, write_atomically
from holdfast.host.sqlite import Db, open_alone
from holdfast.journal.admin import HighWater
from holdfast.journal.sqlite.host.page_reader import SESSIONS, is_done, page_ids, page_path, parsed, read_bytes
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
    ids whose pages are gone; none when it is another process's turn. Blocks for a few syncs."""
    with turn(folder / _TURN) as mine:
        if not mine:
            return []
        _remove_leftovers(folder / SESSIONS)
        _remove_leftovers(folder)
        dead = [one for one in page_ids(folder) if one not in keep and is_done(folder, one)]
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
            raise ValueError(f"its format is {fields['format']!r}; this Holdfast reads {FORMAT}")
        if fields["journal_id"] != folder.name:
            raise ValueError(f"it belongs to another journal, {fields['journal_id']!r}")
        return HighWater(whole_number(fields["incarnation"]), whole_number(fields[number]))
    except (ValueError, KeyError, TypeError, RecursionError, InvariantViolated) as error:
        raise HighWaterDamaged(f"{folder / name} cannot be read: {error}") from error


def whole_number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
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


def _remove_leftovers(folder: Path) -> None:
    """Temporary files of writers that were killed."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        try:
            if time.time() - path.lstat().st_mtime > _LEFTOVER_AGE_S:
                path.unlink()
        except FileNotFoundError:
            continue


_STAMP_FILE = "stamp.json"
_RAISE_STAMP = (
    "INSERT INTO meta (key, value) VALUES ('stamp', 1) "
    "ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value"
)


def raise_stamp(db: Db) -> int:
    """Raise the stamp inside the transaction; returns the new one."""
    row = db.execute(_RAISE_STAMP).fetchone()
    if row is None:
        raise InvariantViolated("stamp", "the journal has no stamp")
    return cast(int, row[0])


def check_file(path: Path, folder: Path) -> None:
    """Refuse a file that is older than its log, or than any file that was here. Held alone.
    Raises JournalOlderCopy, HighWaterDamaged."""
    found, known = _find_alone(path), noted(folder)
    if found is None:
        return  # damaged, or in the middle of a wal_checkpoint that its log repeats
    if found < known:
        raise JournalOlderCopy(
            f"{path}: the file is an older copy. It has stamp {found.sequence} of incarnation {found.incarnation}, but "
            f"this machine already wrote stamp {known.sequence} of incarnation {known.incarnation} to it. The -wal "
            "file next to it may belong to the newer file"
        )
    if not _has_log(path):
        note(folder, found)


def note(folder: Path, stamp: HighWater) -> None:
    """Remember that the file alone holds this stamp. Two at once may leave the lower one."""
    if stamp <= noted(folder):
        return
    fields = {"format": FORMAT, "journal_id": folder.name, "incarnation": stamp.incarnation, "stamp": stamp.sequence}
    write_atomically(folder / _STAMP_FILE, json.dumps(fields).encode() + b"\n")


def noted(folder: Path) -> HighWater:
    """The stamp that the file alone is known to hold; zero where nothing is known."""
    return read_mark(folder, _STAMP_FILE, number="stamp")


def _find_alone(path: Path) -> HighWater | None:
    """Incarnation and stamp of the file as it is without its log."""
    try:
        with closing(open_alone(path, follow_links=False)) as db:
            meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        return HighWater(whole_number(meta["incarnation"]), whole_number(meta.get("stamp", 0)))
    except (apsw.Error, KeyError, TypeError, UnicodeDecodeError, InvariantViolated):
        return None


def _has_log(path: Path) -> bool:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    except FileNotFoundError:
        return False
