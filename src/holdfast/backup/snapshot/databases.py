"""Copies of live databases, by SQLite itself.

A copy is the state after some commit, whole: SQLite's backup in one step holds one read lock, and
in WAL mode that stops no writer. Copying the file instead would lose what is in its log, and the
result would still look healthy. Every copy is checked before it counts, and nothing but the file
itself is left beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast
from urllib.parse import quote

import apsw

from holdfast.backup.archive.manifest import Journal
from holdfast.errors import SnapshotFailed
from holdfast.host.sqlite import Db, open_db

BUSY_WAIT_MS = 10_000
_BESIDE = ("-wal", "-shm", "-journal")


def copy_database(source: Path, copy: Path) -> None:
    """Copy a live SQLite database into the empty file `copy`, in one step, and check the copy.

    Raises SnapshotFailed: without a whole copy there is no snapshot, rather than one without it.
    """
    try:
        origin = _open_quietly(source)
        try:
            made = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                _typed(made).pragma("synchronous", 0)  # a copy that a crash cuts off is no copy
                with made.backup("main", origin, "main") as act:
                    while not act.done:
                        act.step()
            finally:
                made.close()
        finally:
            origin.close()
        _check_database(copy)
    except apsw.Error as error:
        raise SnapshotFailed(
            f"{source} is a database of which no whole copy can be made: {error}",
            hint="close or repair it, or move it out of the agent's folder",
        ) from error
    for suffix in _BESIDE:
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)


def _open_quietly(path: Path) -> apsw.Connection:
    """For reading. A log that needs recovery must be opened for writing; it is not moved."""
    flags = apsw.SQLITE_OPEN_NOFOLLOW
    try:
        found = apsw.Connection(str(path), flags=flags | apsw.SQLITE_OPEN_READONLY)
        found.set_busy_timeout(BUSY_WAIT_MS)
        _typed(found).execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        found = apsw.Connection(str(path), flags=flags | apsw.SQLITE_OPEN_READWRITE)
        found.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        found.set_busy_timeout(BUSY_WAIT_MS)
    return found


def _check_database(path: Path) -> None:
    db = open_alone(path)
    try:
        found = db.execute("PRAGMA integrity_check(1)").fetchone()
    finally:
        db.close()
    if found is None or found[0] != "ok":
        raise SnapshotFailed(
            f"the copy of the database {path.name} is damaged: {found}",
            hint="the database itself is damaged: repair it first",
        )


def open_alone(path: Path) -> Db:
    """A database that nobody else has, read without making any file beside it."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return open_db(f"file:{quote(str(path))}?immutable=1", flags=flags)


def sequence_of(journal: Path) -> int:
    """The last record that is committed now: the copy must have at least this one."""
    try:
        db = _typed(_open_quietly(journal))
        try:
            row = db.execute("SELECT max(n) FROM record").fetchone()
        finally:
            db.close()
    except apsw.Error as error:
        raise SnapshotFailed(f"the journal {journal} cannot be read: {error}") from error
    return int(str(row[0])) if row and row[0] is not None else 0


def read_mark(copy: Path) -> Journal:
    try:
        db = open_alone(copy)
        try:
            meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
            row = db.execute("SELECT max(n) FROM record").fetchone()
        finally:
            db.close()
        return Journal(
            id=str(meta["journal_id"]),
            incarnation=int(str(meta["incarnation"])),
            sequence=int(str(row[0])) if row and row[0] is not None else 0,
        )
    except (apsw.Error, KeyError, ValueError) as error:
        raise SnapshotFailed(f"{copy.name} is no journal: {error}") from error


def _typed(connection: apsw.Connection) -> Db:
    return cast(Db, connection)
