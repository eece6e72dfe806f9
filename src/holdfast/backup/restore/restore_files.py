"""Single files out of a snapshot, without the rest of it (backup/restore/partial.py).

A file that is damaged in every place that holds the snapshot may be whole, with the same bytes, in an
older one; otherwise it is reported and left out, and the others are restored. An older state is taken
only if no wanted file is whole, and reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import msgspec

from holdfast.backup.archive.contained_writer import ContainedWriter
from holdfast.backup.archive.manifest import EntryKind, ManifestEntry
from holdfast.backup.archive.reader import leads_inside
from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.places import Place, repository_of
from holdfast.backup.restore.partial import DAMAGE, Gathering, fetch_manifest
from holdfast.backup.restore.restore_choice import Failures, RestoreCandidate, moment
from holdfast.errors import BackupDamaged, BadInput, HoldfastError, Retryable, SnapshotNotFound
from holdfast.host.disk_errors import disk_error
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import ensure_private_folder, sync_folder
from holdfast.identity.statements.statements import Head
from holdfast.identity.vault.ring import Escrow

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
    entries: tuple[ManifestEntry, ...]
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


class FileRestore:
    def __init__(
        self, engine: BackupEngine, escrow: Escrow, work: Path, failures: Failures, wanted: Sequence[str]
    ) -> None:
        self._engine = engine
        self._escrow = escrow
        self._work = work
        self._failures = failures
        self._wanted = tuple(wanted)

    async def plan(self, made: Sequence[RestoreCandidate]) -> FoundFiles:
        """What would be restored, by the manifest alone."""
        for one in made:
            found = await self._selected(one)
            if found is not None:
                return found
            self._failures.check_older(one.head.record)
        raise self._failures.last()

    async def gather(self, made: Sequence[RestoreCandidate]) -> FoundFiles:
        """The newest snapshot of which something that is wanted is whole, with all that is."""
        for number, one in enumerate(made):
            found = await self._selected(one)
            if found is not None:
                gathered = await self._gathered(found, made[number + 1 :])
                if gathered.restored or not gathered.damaged:
                    return gathered
                text = "; ".join(f"{lost.path}: {lost.message}" for lost in gathered.damaged)
                self._failures.add(
                    one.head.record,
                    gathered.place.name,
                    BackupDamaged(f"none of these files can be restored without damage: {text}"),
                )
            self._failures.check_older(one.head.record)
        raise self._failures.last()

    async def _selected(self, one: RestoreCandidate) -> FoundFiles | None:
        for place in one.places:
            try:
                entries = await self._manifest(one, place)
            except HoldfastError as error:
                self._failures.add(one.head.record, place.name, error)
                continue
            wanted = select(entries, self._wanted, one.head.record)
            return FoundFiles(chosen=one, place=place, entries=wanted)
        return None

    async def _manifest(self, one: RestoreCandidate, place: Place) -> tuple[ManifestEntry, ...]:
        work = self._work / "manifest"
        await asyncio.to_thread(remove_tree, work)
        ensure_private_folder(work)
        repository = repository_of(place, self._escrow)
        return await fetch_manifest(self._engine, repository, one.head, work)

    async def _gathered(self, found: FoundFiles, older: Sequence[RestoreCandidate]) -> FoundFiles:
        await asyncio.to_thread(remove_tree, self._work / "files")
        gathering = Gathering(self._work / "files", found.entries)
        rest = [place for place in found.chosen.places if place != found.place]
        why: dict[str, str] = {}
        for place in (found.place, *rest):
            repository = repository_of(place, self._escrow)
            try:
                await gathering.take(self._engine, repository, found.chosen.head, gathering.missing)
            except HoldfastError as error:
                self._failures.add(found.chosen.head.record, place.name, error)
            for path, text in gathering.damaged.items():
                why[path] = text
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
        return FoundFiles(
            chosen=found.chosen, place=found.place, entries=found.entries, damaged=damaged, folder=gathering.folder
        )

    async def _from_older(self, gathering: Gathering, older: Sequence[RestoreCandidate]) -> None:
        """The same bytes out of older snapshots; what goes wrong there is no news."""
        for one, place in [(each, place) for each in older for place in each.places]:
            if not gathering.missing:
                return
            with contextlib.suppress(*DAMAGE, Retryable):
                same = gathering.same_in(await self._manifest(one, place))
                await gathering.take(self._engine, repository_of(place, self._escrow), one.head, same)


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
    with ContainedWriter(found.folder) as contained:
        contained.sync()
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
    last = path.rpartition("/")[2]
    near = [name for name in names if name.rpartition("/")[2] == last]
    near += get_close_matches(path, names, n=SHOWN_MAX, cutoff=0.6)
    if near:
        shown = ", ".join(dict.fromkeys(near[:SHOWN_MAX]))
        hint = f"similar names: {shown}"
    else:
        top = [f"{one.path}/" if one.kind is EntryKind.FOLDER else one.path for one in entries if "/" not in one.path]
        more = f" and {len(top) - SHOWN_MAX} more" if len(top) > SHOWN_MAX else ""
        hint = f"it holds: {', '.join(top[:SHOWN_MAX])}{more}; --file FOLDER takes a whole folder"
    return SnapshotNotFound(
        f"snapshot {head.seq} of {moment(head.at)} has no {path!r}", hint=f"{hint}; --at TIME looks into an older one"
    )
