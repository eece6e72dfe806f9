"""`instance/key.json`: the instance's key and its counter, on this host alone.

The folder is 0700 and the file 0600; it is excluded from every backup. It is replaced in one
durable act before a message with the next counter leaves, so that a crash can lose a message but
never send two under one counter. A key that is found in another place than it was made is
overwritten on the disk, removed, and never used again; a disk that copies on write may keep the
bytes, which is why the key counts for nothing without a certificate of at most an hour.

A crash between the removal and the new file leaves no file: the folder then counts as a copy,
which is the careful side. So the new file takes the place of the old one in one rename, and the
old bytes are overwritten through a descriptor that was opened before.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec

from holdfast.core.clock import Clock, Entropy
from holdfast.errors import BadRecord, InstanceDamaged
from holdfast.host.private_files import check_place, destroying, ensure_private_folder, read_private, write_atomically
from holdfast.identity.lease.instance import BEFORE_MAX, Instance, Origin, Site, may_sign, origin_of, successor
from holdfast.identity.records.encodings import (
    AgentId,
    Digest,
    PublicKey,
    digest_of,
    parse_agent_id,
    parse_digest,
    parse_key,
)
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes

FORMAT = 1
NAME = "key.json"
FILE_BYTES_MAX = 16 * 1024
_MACHINE_ID = Path("/etc/machine-id")


class _Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    machine: str
    boot: str
    device: int
    inode: int


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    id: str
    public: str
    seed: str
    site: _Site
    e: int
    counter: int
    last: str = ""
    frozen: tuple[int, int] | None = None
    before: tuple[tuple[str, int], ...] = ()


class InstanceFile:
    """The instance of the agent in this folder. One process at a time changes it (the keeper)."""

    def __init__(self, folder: Path, *, id: AgentId, clock: Clock, entropy: Entropy) -> None:
        check_place(folder)
        ensure_private_folder(folder)
        self.folder = folder
        self._id = id
        self._clock = clock
        self._entropy = entropy
        self._key: KeyPair | None = None
        self.instance: Instance | None = None

    def open(self, position: LogPosition) -> tuple[Instance, Origin | None]:
        """The instance that speaks from here on: the kept one if it is of this place, else a new
        one. Also what the kept one was; None where there was none.

        `position` is where the log stands now.
        """
        site = site_of(self.folder, self._clock)
        found = self._read()
        kept = None if found is None else found[0]
        origin = None if kept is None else origin_of(kept, site, self._id)
        if found is not None and origin is not None and may_sign(found[0], origin, position):
            self.instance, self._key = found[0], KeyPair(found[1])
            return self.instance, origin
        key = KeyPair.new(self._entropy)
        made = successor(kept, origin, id=self._id, key=key.public, site=site, position=position)
        self._replace(made, key)
        return made, origin

    def start_over(self) -> Instance:
        """A new key that follows nothing: for one whose twin has said more."""
        key = KeyPair.new(self._entropy)
        site = site_of(self.folder, self._clock)
        made = Instance(id=self._id, key=key.public, site=site)
        self._replace(made, key)
        return made

    def adopt(self, made: Instance, key: KeyPair) -> None:
        """From here on this folder is that instance: its key came with the agent, from the host
        that gave its lease to it."""
        self._replace(made, KeyPair(SecretBytes(key.seed())))

    def _replace(self, made: Instance, key: KeyPair) -> None:
        self._key = key
        with destroying(self.folder / NAME):
            self.keep(made)

    def keep(self, instance: Instance) -> None:
        """Durable on return."""
        if self._key is None or self._key.public != instance.key:
            raise InstanceDamaged("the instance has no key")
        position = instance.frozen
        whole = _File(
            format=FORMAT,
            id=instance.id,
            public=instance.key,
            seed=self._key.seed().hex(),
            site=_Site(**asdict(instance.site)),
            e=instance.e,
            counter=instance.counter,
            last=instance.last or "",
            frozen=None if position is None else (position.g, position.s),
            before=instance.before,
        )
        write_atomically(self.folder / NAME, msgspec.json.encode(whole) + b"\n")
        self.instance = instance

    @property
    def signer(self) -> KeyPair:
        if self._key is None:
            raise InstanceDamaged("the instance was not opened")
        return self._key

    def wipe(self) -> None:
        if self._key is not None:
            self._key.wipe()

    def _read(self) -> tuple[Instance, SecretBytes] | None:
        path = self.folder / NAME
        try:
            raw = read_private(path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            return _parsed(msgspec.json.decode(raw, type=_File))
        except (msgspec.DecodeError, BadRecord, ValueError, RecursionError) as error:
            raise InstanceDamaged(f"{path} is malformed: {type(error).__name__}") from None


def site_of(folder: Path, clock: Clock) -> Site:
    found = os.stat(folder)
    return Site(machine=machine_digest(), boot=clock.boot_id, device=found.st_dev, inode=found.st_ino)


def machine_digest() -> Digest:
    """Of the machine's id; of its name where it has none."""
    try:
        text = _MACHINE_ID.read_text("ascii").strip() if sys.platform == "linux" else ""
    except (OSError, ValueError):
        text = ""
    return digest_of(f"holdfast/machine/1\0{text or os.uname().nodename}".encode())


def host_digest(clock: Clock) -> Digest:
    """`host` of a certificate: this machine, as it was started last."""
    return digest_of(f"holdfast/host/1\0{machine_digest()}\0{clock.boot_id}".encode())


def _parsed(found: _File) -> tuple[Instance, SecretBytes]:
    seed = SecretBytes(bytes.fromhex(found.seed))
    if found.format != FORMAT or KeyPair(SecretBytes(seed.reveal())).public != found.public:
        raise ValueError("another format, or a key that is not its own")
    if min(found.e, found.counter, *(number for _, number in found.before), 0) < 0:
        raise ValueError("a number below zero")
    site = Site(
        machine=parse_digest(found.site.machine), boot=found.site.boot, device=found.site.device, inode=found.site.inode
    )
    instance = Instance(
        id=parse_agent_id(found.id),
        key=PublicKey(found.public),
        site=site,
        e=found.e,
        counter=found.counter,
        last=parse_digest(found.last) if found.last else None,
        frozen=None if found.frozen is None else LogPosition(*found.frozen),
        before=tuple((parse_key(key), number) for key, number in found.before[:BEFORE_MAX]),
    )
    return instance, seed
