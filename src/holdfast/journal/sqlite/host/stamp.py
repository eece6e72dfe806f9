"""Whether the journal's file and the log beside it belong together.

SQLite plays a write-ahead log into whatever file bears its name. A file copied back from an older
day under the log of a killed process becomes a mixture: new pages where the log has them, old
ones elsewhere. It looks as new as its log, and yet what a wal_checkpoint had moved into the lost
file is missing: a task that has paid is not found any more, and pays again.

What gives it away is the stamp, a number in the file that rises right before every wal_checkpoint (also the one that
SQLite makes when the last writer closes), so that each state of the file has one of its own. `stamp.json` keeps the
highest stamp that the file *alone*, without its log, is known to hold: noted after every complete wal_checkpoint,
before the log can start again, and where the file is opened without a log. A crash before the note leaves a log that
still holds everything. A file whose own stamp is lower is an older copy.

The file is read past its log only while no process has the journal open (`JournalUse.exclusive`): no
wal_checkpoint runs then, and no lock of this process is dropped by closing it.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import cast

import apsw

from holdfast.errors import InvariantViolated, JournalOlderCopy
from holdfast.host.private_files import write_atomically
from holdfast.host.sqlite import Db, open_alone
from holdfast.journal.sqlite.host.high_water import FORMAT, HighWater, read_mark, whole_number

_FILE = "stamp.json"
_RAISE = (
    "INSERT INTO meta (key, value) VALUES ('stamp', 1) "
    "ON CONFLICT (key) DO UPDATE SET value = value + 1 RETURNING value"
)


def raise_stamp(db: Db) -> int:
    """Raise the stamp inside the transaction; returns the new one."""
    row = db.execute(_RAISE).fetchone()
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
            f"{path} has stamp {found.sequence} of incarnation {found.incarnation}, but on this "
            f"machine it has had stamp {known.sequence} of incarnation {known.incarnation}: the "
            "file is an older copy, and the -wal file next to it may belong to a newer one"
        )
    if not _has_log(path):
        note(folder, found)


def note(folder: Path, stamp: HighWater) -> None:
    """Remember that the file alone holds this stamp. Two at once may leave the lower one."""
    if stamp <= noted(folder):
        return
    fields = {"format": FORMAT, "journal_id": folder.name, "incarnation": stamp.incarnation, "stamp": stamp.sequence}
    write_atomically(folder / _FILE, json.dumps(fields).encode() + b"\n")


def noted(folder: Path) -> HighWater:
    """The stamp that the file alone is known to hold; zero where nothing is known."""
    return read_mark(folder, _FILE, number="stamp")


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
