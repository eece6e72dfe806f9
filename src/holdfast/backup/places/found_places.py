"""Places as a person names them on a bare machine: addresses, and nothing else is known.

A folder is the root of a place, in which each agent has a folder of its own, or that folder itself.
On a far host the companion repository has the rest. Companion files are read, not believed: the
escrow opens with the paper or it does not, the log is verified record by record, heads by the log,
and everything else by the heads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.address import PlaceKind, check_place_name, parse_address
from holdfast.backup.places.companion_files import read_companions
from holdfast.backup.places.places import ABOUT, Place, PlaceAbout, find_place_id, place_error
from holdfast.errors import BadInput, HoldfastError, PlaceMissing
from holdfast.identity.files.own_log import LOG, RECEIPTS
from holdfast.identity.witness.witness import LogCopy

AGENTS_MAX = 100  # folders of agents in one place that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlace:
    """A place that was found, with its companion files."""

    place: Place
    files: dict[str, bytes] = field(repr=False)

    @property
    def escrow(self) -> bytes | None:
        return self.files.get("escrow.age")

    @property
    def log(self) -> LogCopy:
        return log_in_companions(self.files)


def log_in_companions(files: Mapping[str, bytes]) -> LogCopy:
    """The log among these companion files, with its receipts; not checked."""
    records, receipts = (tuple(line for line in files.get(name, b"").split(b"\n") if line) for name in (LOG, RECEIPTS))
    return LogCopy(records=records, receipts=receipts)


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
        bare = Place(
            name="far",
            kind=PlaceKind.SSH,
            address=address.text,
            place_id="",
            repository_id="",
            agent="agent",
            added_ms=0,
            rsh=rsh,
            remote_program=remote_program,
        )
        files = await read_companions(engine, bare)
        return [FoundPlace(place=_named(bare, files, where=text), files=files)]
    try:
        folders = await asyncio.to_thread(_agent_folders, Path(address.text), agent)
    except OSError as error:
        raise place_error(error, text) from error
    return [await _in_folder(engine, folder) for folder in folders]


async def _in_folder(engine: BackupEngine, folder: Path) -> FoundPlace:
    bare = Place(
        name="found",
        kind=PlaceKind.FOLDER,
        address=str(folder.parent),
        repository_id="",
        place_id=find_place_id(folder.parent) or "",
        agent=folder.name,
        added_ms=0,
    )
    files = await read_companions(engine, bare)
    return FoundPlace(place=_named(bare, files, where=str(folder)), files=files)


def _named(bare: Place, files: dict[str, bytes], *, where: str) -> Place:
    try:
        about = msgspec.json.decode(files.get(ABOUT, b""), type=PlaceAbout)
        check_place_name(about.place)
    except (msgspec.DecodeError, UnicodeError, RecursionError, HoldfastError):
        raise PlaceMissing(f"{where}: {ABOUT} is missing or cannot be read") from None
    return msgspec.structs.replace(bare, name=about.place, epoch=max(about.epoch, 1), repository_id=about.repository_id)


def _agent_folders(root: Path, agent: str) -> list[Path]:
    if not root.is_dir():
        raise PlaceMissing(f"there is no folder {root}", hint="mount the disk, or correct the path")
    if (root / ABOUT).is_file():
        return [root]
    names = sorted(os.listdir(root))[: 10 * AGENTS_MAX]
    found = [root / name for name in names if (root / name / ABOUT).is_file()]
    wanted = [path for path in found if not agent or path.name == agent][:AGENTS_MAX]
    if not wanted:
        there = f"; there are: {', '.join(path.name for path in found)}" if found else ""
        raise PlaceMissing(f"{root} holds no backup of {agent or 'an agent'}{there}")
    return wanted


def _is_folder(text: str) -> bool:
    if not text:
        raise BadInput("the address of a place is empty")
    return text.startswith(("/", "./", "../")) or os.path.isdir(text)
