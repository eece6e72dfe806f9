"""Who uses the journal file: many sessions together, or one repair alone.

`use.lock` is held shared by every process that opens the journal and exclusively by one that rewrites
it. The kernel gives it back when the process ends, however it ends. No process blocks in the kernel:
waiting is asking again, so the event loop stays free and a wait ends on time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from holdfast.errors import JournalBusy
from holdfast.host.private_files import ensure_private_folder, explained, open_private

_FILE = "use.lock"
_ASK_AGAIN_S = 0.02


class JournalUse:
    """A hold on the journal file. Close it, or use it as a context manager."""

    __slots__ = ("_fd", "is_exclusive")

    def __init__(self, fd: int, *, is_exclusive: bool) -> None:
        self._fd = fd
        self.is_exclusive = is_exclusive

    @classmethod
    async def shared(cls, folder: Path, *, timeout_s: float = 0.0) -> JournalUse:
        """Use the journal beside others. Raises JournalBusy while it is being repaired."""
        return await cls._wait(folder, fcntl.LOCK_SH, timeout_s, "is being repaired")

    @classmethod
    async def exclusive(cls, folder: Path, *, timeout_s: float = 0.0) -> JournalUse:
        """Use the journal alone. Raises JournalBusy while others have it open. A process gives up its own shared hold
        first; there is no way to turn one into the other that cannot deadlock with a second process doing the same."""
        return await cls._wait(folder, fcntl.LOCK_EX, timeout_s, "is open in another process")

    @classmethod
    async def _wait(cls, folder: Path, kind: int, timeout_s: float, why: str) -> JournalUse:
        ensure_private_folder(folder)
        path = folder / _FILE
        fd = open_private(path, os.O_RDWR | os.O_CREAT)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        try:
            while not _try_lock(fd, kind, path):
                if loop.time() >= until:
                    raise JournalBusy(f"the journal of {folder} {why}")
                await asyncio.sleep(_ASK_AGAIN_S)
        except BaseException:  # also a cancel: no lock is kept
            os.close(fd)
            raise
        return cls(fd, is_exclusive=kind == fcntl.LOCK_EX)

    def close(self) -> None:
        """Give up the hold. Safe to repeat."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        fcntl.flock(fd, fcntl.LOCK_UN)  # by hand: a forked child may hold a copy of the descriptor
        os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def turn(path: Path) -> Generator[bool]:
    """True where no one else holds this file's lock; held until the block is left. No one waits for it.
    A crash gives it back. It is unlocked by hand: a forked child may hold a copy of the descriptor."""
    fd = open_private(path, os.O_RDWR | os.O_CREAT)
    mine = False
    try:
        mine = _try_lock(fd, fcntl.LOCK_EX, path)
        yield mine
    finally:
        if mine:
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _try_lock(fd: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise explained(error, path) from error
    return True
