"""A vault: one folder with `slots.json` and age files that only its own key and the paper open.

    slots.json   the folder's age identity, sealed once for each slot       (slots.py)
    NAME.age     a JSON object, sealed for {that identity, the paper's escrow key}

Each file is replaced atomically (host/private_files.py), and a write counts only after it was
read back, opened and compared: anyone who gets an answer from `write` may rely on it. Contents name
the vault and the file they belong to, so that a file of another vault, or another file of this
one, is refused. What is not noticed: an older file of the same name, put back by someone who
may write here; the key log tells which keys are the current ones.

A vault comes into being by one rename: it is built in `.NAME.new` beside its place, synced, and renamed. A
set-up that was killed leaves such a folder, which no one has ever used; the next set-up removes it.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.clock import Entropy
from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput, HoldfastError, VaultDamaged, VaultExists, VaultLocked, VaultMissing
from holdfast.host import private_files
from holdfast.identity.records.secret_bytes import Wiped
from holdfast.identity.vault.age import FILE_BYTES_MAX, AgeIdentity, is_recipient, open_sealed, seal
from holdfast.identity.vault.slots import (
    FORMAT,
    SLOTS_MAX,
    Slot,
    UnlockKey,
    check_mounted_folder,
    find_unattended,
    open_any,
    open_slot,
    read_mounted,
    seal_slot,
)

SLOTS = "slots.json"
LOCK = "lock"
SLOTS_BYTES_MAX = 64 * 1024

Contents = dict[str, Any]  # Any: JSON; the owner of a file parses it


class _SlotFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    vault: str
    slots: tuple[Slot, ...]


class _Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every slot seals. The recipient is in here so that no one can exchange it."""

    identity: str
    escrow: str


class Vault(Wiped):
    """An open vault. Wipe it, or use it in a `with` block."""

    def __init__(self, folder: Path, *, vault_id: str, identity: AgeIdentity, escrow: str) -> None:
        self.folder = folder
        self.vault_id = vault_id
        self.escrow = escrow
        self.identity = identity

    @property
    def recipients(self) -> tuple[str, str]:
        return self.identity.recipient, self.escrow

    def has(self, name: str) -> bool:
        return os.path.lexists(self._path(name))

    def read(self, name: str) -> Contents:
        """The contents of a file. Raises VaultMissing, VaultDamaged, and what a wide mode does."""
        path = self._path(name)
        try:
            raw = read_mounted(path, bytes_max=FILE_BYTES_MAX)
        except FileNotFoundError:
            raise VaultMissing(f"there is no {path.name} in {self.folder}") from None
        try:
            return self.unsealed(name, raw)
        except VaultLocked:
            raise VaultDamaged(f"this vault does not open {path}: the file was sealed for another vault") from None

    def write(self, name: str, contents: Contents) -> None:
        """Replace a file durably. On return it was read back and holds exactly this."""
        self.put(name, self.sealed(name, contents), contents)

    def sealed(self, name: str, contents: Contents) -> bytes:
        """The bytes of a file, for this folder or for a copy elsewhere."""
        whole = {"format": FORMAT, "vault": self.vault_id, "file": name, **contents}
        return seal(json.dumps(whole, indent=1).encode() + b"\n", self.recipients)

    def unsealed(self, name: str, raw: bytes) -> Contents:
        """The contents of such bytes, checked to be those of this vault's file of that name."""
        return parse_contents(open_sealed(raw, self.identity), vault_id=self.vault_id, name=name)

    def put(self, name: str, raw: bytes, contents: Contents, folder: Path | None = None) -> None:
        """Store bytes that `sealed` made, here or in another folder, and read them back."""
        path = (folder or self.folder) / f"{name}.age"
        private_files.write_atomically(path, raw)
        if self.unsealed(name, read_mounted(path, bytes_max=FILE_BYTES_MAX)) != contents:
            raise VaultDamaged(f"{path} does not have the bytes that Holdfast just wrote to it")

    @contextmanager
    def turn(self) -> Generator[None]:
        """One writer at a time."""
        with private_files.locked(self.folder / LOCK):
            yield

    def list_slots(self) -> tuple[Slot, ...]:
        return _read_slots(self.folder).slots

    def add_slot(self, key: UnlockKey, entropy: Entropy, *, replace: str = "") -> Slot:
        """A further way in; with `replace` instead of the slot of that id, in one act. A copy of the old slots.json
        still opens with what opened it before."""
        with self.turn():
            kept = tuple(slot for slot in self.list_slots() if slot.id != replace)
            if replace and len(kept) == len(self.list_slots()):
                raise BadInput(f"the vault has no slot {replace}")
            made = seal_slot(key, self._payload(), vault_id=self.vault_id, entropy=entropy)
            self._write_slots((*kept, made), {made.id: key})
            return made

    def close_slots(self, keys: Sequence[UnlockKey], entropy: Entropy) -> None:
        """Slots for exactly these keys, whatever there was before."""
        payload = self._payload()
        made = [seal_slot(key, payload, vault_id=self.vault_id, entropy=entropy) for key in keys]
        self._write_slots(tuple(made), dict(zip((one.id for one in made), keys, strict=True)))

    def exchange_escrow(self, recipient: str, keys: Sequence[UnlockKey], entropy: Entropy) -> None:
        """Name another paper in every slot: what is written from now on is sealed for it. All slots are exchanged in
        one act, so each of them must open by one of the keys. Files keep their old recipients until they are written
        again. Safe to repeat. Raises VaultLocked where a slot does not open; nothing was changed then."""
        if not is_recipient(recipient):
            raise BadInput("the escrow recipient is not an X25519 recipient of age (age1...)")
        with self.turn():
            ways = [self._way(slot, keys) for slot in self.list_slots()]
            before, self.escrow = self.escrow, recipient
            try:
                self.close_slots(ways, entropy)
            except BaseException:  # also an interrupt: the slots still name the old paper; it goes on to the caller
                self.escrow = before
                raise

    def check_ways(self, keys: Sequence[UnlockKey]) -> None:
        """Raises VaultLocked where a slot opens by none of these keys."""
        for slot in self.list_slots():
            self._way(slot, keys)

    def _way(self, slot: Slot, keys: Sequence[UnlockKey]) -> UnlockKey:
        for key in keys:
            if open_slot(slot, key, vault_id=self.vault_id) is not None:
                return replace(key, source=slot.source, work=slot.work)
        raise VaultLocked(
            f"Holdfast cannot open slot {slot.id} ({slot.kind}) of {self.folder}",
            hint="this command must open every slot: type the slot's passphrase, or mount its file",
        )

    def wipe(self) -> None:
        self.identity.wipe()

    def __repr__(self) -> str:
        return f"Vault({str(self.folder)!r})"

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.age"

    def _payload(self) -> bytes:
        return msgspec.json.encode(_Payload(identity=self.identity.reveal(), escrow=self.escrow))

    def _write_slots(self, slots: tuple[Slot, ...], keys: dict[str, UnlockKey]) -> None:
        """Each new slot is opened from what was read back before the write counts."""
        if len(slots) > SLOTS_MAX:
            raise BadInput(f"a vault has at most {SLOTS_MAX} slots")
        whole = _SlotFile(format=FORMAT, vault=self.vault_id, slots=slots)
        raw = msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"
        private_files.write_atomically(self.folder / SLOTS, raw)
        for slot in _read_slots(self.folder).slots:
            key = keys.get(slot.id)
            if key and open_slot(slot, key, vault_id=self.vault_id) != self._payload():
                raise VaultDamaged(f"Holdfast wrote slot {slot.id}, but cannot open it")


def open_vault(folder: Path, *, ask: Callable[[], str] | None = None, given: UnlockKey | None = None) -> Vault:
    """The vault in this folder, by a given key, by the machine's own, or by asking a person. Raises VaultMissing,
    VaultLocked, VaultDamaged, SymlinkRefused, ModeTooWide, WrongOwner, WrongKind."""
    found = _read_slots(folder)
    raw = open_any(found.slots, ask, vault_id=found.vault, where=folder, given=given)
    try:
        payload = decode_json(raw, _Payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise VaultDamaged(f"a slot of {folder} does not contain a vault key") from None
    identity = AgeIdentity.from_text(payload.identity)
    return Vault(folder, vault_id=found.vault, identity=identity, escrow=payload.escrow)


def terminal_prompt() -> Callable[[], str] | None:
    """How a person is asked for the vault's passphrase; None without a terminal."""
    return (lambda: getpass.getpass("passphrase of the vault: ", sys.stderr)) if sys.stdin.isatty() else None


def exists(folder: Path) -> bool:
    return os.path.lexists(folder / SLOTS)


def read_slots(folder: Path) -> tuple[Slot, ...]:
    """The slots as they are stored, unopened."""
    return _read_slots(folder).slots


def opens_unattended(folder: Path) -> bool:
    """Whether a process without a person can open this vault: a file is there, or systemd gives a credential."""
    slots = read_slots(folder)
    return any(slot.kind == "credential" for slot in slots) or bool(find_unattended(slots))


def read_vault_id(folder: Path) -> str:
    """The id that a vault shows without being opened."""
    return _read_slots(folder).vault


@contextmanager
def building(
    folder: Path, *, keys: Sequence[UnlockKey], vault_id: str, escrow: str, entropy: Entropy
) -> Generator[tuple[Vault, Callable[[], None]]]:
    """A new vault beside its place, and what moves it there. Raises VaultExists where its place is taken."""
    if not keys:
        raise BadInput("a vault needs at least one slot")
    if not is_recipient(escrow):
        raise BadInput("the escrow recipient is not an X25519 recipient of age (age1...)")
    check_free(folder)
    place = unfinished(folder)
    if not folder.parent.is_dir():
        private_files.ensure_private_folder(folder.parent)
    remove_unfinished(folder)
    private_files.ensure_private_folder(place)
    vault = Vault(place, vault_id=vault_id, identity=AgeIdentity.new(entropy), escrow=escrow)
    try:
        vault.close_slots(keys, entropy)

        def move() -> None:
            private_files.sync_folder(place)
            check_free(folder)
            try:
                os.rename(place, folder)
                private_files.sync_folder(folder.parent)
            except OSError as error:
                raise private_files.explained(error, folder) from error
            vault.folder = folder

        yield vault, move
    except BaseException:  # also an interrupt: no unfinished vault may stay; it goes on to the caller
        with contextlib.suppress(OSError):
            remove_unfinished(folder)
        raise


def check_free(folder: Path) -> None:
    private_files.check_place(folder)
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise VaultExists(f"{folder} already exists and is not an empty folder")


def unfinished(folder: Path) -> Path:
    """Where a vault is built before it is moved to its place."""
    return folder.parent / f".{folder.name}.new"


def remove_unfinished(folder: Path) -> None:
    place = unfinished(folder)
    if os.path.lexists(place):
        private_files.check_private_folder(place)
        shutil.rmtree(place)


def clear_unfinished(folder: Path, second: Path) -> None:
    """Remove what a killed set-up left: never anything that was in use."""
    if not exists(unfinished(folder)) or exists(folder):
        return
    try:
        same = read_vault_id(unfinished(folder)) == read_vault_id(second)
    except HoldfastError:
        return
    if same:
        private_files.check_private_folder(second)
        known = {"slots.json", "next.age", "escrow.age", "lock"}
        others = {name for name in os.listdir(second) if not name.endswith(".new")} - known
        if others:
            raise VaultExists(
                f"Holdfast cannot remove the unfinished set-up in {second}: it did not write {min(others)} there",
                hint="move the file to another folder, then run the command again",
            )
        # By one rename, so that a kill in the middle of the removal leaves nothing half there.
        remove_unfinished(second)
        os.rename(second, unfinished(second))
        remove_unfinished(second)


def parse_contents(plain: bytes, *, vault_id: str | None, name: str) -> Contents:
    try:
        found = json.loads(plain)
        if found["format"] != FORMAT or found["file"] != name:
            raise ValueError("another file")
        if vault_id is not None and found["vault"] != vault_id:
            raise ValueError("another vault")
        return {key: found[key] for key in found if key not in ("format", "vault", "file")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise VaultDamaged(f"{name}.age has unexpected contents") from None


def _read_slots(folder: Path) -> _SlotFile:
    try:
        check_mounted_folder(folder)
        raw = read_mounted(folder / SLOTS, bytes_max=SLOTS_BYTES_MAX)
    except FileNotFoundError:
        raise VaultMissing(f"there is no vault in {folder}") from None
    try:
        found = decode_json(raw, _SlotFile)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise VaultDamaged(f"{folder / SLOTS} is malformed") from None
    if found.format != FORMAT or not 0 < len(found.slots) <= SLOTS_MAX:
        raise VaultDamaged(f"{folder / SLOTS} has an unknown format, no slot, or more than {SLOTS_MAX} slots")
    return found
