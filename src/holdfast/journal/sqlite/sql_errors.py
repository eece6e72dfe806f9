"""Errors of SQLite as errors of ours."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import apsw

from holdfast.errors import (
    HoldfastError,
    JournalBusy,
    JournalDamaged,
    JournalFull,
    JournalStopped,
    NotAJournal,
    ReadOnly,
)

# What SQLite says where the file system has no room for the journal's -shm file.
_NO_ROOM = frozenset((apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP, apsw.SQLITE_IOERR_SHMOPEN))


def translated(error: apsw.Error) -> HoldfastError:
    """Our word for an error of SQLite outside a commit."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return JournalBusy("another process holds the journal's lock")
        case apsw.FullError():
            return JournalFull("no space left for the journal")
        case apsw.IOError() if getattr(error, "extendedresult", 0) in _NO_ROOM:
            return JournalFull("no space left for the journal's shared memory")
        case apsw.IOError():
            return JournalStopped(
                f"the disk reported an error: {error}",
                hint="check the system log and the disk; nothing was started, and nothing is lost",
            )
        case apsw.NotADBError():
            return NotAJournal("the file is not a journal, or its first page is damaged")
        case apsw.CorruptError():
            return JournalDamaged(f"the journal file is damaged: {error}")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return ReadOnly(f"the journal cannot be written: {error}")
        case _:
            return JournalDamaged(f"the journal failed: {type(error).__name__}: {error}")


@contextmanager
def in_our_words() -> Generator[None]:
    """Raises what `translated` says of an error of SQLite in the block."""
    try:
        yield
    except apsw.Error as error:
        raise translated(error) from error


def unreadable(error: ValueError | TypeError) -> JournalDamaged:
    """Our word for a row of the file that holds no Holdfast has written."""
    return JournalDamaged(f"a row of the journal cannot be understood: {error}")
