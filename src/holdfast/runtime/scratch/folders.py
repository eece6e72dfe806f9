"""Where scratch folders are: `ROOT/TASK/files`, one for the run that holds the task.

The path is the same for every run of a task, because its code may pass it to tools, and arguments
must not change from run to run. The folder itself is not: a run begins by moving what it finds
there out of the way and making a new one, so a leftover is never used, whatever is in it. What
was moved away is called `gone-...` and is removed by the next run or sweep.

`files` is moved by its name only by a run that begins, or where no run can come any more: the task
has ended for good. Everybody else, also a run that ends, removes what it holds through its
descriptor: if another run has come between, it has moved that very folder away and works in a new
one. An empty folder may stay until the task has ended.

A dead worker cannot write into the new folder; a live one that has lost its task can, by the
path, until it notices. `holdfast worker` is killed by its timer before that; a process that only
embeds an engine stops its runs, but a thread of a blocking tool there may run for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.core.ids import TaskId, parse_task_id
from holdfast.errors import HoldfastError, ScratchRefused
from holdfast.host import tree, tree_io
from holdfast.host.private_files import FOLDER_MODE, ensure_private_folder, explained
from holdfast.journal.contract import Journal
from holdfast.journal.records import TaskState

FILES = "files"
GONE = "gone-"
_ENDED_FOR_GOOD = (TaskState.SUCCEEDED, TaskState.CANCELLED)
_TRIES_MAX = 10  # another process may remove the task's folder when it is empty


class Folder:
    """A run's own folder: its path, and the descriptor that stays with it wherever it is moved."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    def check(self) -> None:
        """Make the folder again where it was removed; another one in its place is refused."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            self.path.mkdir(FOLDER_MODE)
            new = tree.open_folder(str(self.path))
            os.dup2(new, self.fd, inheritable=False)
            os.close(new)
            return
        mine = os.fstat(self.fd)
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise ScratchRefused(f"{self.path} is not the folder that this run was given")

    def remove(self) -> None:
        """Remove what it holds, and what was moved away beside it; the last use of this folder."""
        try:
            tree_io.empty(self.fd)
        finally:
            os.close(self.fd)
        _remove_gone(self.path.parent)


class ScratchFolders:
    """The scratch folders of one journal."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, task_id: TaskId) -> Folder:
        """A new, empty folder for the run that holds the task. Raises JournalFull, ReadOnly."""
        above = self.root / task_id
        try:
            ensure_private_folder(self.root)
            return self._open(above)
        except OSError as error:
            raise explained(error, above) from error

    def _open(self, above: Path) -> Folder:
        for number in range(_TRIES_MAX):
            try:
                ensure_private_folder(above)
                with contextlib.suppress(FileNotFoundError):
                    _move_away(above)
                (above / FILES).mkdir(FOLDER_MODE)
                return Folder(above / FILES, tree.open_folder(str(above / FILES)))
            except (FileNotFoundError, FileExistsError):
                if number == _TRIES_MAX - 1:
                    raise
        raise AssertionError("not reached")

    def leftovers(self) -> Iterator[TaskId]:
        """Tasks of which something is here."""
        try:
            names = os.listdir(self.root)
        except OSError:
            return
        for name in names:
            with contextlib.suppress(HoldfastError):
                yield parse_task_id(name)

    def open_leftover(self, task_id: TaskId) -> int | None:
        """The descriptor of what is at the task's path now."""
        try:
            return tree.open_folder(str(self.root / task_id / FILES))
        except OSError:
            return None

    def tidy(self, task_id: TaskId) -> None:
        """Remove what was moved away here, and the task's folder where nothing else is in it."""
        _remove_gone(self.root / task_id)

    def forget(self, task_id: TaskId) -> None:
        """Remove all of a task that will not run again."""
        above = self.root / task_id
        with contextlib.suppress(OSError):
            _move_away(above)
        _remove_gone(above)


def _remove_gone(above: Path) -> None:
    try:
        folder = tree.open_folder(str(above))
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(GONE):
                    _remove(folder, name)
    finally:
        os.close(folder)
    with contextlib.suppress(OSError):
        above.rmdir()


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        fd = tree.open_folder(name, at=folder)
        try:
            tree_io.empty(fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=folder)


def _move_away(above: Path) -> None:
    os.rename(above / FILES, above / f"{GONE}{os.urandom(8).hex()}")


async def sweep(place: ScratchFolders, journal: Journal) -> None:
    """Remove what dead runs have left, of tasks that no run holds now. A disk that will not let
    go of it is no reason to stop: the next sweep tries again."""
    for task_id in list(place.leftovers()):
        fd = place.open_leftover(task_id)  # first: a run that comes later has another folder
        try:
            row = await journal.find_task(task_id)
            over = row is None or row.erased or row.state in _ENDED_FOR_GOOD
            if fd is not None and row is not None and row.state is not TaskState.RUNNING:
                await asyncio.to_thread(tree_io.empty, fd)
        finally:
            if fd is not None:
                os.close(fd)
        await asyncio.to_thread(place.forget if over else place.tidy, task_id)


def chained(*acts: Callable[[], None]) -> None:
    for act in acts:
        act()
