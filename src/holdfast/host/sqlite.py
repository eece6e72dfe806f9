"""The border to SQLite: how a database is opened and copied, and the part of a connection that we use.

Every connection of the package is opened here, with the flags and pragmas of its purpose. Opening to look changes
nothing: SQLite would otherwise move a database's log into its file when the last connection is closed. apsw's own stubs
leave row values half unknown; rows are read by position and checked where they become values of ours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote

import apsw

BUSY_MS = 10_000  # how long a lock of another process is waited for
SLOW_COMMIT_S = 0.002
COMMITS_TIMED = 64
READ = apsw.SQLITE_OPEN_READONLY
WRITE = apsw.SQLITE_OPEN_READWRITE

Row = tuple[Any, ...]  # Any: SQLite's five value types, told apart where a row is parsed
Bindings = Sequence[Any] | Mapping[str, Any]  # Any: as above, on the way in
WalHook = Callable[[Any, str, int], int]  # Any: the connection itself
Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]


class Cursor(Protocol):
    def fetchone(self) -> Row | None: ...
    def fetchall(self) -> list[Row]: ...
    def __iter__(self) -> Iterator[Row]: ...


class Db(Protocol):
    """An open connection; one thread at a time."""

    authorizer: Authorizer | None

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, bindings: Bindings = ..., /) -> Cursor: ...
    def executemany(self, sql: str, rows: Sequence[Bindings], /) -> Cursor: ...
    def pragma(self, name: str, value: Any = ..., /) -> Any: ...  # Any: a pragma's own type
    def config(self, operation: int, value: int, /) -> int: ...
    def changes(self) -> int: ...
    def total_changes(self) -> int: ...
    def last_insert_rowid(self) -> int: ...
    def set_busy_timeout(self, milliseconds: int, /) -> None: ...
    def set_wal_hook(self, hook: WalHook | None, /) -> None: ...
    def wal_checkpoint(self) -> tuple[int, int]: ...
    def close(self) -> None: ...


class CommitTimes:
    """How long the disk takes for a commit. A quick one is made where it was asked for, on the event loop: a thread
    costs more than the wait, and on busy cores much more. A slow one belongs in a thread. The median decides: where all
    cores are busy a single commit may take long, on any disk."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=COMMITS_TIMED)
        self._count = 0
        self.median_s = 0.0

    def add(self, seconds: float) -> None:
        self._took.append(seconds)
        self._count += 1
        if self._count % COMMITS_TIMED == 0:
            self.median_s = sorted(self._took)[COMMITS_TIMED // 2]

    @property
    def slow(self) -> bool:
        return self.median_s > SLOW_COMMIT_S


def open_existing(path: Path, *, busy_ms: int = BUSY_MS) -> Db:
    """A database that is there, for writing. Closing it leaves its log as it is."""
    db = open_db(str(path), flags=WRITE | apsw.SQLITE_OPEN_NOFOLLOW, busy_ms=busy_ms)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return db


def open_or_create(path: Path) -> Db:
    """A database of our own, made where there is none."""
    return open_db(str(path), flags=WRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOFOLLOW, busy_ms=BUSY_MS)


def open_to_read(path: Path) -> Db:
    """A database that others may write meanwhile."""
    return open_db(str(path), flags=READ, busy_ms=BUSY_MS)


def open_alone(path: Path, *, follow_links: bool = True) -> Db:
    """A database that no other process has open, read without its log and without making any file."""
    flags = READ | apsw.SQLITE_OPEN_URI | (0 if follow_links else apsw.SQLITE_OPEN_NOFOLLOW)
    return open_db(f"file:{quote(str(path))}?immutable=1", flags=flags)


def open_quietly(path: Path) -> Db:
    """For reading a live database. A log that needs recovery must be opened for writing; it is not moved."""
    try:
        db = open_db(str(path), flags=READ | apsw.SQLITE_OPEN_NOFOLLOW, busy_ms=BUSY_MS)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        return db
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        return open_existing(path)


def open_in_memory() -> Db:
    return open_db(":memory:", flags=WRITE | apsw.SQLITE_OPEN_CREATE)


def open_db(name: str, *, flags: int, busy_ms: int = 0) -> Db:
    db = cast(Db, apsw.Connection(name, flags=flags))
    if busy_ms:
        db.set_busy_timeout(busy_ms)
    return db


def log_ahead(db: Db, *, synchronous: str = "FULL") -> None:
    """Commits go to a log first; with FULL each one is synced before it returns.

    SQLite waits for no lock while it changes to the log, so two processes that open a new file at once would fail.
    """
    ends = time.monotonic() + BUSY_MS / 1_000
    while True:
        try:
            db.pragma("journal_mode", "wal")
            break
        except apsw.BusyError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.005)
    db.pragma("synchronous", synchronous)


def copy_whole(source: Path, copy: Path) -> str:
    """Copy a live database into the empty file `copy`, in one step, and check the copy.
    Returns what is wrong with the copy, empty where it is sound. Raises apsw.Error.
    The copy is the state after some commit: one step holds one read lock, and in WAL mode that stops
    no writer. Copying the file instead would lose what is in its log, and would still look healthy."""
    origin = open_quietly(source)
    try:
        made = open_db(str(copy), flags=WRITE)
        try:
            made.pragma("synchronous", 0)  # a copy that a crash cuts off is no copy
            with cast(apsw.Connection, made).backup("main", cast(apsw.Connection, origin), "main") as act:
                while not act.done:
                    act.step()
        finally:
            made.close()
    finally:
        origin.close()
    found = _first_damage(copy)
    for suffix in ("-wal", "-shm", "-journal"):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)
    return found


def _first_damage(copy: Path) -> str:
    db = open_alone(copy)
    try:
        found = db.execute("PRAGMA integrity_check(1)").fetchone()
    finally:
        db.close()
    return "" if found is not None and found[0] == "ok" else str(found)
