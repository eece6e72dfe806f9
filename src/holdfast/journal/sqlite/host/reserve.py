"""Space set aside so that a full disk cannot stop running calls from recording their results.

Beside the journal, on the same file system, is a file of real blocks. When a write finds no space, `release` gives them
back: no new step begins from then on, and what was already sent is recorded in the room that became free. When there is
space again `try_restore` takes a new reserve, and only then do steps begin again. The file is shared by all sessions of
the journal; its contents mean nothing and every act is safe to repeat or to be killed in.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from holdfast.host.private_files import open_private

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
