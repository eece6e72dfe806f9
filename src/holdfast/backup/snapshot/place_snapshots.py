"""One snapshot at one place: made there, restored for a test, and what is recorded of it.

In this order (heads.py says why): make the archive; see it in the repository's listing; write the
heads into the companion files; restore it for a test and compare. A kill leaves either an archive
that no head names, or a whole snapshot.

The test restore relies on nothing of the running agent. The engine gets a fresh base folder, so no cache
vouches for what the repository says; the passphrase comes from the escrow; the archive passes the same
reader that restores use, which compares every byte and mode with the signed manifest; the journal is
opened, its structure, chains, seals and rows are checked, and it ends where the manifest says. Only
then is a snapshot *verified*, and only verified ones count.

An archive that was just made proves nothing: archives share data, and data that went bad last month
is in today's archive too, which was made without an error.

The restored files are in a private scratch folder, which is removed; a crash leaves it to the next run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from holdfast.backup.archive.reader import Snapshot, read_snapshot
from holdfast.backup.archive.tar_stream import read_through
from holdfast.backup.chain.heads import HEADS, parse_lines
from holdfast.backup.engine import Amount, BackupEngine, Created, Repository
from holdfast.backup.places import place_state
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.backup_places import BackupPlaces
from holdfast.backup.places.cloud_copy import copy_of
from holdfast.backup.places.companion_files import read_companions
from holdfast.backup.places.place_state import OK
from holdfast.backup.places.places import Place, place_error
from holdfast.backup.record import find_missing, record_listing
from holdfast.backup.report import PlaceResult, result_of
from holdfast.backup.snapshot.databases import read_mark
from holdfast.backup.snapshot.sealed import find_sealed
from holdfast.backup.snapshot.staging import Staged
from holdfast.core.clock import Clock, SystemClock, SystemEntropy
from holdfast.core.journal_address import file_at
from holdfast.core.ports import KeyRing
from holdfast.errors import BackupDamaged, BackupFailed, HoldfastError, PlaceFull, SnapshotFailed, SnapshotNotFound
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import disk_error, ensure_private_folder
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast.identity.vault.ring import ESCROW, Escrow
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import ADOPTED, MemoryPlace, home_in
from holdfast.memory.projection import project_now

SCRATCH = "scratch-"
JOURNAL = "journal.db"
SHOWN_MAX = 3

Check = Callable[[Snapshot], None]  # raises BackupDamaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was restored for a test and found to be whole."""

    seq: int
    archive: str
    files: int
    bytes: int
    fetch_s: float  # fetched, written, hashed, compared
    check_s: float  # journal and further checks


async def fetch(
    engine: BackupEngine,
    repository: Repository,
    head: Signed[Head],
    work: Path,
    *,
    durable: bool = False,
    doing: str = "fetching",
) -> Snapshot:
    """The snapshot of this head out of a place, into the empty folder `work`, compared whole.
    Ignores the repository's lock: its holder may be lost. The head must be valid. Raises BackupDamaged, ArchiveRefused
    and what a place raises."""
    archive, what = head.record.archive, f"place {repository.name}: {doing}"
    whole = Amount(files_all=head.record.files, bytes_all=head.record.bytes)

    def on_bytes(files: int, size: int) -> None:
        engine.progress.reached(what, replace(whole, files=files, bytes=size))

    try:
        async with engine.export_tar(repository, archive, rescue=True) as pieces:
            return await read_through(
                pieces, lambda stream: read_snapshot(stream, head, work, durable=durable, on_bytes=on_bytes)
            )
    except OSError as error:
        raise disk_error(error, work) from error


async def verify(
    engine: BackupEngine,
    repository: Repository,
    head: Signed[Head],
    scratch: Path,
    *,
    keys: KeyRing | None,
    checks: Sequence[Check] = (),
) -> Verified:
    """Restore the snapshot of this head for a test, below `scratch`, and remove it again."""
    ensure_private_folder(scratch)
    work = scratch / "work"
    try:
        ensure_private_folder(work)
        began = time.monotonic()
        snapshot = await fetch(engine.fresh(scratch / "base"), repository, head, work, doing="restoring for a test")
        fetched = time.monotonic()
        await asyncio.to_thread(check_snapshot, snapshot, keys, checks)
    finally:
        await asyncio.to_thread(remove_tree, scratch)
    return Verified(
        seq=head.record.seq,
        archive=head.record.archive,
        files=snapshot.files,
        bytes=snapshot.bytes,
        fetch_s=fetched - began,
        check_s=time.monotonic() - fetched,
    )


def check_snapshot(snapshot: Snapshot, keys: KeyRing | None, checks: Sequence[Check] = ()) -> None:
    """What right bytes cannot show: that the journal in them can be used."""
    if snapshot.about.journal is not None:
        check_journal(snapshot, keys)
    for check in checks:
        check(snapshot)


def check_journal(snapshot: Snapshot, keys: KeyRing | None) -> None:
    """Without keys its seals are not opened; everything else is checked."""
    path = _journal_in(snapshot.state)
    try:
        mark = read_mark(path)
    except SnapshotFailed as error:
        raise BackupDamaged(f"the journal in the snapshot is damaged: {error.message}") from error
    if mark != snapshot.about.journal:
        raise BackupDamaged(
            "the journal in the snapshot is not the one that the manifest describes: it ends at record "
            f"{mark.sequence} of incarnation {mark.incarnation}"
        )
    if keys is None:
        return
    findings = journal_at(file_at(path)).find_damage(keys)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if findings:
        raise BackupDamaged("the journal in the snapshot is damaged: " + "; ".join(findings[:SHOWN_MAX]))


def _journal_in(state: Path) -> Path:
    inner = state / ADOPTED / JOURNAL
    return inner if inner.is_file() and not (state / "holdfast.toml").exists() else state / JOURNAL


def projection_check(keys: KeyRing) -> Check:
    """For test restores; never for a tree that is to be used."""

    def check(snapshot: Snapshot) -> None:
        if snapshot.about.journal is not None:
            asyncio.run(_project(snapshot.state, keys))

    return check


def sealed_check(escrow: Escrow) -> Check:
    """The sealed secrets open with what a recovery has."""

    def check(snapshot: Snapshot) -> None:
        with escrow.secrets_identity() as identity:
            find_sealed(snapshot.state, identity)

    return check


async def _project(state: Path, keys: KeyRing) -> None:
    home = home_in(state)  # of an adopted agent a folder inside
    place = MemoryPlace(folder=home)
    before = _lines(place)
    try:
        journal = await journal_at(file_at(home / JOURNAL), instance=state.with_name("instance")).open(
            keys=keys, clock=SystemClock(), entropy=SystemEntropy(), create=False, allow_network_fs=True
        )
        try:
            await project_now(journal, place)
            once = _lines(place)
            await project_now(journal, place)
        finally:
            await journal.close()
    except HoldfastError as error:
        raise BackupDamaged(f"Holdfast cannot open the restored journal: {error.message}") from error
    for path, lines in before.items():
        if set(lines) - set(once.get(path, ())):
            raise BackupDamaged(
                "the memory files in the snapshot do not match its journal: after a restore, Holdfast would remove "
                f"lines from {path.name}"
            )
    if _lines(place) != once:
        raise BackupDamaged(
            "the memory files in the snapshot do not match its journal: Holdfast wrote them twice from the journal, "
            "with two different results"
        )


def _lines(place: MemoryPlace) -> dict[Path, tuple[bytes, ...]]:
    paths = [place.memory_file, *sorted(place.days.glob("*.md"))]
    return {path: tuple(path.read_bytes().splitlines()) for path in paths if path.is_file()}


@dataclass(frozen=True, slots=True)
class PlaceSnapshots:
    """Of one agent. `folder` holds scratch; the caller has locked it."""

    places: BackupPlaces
    keys: KeyRing | None
    checks: Sequence[Check]
    clock: Clock
    folder: Path

    async def make(
        self, place: Place, staged: Staged, head: Signed[Head], named: Sequence[str], result: PlaceResult
    ) -> None:
        repository, engine, archive = self.places.repository(place), self.places.engine, head.record.archive
        await self.places.check_keys_current(place)

        def on_progress(at: Amount) -> None:
            amount = replace(at, files_all=staged.files, bytes_all=staged.bytes)
            engine.progress.reached(f"place {place.name}: sending", amount)

        async def create() -> Created:
            on_progress(Amount())  # quick work ends before the backup program says how far it is
            return await engine.create(repository, archive, staged.folder, on_progress=on_progress)

        try:
            created = await create()
        except PlaceFull:
            if not await self._compacted(place, named):
                raise
            created = await create()
        before = self.places.states.read()
        listing = await engine.list_archives(repository)
        names = {one.name for one in listing.archives}
        if archive not in names:
            raise BackupFailed(
                f"place {place.name}: the backup program reported that it made {archive}, but the repository does not "
                "list it"
            )
        record_listing(self.places.states, place.name, listed=names, named=named, before=before)
        failed = await self.places.refresh_companions((place.name,))
        if place.name in failed:
            raise place_error(failed[place.name], place.name)
        if place.kind is PlaceKind.RCLONE:
            engine.progress.say(f"place {place.name}: rclone copies it to {place.address}")
            await copy_of(place).push()
        self.places.states.change(
            place.name, lambda state: place_state.made(state, now_ms=self.clock.wall_ms(), snapshot=archive)
        )
        result.made = True
        result.stored_bytes = created.stored_bytes
        result.backup_s = round(created.seconds, 3)
        self.places.engine.progress.say(f"{place.name}: made {archive}, stored {created.stored_bytes:,} bytes")

    async def _compacted(self, place: Place, named: Sequence[str]) -> bool:
        """Make room at a full place, if nothing is missing there: compacting would destroy for good
        what another program deleted."""
        before = self.places.states.read()
        repository, engine = self.places.repository(place), self.places.engine
        try:
            names = {one.name for one in (await engine.list_archives(repository)).archives}
            state = record_listing(self.places.states, place.name, listed=names, named=named, before=before)
            if state.missing or place.append_only:
                return False
            await engine.compact(repository)
        except HoldfastError:  # that it is full is what there is to say
            return False
        return True

    async def check(self, place: Place, head: Signed[Head], result: PlaceResult, *, deep: bool = False) -> None:
        """The test restore, and the companion files that paper needs. What rclone copied is compared with the
        repository that was restored: with `deep` by reading every byte back."""
        files = await read_companions(self.places.engine, place)
        known = parse_lines(files.get(HEADS, b""), where=HEADS)
        if head.digest not in {one.digest for one in known.heads}:
            raise BackupDamaged(f"place {place.name}: head {head.record.seq} is missing from {HEADS}")
        if files.get(f"{ESCROW}.age") != (self.places.vault.folder / f"{ESCROW}.age").read_bytes():
            raise BackupDamaged(f"place {place.name}: its {ESCROW}.age differs from {ESCROW}.age in the vault")
        scratch = self.folder / f"{SCRATCH}{place.name}-{os.urandom(4).hex()}"
        repository = self.places.repository(place)  # with the passphrase from the escrow
        found = await verify(self.places.engine, repository, head, scratch, keys=self.keys, checks=self.checks)
        if place.kind is PlaceKind.RCLONE:
            await copy_of(place).compare(deep=deep)
        now_ms, took_s = self.clock.wall_ms(), round(found.fetch_s + found.check_s, 3)

        def after(state: place_state.PlaceState) -> place_state.PlaceState:
            """A good test restore ends every trouble that was reported before it."""
            state = place_state.verified(state, now_ms=now_ms, snapshot=found.archive, took_s=took_s)
            return msgspec.structs.replace(state, result=OK, message="", failures=0)

        self.places.states.change(place.name, after)
        result.verified = True
        result.verify_s = took_s
        self.places.engine.progress.say(f"{place.name}: test restore done, {found.files:,} files match the manifest")

    async def verify(
        self, place: Place, held: Sequence[Signed[Head]], archive: str, *, error: HoldfastError | None
    ) -> PlaceResult:
        result = PlaceResult(place=place.name)
        try:
            if error is not None:
                raise error
            wanted = [one for one in held if not archive or one.record.archive == archive]
            lost = find_missing(place.name, self.places.states.of(place.name))
            if not wanted and lost is not None:
                raise lost
            if not wanted:
                what = f"no snapshot {archive}" if archive else "no snapshot"
                raise SnapshotNotFound(f"place {place.name} has {what}")
            result.archive = wanted[-1].record.archive
            await self.check(place, wanted[-1], result, deep=True)
            if lost is not None:
                result_of(result, lost)
        except (HoldfastError, OSError) as raised:
            failed = place_error(raised, place.name)
            self.places.states.tried(place.name, failed, now_ms=self.clock.wall_ms())
            result_of(result, failed)
        return result
