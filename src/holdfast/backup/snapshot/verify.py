"""A test restore: what a place holds is fetched as after a disaster, and compared with its head.

It relies on nothing of the running agent. The engine gets a fresh base folder, so no cache vouches
for what the repository says; the passphrase comes from the escrow; the archive passes the same
reader that restores use, which compares every byte and mode with the signed manifest; the journal is
opened, its structure, chains, seals and rows are checked, and it ends where the manifest says. Only
then is a snapshot *verified*, and only verified ones count.

An archive that was just made proves nothing: archives share data, and data that went bad last month
is in today's archive too, which was made without an error.

The restored files are in a private scratch folder, which is removed; a crash leaves it to the next run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.backup.archive.reader import Snapshot, read_snapshot
from holdfast.backup.archive.tar_stream import read_through
from holdfast.backup.engine import Amount, BackupEngine, Repository
from holdfast.backup.snapshot.staging import read_mark
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ports import KeyRing
from holdfast.errors import BackupDamaged, HoldfastError, SnapshotFailed
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import disk_error, ensure_private_folder
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import MemoryPlace, home_in
from holdfast.memory.projection import project_now

Check = Callable[[Snapshot], None]  # raises BackupDamaged
SHOWN_MAX = 3


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

    Ignores the repository's lock: its holder may be lost. The head must be valid.
    Raises BackupDamaged, ArchiveRefused and what a place raises.
    """
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
            f"the journal in the snapshot ends at record {mark.sequence} of incarnation "
            f"{mark.incarnation}, but the manifest records another end or another journal"
        )
    if keys is None:
        return
    findings = journal_at(path).find_damage(keys)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if findings:
        raise BackupDamaged("the journal in the snapshot is damaged: " + "; ".join(findings[:SHOWN_MAX]))


JOURNAL = "journal.db"
ADOPTED = ".holdfast"  # the home inside of an adopted agent's folder


def _journal_in(state: Path) -> Path:
    inner = state / ADOPTED / JOURNAL
    return inner if inner.is_file() and not (state / "holdfast.toml").exists() else state / JOURNAL


def projection_check(keys: KeyRing) -> Check:
    """For test restores; never for a tree that is to be used."""

    def check(snapshot: Snapshot) -> None:
        if snapshot.about.journal is not None:
            asyncio.run(_project(snapshot.state, keys))

    return check


async def _project(state: Path, keys: KeyRing) -> None:
    home = home_in(state)  # of an adopted agent a folder inside
    place = MemoryPlace(folder=home)
    before = _lines(place)
    try:
        journal = await journal_at(home / JOURNAL, instance=state.with_name("instance")).open(
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
                f"the memory files do not match the journal: writing the journal into {path.name} removes lines from it"
            )
    if _lines(place) != once:
        raise BackupDamaged(
            "the memory files do not match the journal: Holdfast wrote the journal into them twice, "
            "and the second time changed them again"
        )


def _lines(place: MemoryPlace) -> dict[Path, tuple[bytes, ...]]:
    paths = [place.memory_file, *sorted(place.days.glob("*.md"))]
    return {path: tuple(path.read_bytes().splitlines()) for path in paths if path.is_file()}
