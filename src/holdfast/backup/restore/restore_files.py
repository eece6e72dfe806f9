"""Files out of a snapshot one by one, from places that may be damaged elsewhere: single files, or all of them.

A file that is damaged in every place that holds the snapshot may be whole, with the same bytes, in an
older one; otherwise it is reported and left out, and the others are restored. An older state is taken
only if no wanted file is whole, and reported. A snapshot that no single place has undamaged is joined in
the same way, if each of its files is whole somewhere.

Only what is wanted is read: first HEAD and manifest, which the signed head vouches for, then the
files themselves, each compared with its line of the manifest. Chunks of other files are not
touched, so damage there stops nothing. If the engine stops in the middle, what came whole is kept
and the rest is asked for in halves, until each file has come or is known to be damaged here.

True of `work/whole` at all times: every file in it has the bytes and the mode that the agent
signed. A crash leaves a folder whose name says that it is unfinished.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import msgspec

from holdfast.backup.archive.contained_writer import sync_tree
from holdfast.backup.archive.manifest import NAME, EntryKind, ManifestEntry
from holdfast.backup.archive.reader import (
    HEAD_NAME,
    STATE,
    Contents,
    Snapshot,
    SomeFiles,
    find_mtime_ns,
    leads_inside,
    read_files,
    read_manifest,
)
from holdfast.backup.archive.tar_stream import read_through
from holdfast.backup.engine import Amount, BackupEngine, Repository
from holdfast.backup.places.places import Passphrases, Place, repository_of
from holdfast.backup.restore.restore_choice import Failures, RestoreCandidate, moment
from holdfast.errors import (
    ArchiveRefused,
    BackupDamaged,
    BackupFailed,
    BadInput,
    HoldfastError,
    RepositoryDamaged,
    Retryable,
    SnapshotIncomplete,
    SnapshotNotFound,
)
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import FOLDER_MODE, disk_error, ensure_private_folder, sync_folder
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head

BATCH_FILES_MAX = 400  # of one run of the engine: its arguments are bounded
BATCH_BYTES_MAX = 60_000
RUNS_MAX = 1_000  # at one place; with more damage than that the rest is not looked for there
JOIN_RUNS_MAX = 100  # the same, beyond one for each batch: an older snapshot is better than a day of searching

# What says that something here is damaged, and nothing about the next file or place.
DAMAGE = (RepositoryDamaged, BackupDamaged, ArchiveRefused, SnapshotIncomplete, BackupFailed, SnapshotNotFound)


async def fetch_manifest(engine: BackupEngine, repository: Repository, head: Signed[Head], work: Path) -> Contents:
    """The manifest of this head out of a place, by way of the empty folder `work`."""
    paths = (HEAD_NAME, NAME)
    try:
        async with engine.export_tar(repository, head.record.archive, paths=paths, rescue=True) as pieces:
            return await read_through(pieces, lambda stream: read_manifest(stream, head, work))
    except OSError as error:
        raise disk_error(error, work) from error


class Gathering:
    """Wanted entries of one snapshot, collected from one place after another in `work/whole`."""

    def __init__(self, work: Path, wanted: Sequence[ManifestEntry], *, runs_max: int = RUNS_MAX) -> None:
        self._work = work
        self._runs_max = runs_max
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
        Raises what says nothing about the files: the place does not answer, our disk is full."""
        self.damaged = {}
        self._runs = 0
        todo = _batches(entries)
        while todo:
            batch = todo.pop()
            if self._runs >= self._runs_max:
                self.damaged |= dict.fromkeys((one.path for one in batch), "not looked for")
                continue
            got = await self._run(engine, repository, head, batch)
            self.damaged |= got.bad
            known = got.whole | got.bad.keys()
            left = [one for one in batch if one.path not in known]
            if left and got.error is None:
                self.damaged |= dict.fromkeys((one.path for one in left), "is missing from the archive")
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


SHOWN_MAX = 8
OLDER_MAX = 10  # snapshots that are searched for the same bytes


class DamagedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A wanted file that no place has whole."""

    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles:
    """The snapshot that was taken, the place that gave most of it, and what is wanted of it."""

    chosen: RestoreCandidate
    place: Place
    manifest: Contents
    entries: tuple[ManifestEntry, ...]  # those of the manifest that are wanted
    damaged: tuple[DamagedFile, ...] = ()
    folder: Path | None = None  # where the whole files are

    @property
    def links_left(self) -> tuple[str, ...]:
        """Wanted links that lead outside: they are not made."""
        links = (one for one in self.entries if one.kind is EntryKind.LINK)
        return tuple(one.path for one in links if not leads_inside(one))

    @property
    def restored(self) -> tuple[ManifestEntry, ...]:
        lost = {one.path for one in self.damaged}
        return tuple(one for one in self.entries if one.is_content and one.path not in lost)


@dataclass(frozen=True, slots=True)
class FileRestore:
    engine: BackupEngine
    escrow: Passphrases
    work: Path
    failures: Failures
    wanted: Sequence[str]  # none: all of them

    async def plan(self, made: Sequence[RestoreCandidate]) -> FoundFiles:
        """What would be restored, by the manifest alone."""
        for one in made:
            if found := await self._selected(one):
                return found
            self.failures.check_older(one.head.record)
        raise self.failures.last()

    async def gather(self, made: Sequence[RestoreCandidate]) -> FoundFiles:
        """The newest snapshot of which something that is wanted is whole, with all that is."""
        for number, one in enumerate(made):
            found = await self._selected(one)
            if found is not None:
                gathered = await self._gathered(found, made[number + 1 :])
                if gathered.restored or not gathered.damaged:
                    return gathered
                text = "; ".join(f"{lost.path}: {lost.message}" for lost in gathered.damaged)
                wrong = f"all of the files that you asked for are damaged in this snapshot: {text}"
                self.failures.add(one.head.record, gathered.place.name, BackupDamaged(wrong))
            self.failures.check_older(one.head.record)
        raise self.failures.last()

    async def join(self, one: RestoreCandidate, older: Sequence[RestoreCandidate]) -> tuple[Place, Snapshot] | None:
        """The whole snapshot, each file from where it is whole; None where one file is damaged everywhere.
        Raises what may pass by itself."""
        found = await self._selected(one)
        gathered = None if found is None else await self._gathered(found, older)
        if gathered is None or gathered.damaged or gathered.folder is None:
            self.failures.check_older(one.head.record)
            return None
        return gathered.place, Snapshot(
            state=gathered.folder,
            about=gathered.manifest.about,
            files=one.head.record.files,
            bytes=one.head.record.bytes,
            notes=gathered.manifest.notes,
            links=tuple(entry for entry in gathered.entries if entry.kind is EntryKind.LINK),
        )

    async def _selected(self, one: RestoreCandidate) -> FoundFiles | None:
        for place in one.places:
            try:
                found = await self._manifest(one, place)
            except HoldfastError as error:
                self.failures.add(one.head.record, place.name, error)
                continue
            entries = select(found.entries, self.wanted, one.head.record) if self.wanted else found.entries
            return FoundFiles(chosen=one, place=place, manifest=found, entries=entries)
        return None

    async def _manifest(self, one: RestoreCandidate, place: Place) -> Contents:
        work = self.work / "manifest"
        await asyncio.to_thread(remove_tree, work)
        ensure_private_folder(work)
        return await fetch_manifest(self.engine, repository_of(place, self.escrow), one.head, work)

    async def _gathered(self, found: FoundFiles, older: Sequence[RestoreCandidate]) -> FoundFiles:
        await asyncio.to_thread(remove_tree, self.work / "files")
        runs_max = RUNS_MAX if self.wanted else JOIN_RUNS_MAX + len(found.entries) // BATCH_FILES_MAX
        gathering = Gathering(self.work / "files", found.entries, runs_max=runs_max)
        rest = [place for place in found.chosen.places if place != found.place]
        why: dict[str, str] = {}
        for place in (found.place, *rest):
            repository = repository_of(place, self.escrow)
            try:
                await gathering.take(self.engine, repository, found.chosen.head, gathering.missing)
            except HoldfastError as error:
                self.failures.add(found.chosen.head.record, place.name, error)
            why |= gathering.damaged
            if not gathering.missing:
                break
        await self._from_older(gathering, older[:OLDER_MAX])
        try:
            await asyncio.to_thread(gathering.complete)
        except OSError as error:
            raise disk_error(error, gathering.folder) from error
        damaged = tuple(
            DamagedFile(path=one.path, message=why.get(one.path, "could not be fetched")) for one in gathering.missing
        )
        return replace(found, damaged=damaged, folder=gathering.folder)

    async def _from_older(self, gathering: Gathering, older: Sequence[RestoreCandidate]) -> None:
        """The same bytes out of older snapshots; what goes wrong there is no news."""
        for one, place in [(each, place) for each in older for place in each.places]:
            if not gathering.missing:
                return
            with contextlib.suppress(*DAMAGE, Retryable):
                same = gathering.same_in((await self._manifest(one, place)).entries)
                await gathering.take(self.engine, repository_of(place, self.escrow), one.head, same)


def outermost(files: Sequence[str]) -> tuple[str, ...]:
    """Without paths below another one, and each once."""
    names = dict.fromkeys(path.rstrip("/") for path in files)
    return tuple(path for path in names if not any(path != other and path.startswith(f"{other}/") for other in names))


def check_free(target: Path, files: Sequence[str]) -> None:
    """Nothing is written over. Raises BadInput."""
    for path in files:
        if os.path.lexists(target / path):
            raise BadInput(
                f"{target / path} already exists",
                hint="Holdfast does not overwrite files: move this one elsewhere, or choose another --to FOLDER",
            )


def put_files(found: FoundFiles, target: Path, files: Sequence[str]) -> None:
    """What is whole takes its names below the target."""
    if found.folder is None:
        return
    check_free(target, files)
    sync_tree(found.folder)
    for path in files:
        if not os.path.lexists(found.folder / path):
            continue  # damaged: it is in the report
        to = target / path
        if not to.parent.is_dir():
            ensure_private_folder(to.parent)
        os.rename(found.folder / path, to)
        sync_folder(to.parent)


def select(entries: Sequence[ManifestEntry], wanted: Sequence[str], head: Head) -> tuple[ManifestEntry, ...]:
    """The entries of these paths, with all that is below. Raises SnapshotNotFound."""
    chosen: dict[str, ManifestEntry] = {}
    for path in wanted:
        below = [one for one in entries if one.path == path or one.path.startswith(f"{path}/")]
        if not below:
            raise _not_there(entries, path, head)
        chosen |= {one.path: one for one in below}
    return tuple(one for one in entries if one.path in chosen)


def _not_there(entries: Sequence[ManifestEntry], path: str, head: Head) -> SnapshotNotFound:
    names = [one.path for one in entries]
    near = [name for name in names if name.rpartition("/")[2] == path.rpartition("/")[2]]
    near += get_close_matches(path, names, n=SHOWN_MAX, cutoff=0.6)
    if near:
        hint = f"similar names: {', '.join(dict.fromkeys(near[:SHOWN_MAX]))}"
    else:
        top = [f"{one.path}/" if one.kind is EntryKind.FOLDER else one.path for one in entries if "/" not in one.path]
        more = f" and {len(top) - SHOWN_MAX} more" if len(top) > SHOWN_MAX else ""
        hint = f"the snapshot has: {', '.join(top[:SHOWN_MAX])}{more}; --file FOLDER takes a whole folder"
    return SnapshotNotFound(
        f"snapshot {head.seq} of {moment(head.at)} has no {path!r}",
        hint=f"{hint}; give --at TIME for an older snapshot",
    )
