"""Some files of a snapshot, out of places that may be damaged elsewhere.

Only what is wanted is read: first HEAD and manifest, which the signed head vouches for, then the
files themselves, each compared with its line of the manifest. Chunks of other files are not
touched, so damage there stops nothing. If the engine stops in the middle, what came whole is kept
and the rest is asked for in halves, until each file has come or is known to be damaged here;
another place that holds the same snapshot may still have it, or an older snapshot in which the
file had the very same bytes.

True of `work/whole` at all times: every file in it has the bytes and the mode that the agent
signed. A crash leaves a folder whose name says that it is unfinished.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.backup.archive.manifest import NAME, EntryKind, ManifestEntry
from holdfast.backup.archive.reader import (
    HEAD_NAME,
    STATE,
    SomeFiles,
    find_mtime_ns,
    leads_inside,
    read_files,
    read_manifest,
)
from holdfast.backup.archive.tar_stream import read_through
from holdfast.backup.engine import BackupEngine, Repository
from holdfast.backup.progress import Amount
from holdfast.errors import (
    ArchiveRefused,
    BackupDamaged,
    BackupFailed,
    HoldfastError,
    RepositoryDamaged,
    SnapshotIncomplete,
    SnapshotNotFound,
)
from holdfast.host.disk_errors import disk_error
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import FOLDER_MODE, ensure_private_folder
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head

BATCH_FILES_MAX = 400  # of one run of the engine: its arguments are bounded
BATCH_BYTES_MAX = 60_000
RUNS_MAX = 1_000  # at one place; with more damage than that the rest is not looked for there

# What says that something here is damaged, and nothing about the next file or place.
DAMAGE = (RepositoryDamaged, BackupDamaged, ArchiveRefused, SnapshotIncomplete, BackupFailed, SnapshotNotFound)


async def fetch_manifest(
    engine: BackupEngine, repository: Repository, head: Signed[Head], work: Path
) -> tuple[ManifestEntry, ...]:
    """The manifest of this head out of a place, by way of the empty folder `work`."""
    paths = (HEAD_NAME, NAME)
    try:
        async with engine.export_tar(repository, head.record.archive, paths=paths, rescue=True) as pieces:
            return await read_through(pieces, lambda stream: read_manifest(stream, head, work))
    except OSError as error:
        raise disk_error(error, work) from error


class Gathering:
    """Wanted entries of one snapshot, collected from one place after another in `work/whole`."""

    def __init__(self, work: Path, wanted: Sequence[ManifestEntry]) -> None:
        self._work = work
        self._wanted = {one.path: one for one in wanted if one.is_content}
        self._others = [one for one in wanted if not one.is_content]
        self._runs = 0
        self.folder = work / "whole"
        self.whole: set[str] = set()
        self.damaged: dict[str, str] = {}  # at the place that was asked last
        ensure_private_folder(self.folder)

    @property
    def missing(self) -> list[ManifestEntry]:
        return [one for path, one in self._wanted.items() if path not in self.whole]

    def same_in(self, entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
        """Those of another snapshot that have the bytes of what is missing."""
        missing = {(one.path, one.sha256, one.size) for one in self.missing}
        return [one for one in entries if (one.path, one.sha256, one.size) in missing]

    async def take(
        self, engine: BackupEngine, repository: Repository, head: Signed[Head], entries: Sequence[ManifestEntry]
    ) -> None:
        """These of what is missing, as far as this place has them whole in this snapshot.

        Raises what says nothing about the files: the place does not answer, our disk is full.
        """
        self.damaged = {}
        self._runs = 0
        todo = _batches(entries)
        while todo:
            batch = todo.pop()
            if self._runs >= RUNS_MAX:
                self.damaged |= dict.fromkeys((one.path for one in batch), "not looked for")
                continue
            got = await self._run(engine, repository, head, batch)
            self.damaged |= got.bad
            known = got.whole | got.bad.keys()
            left = [one for one in batch if one.path not in known]
            if left and got.error is None:
                lost = "is missing from the archive"
                self.damaged |= dict.fromkeys((one.path for one in left), lost)
            elif left and got.error is not None:
                if not isinstance(got.error, DAMAGE):
                    raise got.error
                todo += self._halves(left, batch, got.error)

    def _halves(
        self, left: list[ManifestEntry], batch: Sequence[ManifestEntry], error: HoldfastError
    ) -> list[list[ManifestEntry]]:
        if len(batch) == 1:
            self.damaged[batch[0].path] = error.message
            return []
        middle = (len(left) + 1) // 2
        return [part for part in (left[middle:], left[:middle]) if part]

    async def _run(
        self, engine: BackupEngine, repository: Repository, head: Signed[Head], batch: Sequence[ManifestEntry]
    ) -> SomeFiles:
        self._runs += 1
        work = self._work / f"run-{self._runs}"
        await asyncio.to_thread(remove_tree, work)
        ensure_private_folder(work)
        wanted = {one.path: one for one in batch}
        what = f"place {repository.name}: fetching"
        done = Amount(files=len(self.whole), files_all=len(self._wanted))

        def on_bytes(files: int, size: int) -> None:
            engine.progress.reached(what, replace(done, files=done.files + files, bytes=size))

        try:
            async with engine.export_tar(
                repository, head.record.archive, rescue=True, paths=[f"{STATE}/{path}" for path in wanted]
            ) as pieces:
                got = await read_through(pieces, lambda stream: read_files(stream, wanted, work, on_bytes=on_bytes))
            await asyncio.to_thread(self._keep, work, got)
        except OSError as error:
            raise disk_error(error, work) from error
        finally:
            await asyncio.to_thread(remove_tree, work)
        return got

    def _keep(self, work: Path, got: SomeFiles) -> None:
        for path in sorted(got.whole):
            to = self.folder / path
            to.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            os.rename(work / STATE / path, to)
            self.whole.add(path)

    def complete(self) -> None:
        """Folders, links and modes of what is wanted; nothing of them can be damaged."""
        for one in self._others:
            to = self.folder / one.path
            if one.kind is EntryKind.FOLDER:
                to.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            elif leads_inside(one):
                to.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                os.symlink(one.target, to)
        now_ns = time.time_ns()
        for path in self.whole:
            self._finish(self._wanted[path], now_ns)
        for one in reversed(self._others):
            if one.kind is EntryKind.FOLDER:
                self._finish(one, now_ns)

    def _finish(self, one: ManifestEntry, now_ns: int) -> None:
        to = self.folder / one.path
        mtime_ns = find_mtime_ns(one, now_ns=now_ns)
        if mtime_ns is not None:
            os.utime(to, ns=(mtime_ns, mtime_ns))
        os.chmod(to, one.mode)


def _batches(entries: Sequence[ManifestEntry]) -> list[list[ManifestEntry]]:
    """In the order of the manifest from the end: the last one is taken first."""
    made: list[list[ManifestEntry]] = []
    room = 0
    for one in entries:
        size = len(one.path.encode()) + len(STATE) + 2
        if not made or len(made[-1]) >= BATCH_FILES_MAX or size > room:
            made.append([])
            room = BATCH_BYTES_MAX
        made[-1].append(one)
        room -= size
    return made[::-1]
