"""The key log beside the places: how a recovery is published there, and how what is found there is judged.

Two bare machines with one paper may recover one agent at the same time. Where they share a witness it takes one of
them. Where the old witnesses are lost each names one of its own, and both records are final: then the places decide,
because both machines must write to them. To publish a record is to create a file that nobody else may create:

    record-G-S-N.jsonl   in the agent's folder of a folder place: the record of position (G, S), then its receipts
    record-G-S-N         on a far host: an archive of the companion repository that holds this one file

N is 0. Where a file is there that holds no final record of this agent (it was cut short, or somebody else wrote it),
it stays as evidence and N is one more; so the first final record of a position is the one that counts. The file is
linked into place whole, or created exclusively where a disk knows no links; an archive's name is free or taken under
the repository's own lock. A copy in a cloud knows no exclusive create: it is judged, and gets the log with the first
backup. Every machine goes through the places in the order of their repositories' ids: of two that
reach the same places the second finds the first at the first place, and stops before it has keys. If each of them
reaches a place that the other does not, both come to be final. The next look at the other place then stops both,
and a recovery with --again ends it.

Order, and what a kill leaves: the witnesses have signed, then the places get the record, then the agent's own log
(log_act.py). A kill before that leaves a record that its own machine publishes again, byte for byte. What is in these
files belongs to the log beside the place (`log_in_companions`) until `kel.jsonl` holds it too.

Judged by the rules of the log (`find_rivals`): a final record that was not made here, of our generation or a later
one, stops us. One that is not final is kept beside the place as evidence and stops nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.companion_files import (
    CLAIM,
    companion_repository,
    log_in_companions,
    read_archive,
    read_claim,
    read_companions,
    read_folder,
)
from holdfast.backup.places.places import Place, check_there, place_error
from holdfast.errors import HoldfastError, KeysReplaced, PlaceRefused, SnapshotExists
from holdfast.host.private_files import create_durably, ensure_private_folder, write_all, write_atomically
from holdfast.identity.log.log_state import KeyLog, LogEntry
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.records import LogPosition
from holdfast.identity.witness.observe import find_rivals, merge_copies
from holdfast.identity.witness.witness import LogCopy
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.moved import RETURN_HINT

CLAIMS_MAX = 16  # of one position: files that hold no final record are passed over
LOOK_AGAIN_S = 1.0  # a file that was created a moment ago may not be written yet
CONTESTED_HINT = (
    "stop both machines. On the one that is to be the agent, run `holdfast recover --again` with every place: it locks "
    "out all others"
)
REPLACED_HINT = (
    "if you rotated this copy's keys yourself, update its key log: `holdfast identity show --fetch`. "
    "If not, stop this copy; to use it again instead of the other one, run `holdfast recover --again`"
)
SECOND_HINT = (
    "use the machine that came first. If it is lost or not yours, run the same command with --again: it locks that "
    "machine out"
)


def judged(
    own: KeyLog, copy: LogCopy, *, port: Signatures, pending: Sequence[Digest] = ()
) -> tuple[KeyLog, LogEntry | None]:
    """The log with what this copy adds to it, and the first final record that somebody else made."""
    named = frozenset(key for entry in own.entries() for keys in entry.needs for key in keys.members)
    seen = merge_copies(own, (copy,), id=own.id, port=port, asked=named) or own
    rivals = find_rivals(own, seen, pending)
    return seen, rivals[0] if rivals else None


def check_not_replaced(
    own: KeyLog,
    copy: LogCopy,
    *,
    where: str,
    port: Signatures,
    pending: Sequence[Digest] = (),
    home: AgentHome | None = None,
) -> KeyLog:
    """The log with the evidence that lies there. Raises KeysReplaced where somebody else speaks for the agent: of
    several instances that is most often the one that was promoted."""
    seen, rival = judged(own, copy, port=port, pending=pending)
    if rival is None:
        return seen
    if own.find(rival.position) is not None:
        raise KeysReplaced(
            f"{own.id} was recovered or rotated twice: {where} has another final record at {rival.position} than the "
            "one that was made here",
            hint=CONTESTED_HINT,
        )
    raise KeysReplaced(
        f"another copy recovered this agent or rotated its keys: the key log at {where} is at "
        f"{seen.position}, the key log here is at {own.position}",
        hint=RETURN_HINT if home is not None and os.path.lexists(home.roster_file) else REPLACED_HINT,
    )


@dataclass(slots=True)
class Publisher:
    """Brings the records of a recovery beside all places; called with the log when its newest record is final."""

    engine: BackupEngine
    places: Sequence[Place]
    port: Signatures
    told: dict[str, None] = field(default_factory=dict[str, None])
    failed: dict[str, str] = field(default_factory=dict[str, str])  # by place: why it was not told

    async def __call__(self, log: KeyLog) -> None:
        """Raises KeysReplaced where another recovery was there first. A place that does not answer stops nothing."""
        for place in sorted(self.places, key=lambda one: (one.repository_id, one.name)):
            try:
                if await self._publish(place, log):
                    self.told[place.name] = None
                self.failed.pop(place.name, None)
            except KeysReplaced:
                raise
            except (HoldfastError, OSError) as error:
                self.failed[place.name] = place_error(error, place.name).message

    async def _publish(self, place: Place, log: KeyLog) -> bool:
        if place.kind is not PlaceKind.RCLONE:
            await asyncio.to_thread(check_there, place)
        self._check_first(log, await read_companions(self.engine, place), place)
        if place.kind is PlaceKind.RCLONE:
            return False
        generation = log.generations[-1]
        for entry in (generation.tier, *generation.rotations):
            await self._claim(place, log, entry)
        return True

    async def _claim(self, place: Place, log: KeyLog, entry: LogEntry) -> None:
        data = claim_bytes(entry)
        for number in range(CLAIMS_MAX):
            name = claim_name(entry.position, number)
            if await self._create(place, name, data):
                return
            held = await self._read(place, name)
            if not self._is_ours(held, entry, log, place):
                await asyncio.sleep(LOOK_AGAIN_S)
                held = await self._read(place, name)
            if self._is_ours(held, entry, log, place):
                return
        raise PlaceRefused(f"place {place.name}: {CLAIMS_MAX} files named record-... hold no record of this agent")

    def _is_ours(self, held: bytes, entry: LogEntry, log: KeyLog, place: Place) -> bool:
        """False where the file holds nothing that counts. Raises KeysReplaced where it does."""
        self._check_first(log, {claim_name(entry.position, 0): held}, place)
        return read_claim(held)[0] == entry.signed.line()

    def _check_first(self, log: KeyLog, files: Mapping[str, bytes], place: Place) -> None:
        _, rival = judged(log, log_in_companions(files), port=self.port)
        if rival is None:
            return
        if place.name not in self.told and self.told:
            raise KeysReplaced(
                f"{log.id} was recovered twice at once: this recovery came first at place {', '.join(self.told)}, "
                f"another one at place {place.name}",
                hint=CONTESTED_HINT,
            )
        raise KeysReplaced(
            f"another machine recovered {log.id} first: place {place.name} has its record at {rival.position}. "
            "This machine has no valid keys of the agent",
            hint=SECOND_HINT,
        )

    async def _create(self, place: Place, name: str, data: bytes) -> bool:
        """Whether the file is ours now; False where there was one already."""
        if place.kind is PlaceKind.FOLDER:
            return await asyncio.to_thread(_create_file, place.own / name, data)
        ensure_private_folder(self.engine.base)
        with tempfile.TemporaryDirectory(prefix="record-", dir=self.engine.base) as scratch:
            write_atomically(Path(scratch) / name, data)
            try:
                await self.engine.create(companion_repository(place), name.removesuffix(".jsonl"), Path(scratch))
            except SnapshotExists:
                return False
        return True

    async def _read(self, place: Place, name: str) -> bytes:
        if place.kind is PlaceKind.FOLDER:
            files = await asyncio.to_thread(read_folder, place.own)
        else:
            files = await read_archive(self.engine, companion_repository(place), name.removesuffix(".jsonl"))
        return files.get(name, b"")


def claim_name(position: LogPosition, number: int) -> str:
    return f"record-{position.g}-{position.s}-{number}.jsonl"


def claim_bytes(entry: LogEntry) -> bytes:
    lines = (entry.signed.line(), *(receipt.line() for receipt in entry.receipts))
    return b"".join(line + b"\n" for line in lines)


def old_claims(files: Mapping[str, bytes], log: KeyLog) -> list[str]:
    """Files of generations that are over: the log beside the place has their records."""
    return [name for name in files if (found := CLAIM.fullmatch(name)) and int(found[1]) < log.position.g]


def _create_file(path: Path, data: bytes) -> bool:
    try:
        return create_durably(path, data)
    except (HoldfastError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
    try:  # a disk without links, such as FAT
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True
