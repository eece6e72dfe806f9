"""The companion files of a repository: what a bare machine needs besides the paper.

    place.json           the place's name and key epoch, to derive the passphrase
    escrow.age           the vault's keys, which the paper opens
    heads.jsonl          the chain of signed heads
    kel.jsonl            the agent's key log, by which heads are judged, and receipts.jsonl for it
    keys/PLACE.key       the key blocks of the other places, each sealed by its own passphrase

None of it is readable or forgeable by itself, so fetching it needs no secret. In a folder these are
plain files. On a far host, where only the engine answers, they are the newest archive of a second,
small repository (ADDRESS-beside) with the passphrase `holdfast`, which is printed here on purpose:
with the paper and the address, the plain engine can read it.

All files are written at once. A kill in between leaves, in a folder, some old and some new files,
each whole; on a far host the set before. The next run compares and writes them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from holdfast.backup.engine import BackupEngine, Repository
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import COMPANION_SUFFIX, KEYS, Place, place_error
from holdfast.errors import BadInput, PlaceMissing, PlaceTaken, RepositoryDamaged
from holdfast.host.private_files import ensure_private_folder, write_atomically
from holdfast.identity.records.secret_bytes import SecretBytes

PASSPHRASE = b"holdfast"
PREFIX = "beside-"
BYTES_MAX = 64 * 1024 * 1024
FILES_MAX = 100
KEPT = 5  # older sets; more only waste the space of a small repository
KEPT_MAX = 20


def digest(files: Mapping[str, bytes]) -> str:
    """Of a whole set, to see if a place already has it."""
    parts = (f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


async def put_companions(engine: BackupEngine, place: Place, files: Mapping[str, bytes]) -> None:
    """Write the whole set for this place; durable on return. Raises what the place raises."""
    for name in files:
        _check_name(name)
    if place.kind is PlaceKind.FOLDER:
        await asyncio.to_thread(_write, place.own, files)
    else:
        await _archive(engine, place, files)


async def read_companions(engine: BackupEngine, place: Place) -> dict[str, bytes]:
    """The companion files as they are, not checked. Needs no key. Raises PlaceMissing if there are none."""
    if place.kind is PlaceKind.FOLDER:
        try:
            return await asyncio.to_thread(read_folder, place.own)
        except OSError as error:
            raise place_error(error, place.name) from error
    return await _unarchived(engine, companion_repository(place))


def read_folder(folder: Path) -> dict[str, bytes]:
    """The same, from a folder that a person found: ROOT/AGENT of a place."""
    found: dict[str, bytes] = {}
    names = [*sorted(_names(folder)), *sorted(f"{KEYS}/{name}" for name in _names(folder / KEYS))]
    for name in names[:FILES_MAX]:
        path = folder / name
        if path.suffix in (".json", ".age", ".jsonl", ".key") and path.is_file():
            if path.stat().st_size > BYTES_MAX:
                raise RepositoryDamaged(f"{path} is too large to be a companion file")
            found[name] = _read(path)
    if not found:
        raise PlaceMissing(f"{folder} holds no files of an agent")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:  # a failed read does not say of what
        raise OSError(error.errno, error.strerror, str(path)) from error


def companion_repository(place: Place) -> Repository:
    return Repository(
        name=f"{place.name} (beside)",
        address=place.companion or place.address + COMPANION_SUFFIX,
        passphrase=SecretBytes(PASSPHRASE),
        rsh=place.rsh,
        remote_program=place.remote_program,
    )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    ensure_private_folder(folder)
    if any(name.startswith(f"{KEYS}/") for name in files):
        ensure_private_folder(folder / KEYS)
    for name, data in files.items():
        path = folder / name
        try:
            same = path.read_bytes() == data
        except OSError:
            same = False
        if not same:
            write_atomically(path, data)


async def _archive(engine: BackupEngine, place: Place, files: Mapping[str, bytes]) -> None:
    repository = companion_repository(place)
    try:
        listed = await engine.list_archives(repository, prefix=PREFIX)
        archives = [one.name for one in listed.archives]
    except PlaceMissing:
        archives = []
        with contextlib.suppress(PlaceTaken):  # a run at the same time was quicker
            await engine.init(repository)
    ensure_private_folder(engine.base)
    with tempfile.TemporaryDirectory(prefix="beside-", dir=engine.base) as scratch:
        _write(Path(scratch), files)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        await engine.create(repository, f"{PREFIX}{stamp}-{os.urandom(4).hex()}", Path(scratch))
    if len(archives) > KEPT_MAX and not place.append_only:
        await engine.delete(repository, archives[:-KEPT])
        await engine.compact(repository)


async def _unarchived(engine: BackupEngine, repository: Repository) -> dict[str, bytes]:
    listed = await engine.list_archives(repository, prefix=PREFIX, rescue=True)
    if not listed.archives:
        raise PlaceMissing(f"{repository.name} holds no files of an agent")
    newest = max(listed.archives, key=lambda one: one.name)
    raw = bytearray()
    async with engine.export_tar(repository, newest.name, rescue=True) as pieces:
        async for piece in pieces:
            raw += piece
            if len(raw) > BYTES_MAX:
                raise RepositoryDamaged(f"{repository.name}: the companion files are too large")
    return files_of(bytes(raw), where=repository.name)


def files_of(raw: bytes, *, where: str) -> dict[str, bytes]:
    """The plain files of a small tar; nothing is written to a disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None and len(found) < FILES_MAX:
                    found[str(PurePosixPath(member.name))] = content.read()
    except tarfile.TarError as error:
        raise RepositoryDamaged(f"{where}: {error}") from error
    return found


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    inside = len(parts) == 1 or (len(parts) == 2 and parts[0] == KEYS)
    if not inside or ".." in parts or name.startswith("/"):
        raise BadInput(f"{name!r} cannot be a companion file of a repository")


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
