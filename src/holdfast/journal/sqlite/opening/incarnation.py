"""The journal's incarnation, seen and raised from outside: it goes with the agent's.

An arbiter grants incarnations; the journal of the instance that got one is raised to it before
anybody acts under it, so that every epoch and fence from then on is above all that an instance
before it can have issued. Unlike a restore this loses nothing: it is done only to a journal that
is not behind its high-water mark, and no task becomes suspect.

Alone, in one transaction, then the mark. A crash in between leaves a journal of the new
incarnation, which outranks every older mark; raising it again changes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from holdfast.core.clock import Clock
from holdfast.core.ports import KeyRing
from holdfast.errors import JournalBusy, JournalStopped
from holdfast.host.private_files import check_place, check_private_file, ensure_private_folder
from holdfast.host.sqlite import open_db
from holdfast.journal.sqlite.host.high_water import HighWater, raise_stored
from holdfast.journal.sqlite.host.stop_flag import find_stopped
from holdfast.journal.sqlite.host.use_lock import JournalUse
from holdfast.journal.sqlite.opening.open import check_keys, check_not_older, connect, get_meta, peek
from holdfast.journal.sqlite.writer import translated

ALONE_WAIT_S = 20.0


def read_incarnation(path: Path) -> int:
    """Of the journal at this path; 0 where there is none. Changes nothing."""
    if not os.path.lexists(path):
        return 0
    check_place(path)
    check_private_file(path)
    try:
        db = open_db(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
        try:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.set_busy_timeout(1_000)
            return int(str(get_meta(db, "incarnation")))
        finally:
            db.close()
    except apsw.Error as error:
        raise translated(error) from error


async def raise_incarnation(
    path: Path, *, to: int, keys: KeyRing, clock: Clock, instance_folder: Path, wait_s: float = ALONE_WAIT_S
) -> None:
    """Make the journal's incarnation at least so high. Safe to repeat.

    Raises:
        JournalOlderCopy: it is behind its mark: a restore is due, not this.
        JournalBusy: another process has it open.
    """
    check_place(path)
    check_private_file(path)
    try:
        folder = instance_folder / peek(path)
        ensure_private_folder(instance_folder)
        ensure_private_folder(folder)
        with await JournalUse.exclusive(folder, timeout_s=wait_s):
            _raise(path, folder, to=to, keys=keys, clock=clock)
    except apsw.Error as error:
        raise translated(error) from error


def _raise(path: Path, folder: Path, *, to: int, keys: KeyRing, clock: Clock) -> None:
    if find_stopped(folder) is not None:
        raise JournalStopped(f"{path} stopped at a failed sync and was not repaired yet")
    db = connect(path)
    try:
        check_keys(db, keys)
        found = int(str(get_meta(db, "incarnation")))
        sequence = check_not_older(db, path, folder, found)
        if found >= to:
            return
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE meta SET value = ? WHERE key = 'incarnation'", (to,))
        db.execute("COMMIT")
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)  # the file alone is the journal
    finally:
        db.close()
    if not raise_stored(folder, HighWater(to, sequence), at_ms=clock.wall_ms()):
        raise JournalBusy(f"the marks of {path} are being folded")
