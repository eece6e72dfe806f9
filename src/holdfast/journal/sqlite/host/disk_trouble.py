"""What keeps a journal correct on a full or failing disk: reserved space, and the sign that a sync failed.

The reserve lets running calls record their results on a full disk. Beside the journal, on the same file system, is a
file of real blocks. When a write finds no space, `release` gives them back: no new step begins from then on, and what
was already sent is recorded in the room that became free. When there is space again `try_restore` takes a new reserve,
and only then do steps begin again. The file is shared by all sessions of the journal; its contents mean nothing and
every act is safe to repeat or to be killed in.

After a failed sync the kernel may call pages clean that never reached the disk. What memory shows is then not what a
restart will find, so the file is not tried again: it is rewritten by one process alone (`JournalUse.exclusive`), and
`clear_stopped` comes last, after the new file is durable. The sign is left in two places, because the disk is failing
as it is written: the file `stopped` with the reason, for all sessions, and a byte in the page of the session that saw
it. Either one stops all sessions, across crashes and restarts, until the journal is repaired. A sign that cannot be
read counts.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from holdfast.errors import HoldfastError, JournalStopped
from holdfast.host.private_files import open_private, read_private, remove_durably, write_atomically
from holdfast.journal.sqlite.host.page_reader import CLEAR, STOP_AT, page_ids, page_path, parsed, read_bytes
from holdfast.journal.sqlite.sql_errors import translated

RESERVE_BYTES = 16 * 1024 * 1024
RESERVE_BYTES_MIN = 256 * 1024  # below this the disk counts as full
SHARE_OF_FREE = 8  # never more than an eighth of what is free
_CHUNK = bytes(64 * 1024)


class Reserve:
    """The reserve file in `instance/<journal id>`. All methods are quick enough for the loop."""

    __slots__ = ("_path", "_released")

    def __init__(self, folder: Path) -> None:
        self._path = folder / "reserve"
        self._released = 0  # bytes given back and not set aside again

    @property
    def held(self) -> bool:
        """True while there is something to release."""
        try:
            return self._path.lstat().st_size >= RESERVE_BYTES_MIN
        except FileNotFoundError:
            return False

    def release(self) -> bool:
        """Give the blocks back to the file system. True where there were any."""
        if not self.held:
            return False
        self._released = self._path.lstat().st_size
        fd = open_private(self._path, os.O_RDWR)
        try:
            os.ftruncate(fd, 0)
            os.fsync(fd)  # some file systems hand the blocks out only after this
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        finally:
            os.close(fd)
        return True

    def try_restore(self) -> bool:
        """Set the space aside if it is there; True where a reserve is held on return. After a release the space that
        was given back does not count as returned: steps would begin again inside the reserve."""
        if self.held:
            return True
        free = _free_bytes(self._path.parent)
        size = min(RESERVE_BYTES, free // SHARE_OF_FREE)
        if size < RESERVE_BYTES_MIN or free < 2 * self._released:
            return False
        fd = open_private(self._path, os.O_RDWR | os.O_CREAT)
        try:
            _allocate(fd, size)
            self._released = 0
            return True
        except OSError as error:
            os.ftruncate(fd, 0)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        finally:
            os.close(fd)


def _free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _allocate(fd: int, size: int) -> None:
    """Real blocks, not a hole: by the file system where it can, by writing where it cannot."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    for at in range(0, size, len(_CHUNK)):
        os.pwrite(fd, _CHUNK[: size - at], at)


_STOP_FORMAT = 1
_STOP_FILE = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Why the journal takes no new steps."""

    reason: str
    session_id: str
    at_ms: int


def mark_stopped(folder: Path, *, reason: str, session_id: str, at_ms: int) -> bool:
    """Leave the sign for all sessions; the first reason stays. False where it cannot be kept.
    Also call `SessionPage.mark_stopped`: two places are surer than one on a failing disk."""
    if os.path.lexists(folder / _STOP_FILE):
        return True
    fields = {"format": _STOP_FORMAT, "reason": reason, "session_id": session_id, "at": at_ms}
    try:
        write_atomically(folder / _STOP_FILE, json.dumps(fields).encode() + b"\n")
    except (OSError, HoldfastError):
        return False
    return True


@contextmanager
def stop_on_error(folder: Path) -> Generator[None]:
    """Around a commit that has no session: where the disk reports an error, the sign is left before it is raised."""
    try:
        yield
    except apsw.IOError as error:
        if isinstance(translated(error), JournalStopped):
            mark_stopped(folder, reason=f"the disk reported an error: {error}", session_id="", at_ms=0)
        raise


def find_stopped(folder: Path) -> Stopped | None:
    """The sign, if there is one in either place."""
    try:
        raw = read_private(folder / _STOP_FILE, 65_536)
    except FileNotFoundError:
        return _find_in_pages(folder)
    try:
        fields: dict[str, object] = json.loads(raw)
        at_ms = fields["at"] if type(fields["at"]) is int else 0
        return Stopped(reason=str(fields["reason"]), session_id=str(fields["session_id"]), at_ms=at_ms)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Stopped(reason="a sync failed; its reason cannot be read", session_id="", at_ms=0)


def clear_stopped(folder: Path) -> None:
    """Take the sign away after a repair, while holding `JournalUse.exclusive`: a process that still lives has let go of
    the file. The pages are cleared first: a crash in between leaves the file, so the repair is simply done again."""
    for session_id in page_ids(folder):
        if _says_stopped(folder, session_id):
            fd = open_private(page_path(folder, session_id), os.O_RDWR)
            try:
                os.pwrite(fd, bytes((CLEAR,)), STOP_AT)
            finally:
                os.close(fd)
    remove_durably(folder / _STOP_FILE)


def _find_in_pages(folder: Path) -> Stopped | None:
    for session_id in page_ids(folder):
        if _says_stopped(folder, session_id):
            return Stopped(reason="a sync of the journal failed", session_id=session_id, at_ms=0)
    return None


def _says_stopped(folder: Path, session_id: str) -> bool:
    image = parsed(read_bytes(folder, session_id), session_id=session_id)
    return image is not None and image.stopped
