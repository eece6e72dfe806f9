"""Scratch: a folder for a task's working files that survives the loss of the worker's disk.

A task's code is replayed from its start, its tools are not. So the folder of a new run begins empty, the code writes
again what it wrote, and at each step that is closed the folder becomes what it was when that step had ended: the code's
files and the tools'. Code that appends to a file between two calls is right, because what the replay has appended is
replaced. At the step that was open the folder becomes what it was before it, and the step runs on that. From there on
nothing is replaced: the run has caught up.

Records of kind FILES say what the folder held, by the digest of a manifest: `before` a step, in the commit that plans
it or earlier; `after` it, in the commit that closes it or earlier; at the `end` of the task. What a manifest names is
durable before the record is written (Store.keep). So there is no start whose files could be lost, and a closed step has
its files, but for one case: a known outcome is more than its files. Where there is no space for them the outcome is
recorded first, and they follow when there is; if the worker dies in between, the step's files are lost, and `run.call`
says so (ScratchNotKept) on every replay. The same where something among them cannot be kept at all.

Order decides, not names: the folder only ever moves to a manifest with a higher sequence number than the one it holds
(`_at`). That is what makes branches of a gather safe. They share the folder; on replay it becomes, when the gather is
entered, the newest that was recorded inside it, and then no branch moves it: none can take away what another has done
since. What holds for branches: a file that a closed step left is there, whole; a file that some call was writing may be
there half-written; code of a branch that writes between its calls writes again over what is there, so it should write
files whole and not append.

Not recorded with notes (`run.now()` and the like are not async, and replay makes the same files up to them) and rests:
what was written since the last step is written again by the replay.

The folder's path is the same for every run of a task, because its code may pass it to tools, and arguments must not
change from run to run. The folder itself is not: a run begins by moving what it finds there out of the way and making a
new one, so a leftover is never used, whatever is in it. What was moved away is called `gone-...` and is removed by the
next run or sweep. `files` is moved by its name only by a run that begins, or where no run can come any more: the task
has ended for good. Every other caller, also a run that ends, removes what it holds through its descriptor: if another
run has come between, it has moved that very folder away and works in a new one. An empty folder may stay until the task
has ended.

A dead worker cannot write into the new folder; a live one that has lost its task can, by the path, until it notices.
`holdfast worker` is killed by its timer before that; a process that only embeds an engine stops its runs, but a thread
of a blocking tool there may run for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast import errors
from holdfast.core.ids import TaskId, parse_task_id
from holdfast.core.rest import NeedsPerson, Sleep, Suspended
from holdfast.host import tree
from holdfast.host.private_files import FOLDER_MODE, ensure_private_folder, explained
from holdfast.host.tree import Limits
from holdfast.journal.contract import Journal
from holdfast.journal.records import Body, Files, KeptFiles, NewRecord, RecordKind, StepView, TaskState
from holdfast.runtime.scratch.store import Store
from holdfast.runtime.session.task_writer import RETRY_S, TaskWriter

FILES = "files"
GONE = "gone-"
_ENDED_FOR_GOOD = (TaskState.SUCCEEDED, TaskState.CANCELLED)
_TRIES_MAX = 10  # another process may remove the task's folder when it is empty


@dataclass(slots=True, eq=False)
class Folder:
    """A run's own folder: its path, and the descriptor that stays with it wherever it is moved."""

    path: Path
    fd: int

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
            raise errors.ScratchRefused(
                f"{self.path} is no longer the scratch folder that Holdfast made for this run: "
                "another folder or file replaced it"
            )

    def remove(self) -> None:
        """Remove what it holds, and what was moved away beside it; the last use of this folder."""
        try:
            tree.empty(self.fd)
        finally:
            os.close(self.fd)
        _remove_gone(self.path.parent)


@dataclass(slots=True, eq=False)
class ScratchFolders:
    """The scratch folders of one journal."""

    root: Path

    def open(self, task_id: TaskId) -> Folder:
        """A new, empty folder for the run that holds the task. Raises JournalFull, ReadOnly."""
        above = self.root / task_id
        left = _TRIES_MAX
        while True:
            try:
                ensure_private_folder(self.root)
                ensure_private_folder(above)
                with contextlib.suppress(FileNotFoundError):
                    _move_away(above)
                (above / FILES).mkdir(FOLDER_MODE)
                return Folder(above / FILES, tree.open_folder(str(above / FILES)))
            except OSError as error:
                left -= 1
                if not left or not isinstance(error, FileNotFoundError | FileExistsError):
                    raise explained(error, above) from error

    def leftovers(self) -> Iterator[TaskId]:
        """Tasks of which something is here."""
        try:
            names = os.listdir(self.root)
        except OSError:
            return
        for name in names:
            with contextlib.suppress(errors.HoldfastError):
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
            tree.empty(fd)
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
                await asyncio.to_thread(tree.empty, fd)
        finally:
            if fd is not None:
                os.close(fd)
        await asyncio.to_thread(place.forget if over else place.tidy, task_id)


def chained(*acts: Callable[[], None]) -> None:
    for act in acts:
        act()


CANNOT_KEEP = (errors.ScratchRefused, errors.ScratchTooLarge, errors.ScratchChanging)
DIED_FULL = "the disk was full, and the worker died before there was space"
FULL_REST_S = 5.0
CAUGHT_UP = 2**63  # above every sequence number: this run has come to what no record holds
_WAITS = (errors.JournalFull, errors.JournalBusy, errors.CommitUnknown)  # the next try says whether it has stopped

When = Literal["before", "after", "end"]


class Scratch:
    """The scratch folder of one run. All its branches share it."""

    def __init__(self, *, writer: TaskWriter, folders: ScratchFolders, limits: Limits) -> None:
        self._writer = writer
        try:
            self._folder: Folder = folders.open(writer.view.task_id)
        except errors.JournalFull as error:
            raise self._rest(error) from error
        self._store = Store(journal=writer.journal, task_id=writer.view.task_id, root=self._folder.fd, limits=limits)
        self._turn = asyncio.Lock()
        self._at = -1  # sequence number of the manifest that the folder was last set to
        self._rebuilt = False  # whether the run is that of a loop with no code between its calls

    @property
    def path(self) -> Path:
        """The folder for plain files and folders of this task alone.

        The path is the same on every worker of this journal file; a tool finds the folder as `call.scratch`.
        """
        return self._folder.path

    def __fspath__(self) -> str:
        return str(self._folder.path)

    # used by the runtime

    async def before(self, ordinal: str) -> None:
        """Record what the folder holds before a new step. Raises where it cannot be kept.

        In a rebuilt loop only tools write: what cannot be kept was left by a call beside this one,
        which is told of it. There the newest that was kept is what this step begins with.
        """
        self._at = CAUGHT_UP
        try:
            digest = await self._wait_kept(mine=0, going=True)
        except CANNOT_KEEP:
            kept = self._newest() if self._rebuilt else None
            if kept is None:
                raise
            digest = kept.manifest
        self._note("before", ordinal, {"manifest": digest})

    async def after(self, ordinal: str) -> tuple[bool, BaseException | None]:
        """Record what the folder holds after a call, before its outcome is recorded.

        False where there is no space: then the outcome is recorded first, and `after_late` follows. Never raises: a
        cancel waits, and whatever went wrong is given back, to be raised once the outcome is recorded.
        """
        keeping = asyncio.ensure_future(self._after(ordinal, wait=False))
        cut: BaseException | None = None
        while not keeping.done():
            try:
                await asyncio.wait((keeping,))
            except asyncio.CancelledError as error:
                cut = error
        return (True, keeping.exception()) if keeping.exception() else (keeping.result(), cut)

    async def after_late(self, ordinal: str) -> None:
        """The same, waiting for space; for steps that no call of this run has closed, too."""
        await self._after(ordinal, wait=True)

    async def replay(self, step: StepView) -> None:
        """Set the folder to what is recorded of a step that the replay has come to."""
        files = self._writer.view.files
        if files is None:
            return
        kept = files.before.get(step.ordinal)
        after = files.after.get(step.ordinal)
        if step.closed and after is not None and after.manifest:
            kept = after
        if kept is not None:
            await self._set(kept, f"of step {step.ordinal}")

    @property
    def caught_up(self) -> bool:
        """Whether this run has come to what no record holds; then nothing moves the folder."""
        return self._at == CAUGHT_UP

    async def enter_gather(self, ordinal: str) -> None:
        """Set the folder to the newest that was recorded in the branches, once for all of them."""
        files = self._writer.view.files
        kept = None if files is None else files.newest_below(f"{ordinal}.")
        if kept is not None:
            await self._set(kept, f"of the gather at {ordinal}")

    async def enter_newest(self) -> None:
        """Set the folder to the newest of all: for a loop that is rebuilt and not replayed."""
        self._rebuilt = True
        if (kept := self._newest()) is not None:
            await self._set(kept, "of the newest step")

    async def drop_unkept(self, prefix: str) -> None:
        """Where calls below this ordinal have left what cannot be kept: as another run will find
        it. Not before all of them have ended."""
        files, kept = self._writer.view.files, self._newest()
        if files is None or kept is None:
            return
        if any(one.unkept for at, one in files.after.items() if at.startswith(prefix)):
            async with self._turn:
                try:
                    self._folder.check()
                except CANNOT_KEEP as error:
                    raise self._rest(error) from error  # the next run has a folder of its own
                await self._restore(kept, "of the newest step")

    def _newest(self) -> KeptFiles | None:
        files = self._writer.view.files
        return None if files is None else files.newest_below("")

    def check_kept(self, step: StepView) -> None:
        """Raise ScratchNotKept where a closed step has left files that are lost."""
        files = self._writer.view.files
        if files is None or not step.closed or step.ordinal not in files.before:
            return
        after = files.after.get(step.ordinal)
        why = DIED_FULL if after is None else after.unkept
        if why:
            raise errors.ScratchNotKept(tool=step.tool, ordinal=step.ordinal, why=why)

    async def end(self, *, strict: bool) -> None:
        """Record what is there when the task ends. Strict: raises what cannot be kept."""
        try:
            self._note("end", "", {"manifest": await self._wait_kept(mine=0, going=False)})
        except CANNOT_KEEP as error:
            if strict:
                raise
            self._note("end", "", {"unkept": error.message})

    def close(self) -> Callable[[], None]:
        """The run has ended; what remains to be done, beside the event loop."""
        return self._folder.remove

    async def _after(self, ordinal: str, *, wait: bool) -> bool:
        self._at = CAUGHT_UP
        try:
            digest = await (self._wait_kept(mine=0, going=False) if wait else self._keep(mine=1))
        except CANNOT_KEEP as error:
            self._note("after", ordinal, {"unkept": error.message})
            await self._take_back(ordinal)
            return True
        except _WAITS as error:
            self._writer.on_trouble(error)
            return False
        self._note("after", ordinal, {"manifest": digest})
        return True

    async def _wait_kept(self, *, mine: int, going: bool) -> str:
        """As `_keep`, waiting out a full or busy journal; not in its turn, others have theirs."""
        while True:
            if going:
                self._writer.check_going()
            try:
                return await self._keep(mine=mine)
            except _WAITS as error:
                self._writer.on_trouble(error)
                await asyncio.sleep(RETRY_S)

    async def _keep(self, *, mine: int) -> str:
        """`mine`: how many of the calls under way have ended for the one who asks."""
        async with self._turn:
            self._folder.check()
            return await self._store.keep(shared=self._writer.calls > mine)

    async def _take_back(self, ordinal: str) -> None:
        """After a step whose files cannot be kept: as a replay will find it. Not among the branches of a gather, whose
        other calls may be writing now."""
        files = self._writer.view.files or Files()
        kept = files.before.get(ordinal)
        if kept is not None and not in_gather(ordinal):
            await self._restore(kept, f"of step {ordinal}")

    async def _set(self, kept: KeptFiles, what: str) -> None:
        async with self._turn:
            if kept.seq > self._at:
                await self._restore(kept, what)
                self._at = kept.seq

    async def _restore(self, kept: KeptFiles, what: str) -> None:
        try:
            await self._store.restore(kept.manifest)
        except (errors.JournalDamaged, errors.BlobNotFound, errors.ScratchRefused) as error:
            # For a person: without these files the code would go another way.
            raise Suspended(NeedsPerson(f"scratch files {what} cannot be restored: {error.message}")) from error
        except OSError as error:
            told = errors.ScratchRefused(f"scratch files {what} cannot be written: {error}")
            raise self._rest(told) from error

    def _rest(self, error: errors.HoldfastError) -> Suspended:
        """This disk has no space for the folder, or fails: the run ends, another begins later."""
        self._writer.on_trouble(error)
        return Suspended(Sleep(self._writer.journal.now_ms() + int(FULL_REST_S * 1000)))

    def _note(self, at: When, ordinal: str, said: Body) -> None:
        """With the next commit: that of the start, the outcome or the end, which comes now."""
        self._writer.defer(NewRecord(kind=RecordKind.FILES, ordinal=ordinal, body={"at": at, **said}))


def in_gather(ordinal: str) -> bool:
    """`4.2.1`, but not `4`, `4.r1` or `4.c1`."""
    return any(part.isdigit() for part in ordinal.split(".")[1:])
