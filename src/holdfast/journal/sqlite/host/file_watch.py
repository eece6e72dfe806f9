"""Whether the file that this process has open is still the journal: looked at every second, also by one that waits.

Two things end the use of an open file. The stop sign: a sync failed in some process, so the file must be rewritten by
one process alone, and each process that keeps it open stands in the way of that. And its name: where the file was
removed or another one put in its place, what is written here reaches no one.

The watch only looks; the journal then lets go of the file (its connections and its share of the use lock), and every
use of it from then on raises the reason. It keeps the pages of its sessions: their locks say that a process still lives
which may have calls under way, and only the end of its engine gives them up. A process whose event loop is blocked
(a command that waits for a typed word) cannot look, and lets go when it is free again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import HoldfastError, JournalGone, JournalStopped
from holdfast.journal.sqlite.host.disk_trouble import find_stopped

LOOK_EVERY_S = 1.0  # a repair waits for 20 times that

LetGo = Callable[[HoldfastError], bool]  # False: not now, inside a commit


class FileWatch:
    """Looks after one open journal; needs a running event loop."""

    def __init__(self, path: Path, folder: Path, *, let_go: LetGo) -> None:
        self._path = path
        self._folder = folder
        self._let_go = let_go
        self._opened = _file_id(path)
        self._found: HoldfastError | None = None
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def check(self) -> None:
        """Raises JournalStopped or JournalGone once the journal has let go."""
        if self._found is not None:
            raise type(self._found)(self._found.message)

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        found = self._find_trouble()
        if found is not None and self._let_go(found):
            self._found = found
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _find_trouble(self) -> HoldfastError | None:
        try:
            if (stopped := find_stopped(self._folder)) is not None:
                return JournalStopped(f"a write to {self._path} failed ({stopped.reason}): this process has closed it")
            if _file_id(self._path) != self._opened:
                return JournalGone(f"{self._path} was removed or replaced while this process had it open")
        except (OSError, HoldfastError):
            pass  # a file system that does not answer proves nothing
        return None


def _file_id(path: Path) -> tuple[int, int] | None:
    """None where there is no such file."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
