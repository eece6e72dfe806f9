"""The companion files of a repository: what a bare machine needs besides the paper.

    place.json           the place's name and key epoch, to derive the passphrase
    escrow.age           the vault's keys, which the paper opens
    rescue.age           what a rescue key may read, where there is one (identity/vault/rescue.py)
    heads.jsonl          the chain of signed heads
    kel.jsonl            the agent's key log, by which heads are judged, and receipts.jsonl for it
    instances.jsonl      the roster of its instances, where it has one
    keys/PLACE.key       the key blocks of the other places, each sealed by its own passphrase
    record-G-S-N.jsonl   one record of the log, published here once and for all (published.py)

None of it is readable or forgeable by itself, so fetching it needs no secret. In a folder these are
plain files. On a far host, where only the engine answers, they are the newest archive of a second,
small repository (ADDRESS-beside) with the passphrase `holdfast`, which is printed here on purpose:
with the paper and the address, the plain engine can read it.

All files are written at once. A kill in between leaves, in a folder, some old and some new files,
each whole; on a far host the set before. The next run compares and writes them again.

`find_sources` takes addresses as a person names them on a bare machine. A folder is the root of a
place, in which each agent has a folder of its own, or that folder itself, or the repository in it. On a
far host the companion repository has the rest. Companion files are read, not believed: the escrow opens
with the paper or it does not, the log is verified record by record, heads by the log, and everything else
by the heads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import msgspec

from holdfast.backup.engine import BackupEngine, Repository
from holdfast.backup.places.address import PlaceKind, check_place_name, parse_address
from holdfast.backup.places.cloud_copy import copy_of, fetch_all
from holdfast.backup.places.places import (
    ABOUT,
    CLOUD,
    COMPANION_SUFFIX,
    KEYS,
    Place,
    PlaceAbout,
    find_place_id,
    is_repository,
    is_suffix,
    place_error,
)
from holdfast.core.decoding import decode_json
from holdfast.errors import (
    BadInput,
    HoldfastError,
    PlaceMissing,
    PlaceTaken,
    RepositoryDamaged,
    SymlinkRefused,
    WrongKind,
)
from holdfast.host.private_files import ensure_private_folder, read_plain, write_atomically
from holdfast.identity.files.own_log import LOG, RECEIPTS
from holdfast.identity.records.secret_bytes import SecretBytes
from holdfast.identity.vault.rescue import RESCUE
from holdfast.identity.witness.observe import records_of
from holdfast.identity.witness.witness import LogCopy

PASSPHRASE = b"holdfast"
PREFIX = "beside-"
BYTES_MAX = 64 * 1024 * 1024
FILES_MAX = 100
KEPT = 5  # older sets; more only waste the space of a small repository
KEPT_MAX = 20
CLAIM = re.compile(r"record-([0-9]{1,6})-([0-9]{1,6})-([0-9]{1,3})\.jsonl")


def digest(files: Mapping[str, bytes]) -> str:
    """Of a whole set, to see if a place already has it."""
    parts = (f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


async def put_companions(engine: BackupEngine, place: Place, files: Mapping[str, bytes]) -> None:
    """Write the whole set for this place; durable on return. Raises what the place raises."""
    for name in files:
        _check_name(name)
    if place.kind is PlaceKind.SSH:
        await _archive(engine, place, files)
        return
    await asyncio.to_thread(_write, place.own, files)
    if place.kind is PlaceKind.RCLONE:
        await copy_of(place).push_companions()


async def read_companions(engine: BackupEngine, place: Place, *, rescue: bool = False) -> dict[str, bytes]:
    """The companion files as they are, not checked. Needs no key. Raises PlaceMissing if there are none, and
    RepositoryDamaged if one is a link, a pipe or a device; with `rescue` such a one only counts as missing."""
    if place.kind is PlaceKind.SSH:
        return await _unarchived(engine, companion_repository(place))
    try:
        if place.kind is PlaceKind.FOLDER:
            return await asyncio.to_thread(read_folder, place.own, rescue=rescue)
        # What the cloud knows counts, not what was last sent there: another machine may have been recovered from it.
        ensure_private_folder(engine.base)
        with tempfile.TemporaryDirectory(prefix="beside-", dir=engine.base) as scratch:
            await copy_of(place).fetch_companions(Path(scratch))
            return await asyncio.to_thread(read_folder, Path(scratch), rescue=rescue)
    except OSError as error:
        raise place_error(error, place.name) from error


def read_folder(folder: Path, *, rescue: bool = False) -> dict[str, bytes]:
    """The same, from a folder that a person found: ROOT/AGENT of a place."""
    found: dict[str, bytes] = {}
    names = [*sorted(_names(folder)), *sorted(f"{KEYS}/{name}" for name in _names(folder / KEYS))]
    for name in names[:FILES_MAX]:
        path = folder / name
        if path.suffix in (".json", ".age", ".jsonl", ".key"):
            try:
                found[name] = _read(path)
            except (SymlinkRefused, WrongKind) as error:
                if not rescue:
                    hint = f"remove {path}: the next backup writes the file again. Find out who put it there"
                    raise RepositoryDamaged(error.message, hint=hint) from error
    if not found:
        raise PlaceMissing(f"{folder} has no companion files of an agent (heads.jsonl, escrow.age and others)")
    return found


def _read(path: Path) -> bytes:
    try:
        raw = read_plain(path, BYTES_MAX + 1)
    except OSError as error:  # a failed read does not say of what
        raise OSError(error.errno, error.strerror, str(path)) from error
    if len(raw) > BYTES_MAX:
        raise RepositoryDamaged(f"{path} is larger than {BYTES_MAX:,} bytes, the limit for a companion file")
    return raw


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
            same = read_plain(path, len(data) + 1) == data
        except (OSError, SymlinkRefused, WrongKind):
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
    names = [one.name for one in (await engine.list_archives(repository, rescue=True)).archives]
    sets = [name for name in names if name.startswith(PREFIX)]
    if not sets:
        raise PlaceMissing(f"{repository.name} has no companion files of an agent (heads.jsonl, escrow.age and others)")
    files = await read_archive(engine, repository, max(sets))
    known = {one.record.position for one in records_of(log_in_companions(files))}
    claimed = [name for name in names if _claimed(name) not in (None, *known)]  # by a recovery that was cut short
    for name in claimed[:FILES_MAX]:
        files |= await read_archive(engine, repository, name)
    return files


async def read_archive(engine: BackupEngine, repository: Repository, archive: str) -> dict[str, bytes]:
    raw = bytearray()
    async with engine.export_tar(repository, archive, rescue=True) as pieces:
        async for piece in pieces:
            raw += piece
            if len(raw) > BYTES_MAX:
                raise RepositoryDamaged(f"{repository.name}: the companion files have more than {BYTES_MAX:,} bytes")
    return files_of(bytes(raw), where=repository.name)


def files_of(raw: bytes, *, where: str) -> dict[str, bytes]:
    """The plain files of a small tar; nothing is written to a disk."""
    import tarfile  # every worker loads this module, and hardly one reads a tar

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
        raise BadInput(f"{name!r} is not a valid name for a companion file of a repository")


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


AGENTS_MAX = 100  # folders of agents in one place that are looked at
_AGENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")  # a name that may become that of a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlace:
    """A place that was found, with its companion files."""

    place: Place
    files: dict[str, bytes] = field(repr=False)
    agent: str = ""  # its name, as the place says it; not proven

    @property
    def escrow(self) -> bytes | None:
        return self.files.get("escrow.age")

    @property
    def rescue(self) -> bytes | None:
        return self.files.get(RESCUE)

    @property
    def log(self) -> LogCopy:
        return log_in_companions(self.files)


def log_in_companions(files: Mapping[str, bytes]) -> LogCopy:
    """The log among these companion files, with its receipts; not checked."""
    records, receipts = (tuple(line for line in files.get(name, b"").split(b"\n") if line) for name in (LOG, RECEIPTS))
    claims = [read_claim(files[name]) for name in sorted(files, key=_claim_rank) if CLAIM.fullmatch(name)]
    return LogCopy(
        records=(*records, *(record for record, _ in claims)),
        receipts=(*receipts, *(line for _, lines in claims for line in lines)),
    )


def read_claim(raw: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """The record that was published in this file, and its receipts; not checked."""
    record, *receipts = raw.split(b"\n")
    return record, tuple(line for line in receipts if line)


def _claimed(archive: str) -> tuple[int, int] | None:
    """The position whose record this archive publishes; None where it is another archive."""
    found = CLAIM.fullmatch(f"{archive}.jsonl")
    return None if found is None else (int(found[1]), int(found[2]))


def _claim_rank(name: str) -> tuple[int, ...]:
    """A record comes after the one that it follows."""
    found = CLAIM.fullmatch(name)
    return () if found is None else tuple(map(int, found.groups()))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlaces:
    found: tuple[FoundPlace, ...]
    failed: dict[str, HoldfastError]  # by address


async def find_sources(
    engine: BackupEngine, addresses: Sequence[str], *, agent: str = "", rsh: str = "", remote_program: str = ""
) -> FoundPlaces:
    """What is at these addresses; with `agent` only of the agent of that name."""
    done = await asyncio.gather(
        *(_sources_at(engine, one, agent=agent, rsh=rsh, remote_program=remote_program) for one in addresses),
        return_exceptions=True,
    )
    found: list[FoundPlace] = []
    failed: dict[str, HoldfastError] = {}
    for address, result in zip(addresses, done, strict=True):
        if isinstance(result, HoldfastError):
            failed[address] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            found += result
    return FoundPlaces(found=tuple(found), failed=failed)


async def _sources_at(
    engine: BackupEngine, text: str, *, agent: str, rsh: str, remote_program: str
) -> list[FoundPlace]:
    address = parse_address(os.path.abspath(text) if _is_folder(text) else text)
    if address.kind is PlaceKind.SSH:
        far = msgspec.structs.replace(_bare("far", address.text), rsh=rsh, remote_program=remote_program)
        return [await _found(engine, far, where=text)]
    root = Path(address.text)
    if address.kind is PlaceKind.RCLONE:
        root = await fetch_all(address.text, engine.base / CLOUD, agent=agent)
    try:
        folders = await asyncio.to_thread(_agent_folders, root, agent)
    except OSError as error:
        raise place_error(error, text) from error
    return [await _found(engine, _bare("found", str(one.parent), folder=one), where=str(one)) for one in folders]


def _bare(name: str, address: str, *, folder: Path | None = None) -> Place:
    """As far as an address says it; its companion files say the rest."""
    kind, agent = (PlaceKind.SSH, "agent") if folder is None else (PlaceKind.FOLDER, folder.name)
    place_id = "" if folder is None else find_place_id(folder.parent) or ""
    return Place(name=name, kind=kind, address=address, place_id=place_id, repository_id="", agent=agent, added_ms=0)


async def _found(engine: BackupEngine, bare: Place, *, where: str) -> FoundPlace:
    files = await read_companions(engine, bare, rescue=True)
    try:
        about = decode_json(files.get(ABOUT, b""), PlaceAbout)
        check_place_name(about.place)
    except (msgspec.DecodeError, UnicodeError, RecursionError, HoldfastError):
        raise PlaceMissing(f"{where}: {ABOUT} is missing or cannot be read") from None
    epoch, suffix = max(about.epoch, 1), about.suffix if is_suffix(about.suffix) else ""
    known = about.repository_id
    place = msgspec.structs.replace(bare, name=about.place, epoch=epoch, repository_id=known, suffix=suffix)
    last = bare.address.rsplit("/", 1)[-1] if bare.kind is PlaceKind.SSH else bare.agent
    agent = next((one for one in (about.agent, last) if _AGENT.fullmatch(one)), "")
    return FoundPlace(place=place, files=files, agent=agent)


def _agent_folders(root: Path, agent: str) -> list[Path]:
    if not root.is_dir():
        raise PlaceMissing(f"there is no folder {root}", hint="mount the disk, or correct the path")
    for folder in (root, root.parent) if is_repository(root.name) else (root,):
        if (folder / ABOUT).is_file():
            return [folder]
    names = sorted(os.listdir(root))[: 10 * AGENTS_MAX]
    found = [root / name for name in names if (root / name / ABOUT).is_file()]
    wanted = [path for path in found if not agent or path.name == agent][:AGENTS_MAX]
    if not wanted:
        there = f"; it has backups of: {', '.join(path.name for path in found)}" if found else ""
        raise PlaceMissing(
            f"{root} has no backup of {agent or 'an agent'}{there}",
            hint="give the address that the recovery sheet or the public card names; if it is on a disk, mount that",
        )
    return wanted


def _is_folder(text: str) -> bool:
    if not text:
        raise BadInput("the address of a place is empty")
    return text.startswith(("/", "./", "../")) or os.path.isdir(text)
