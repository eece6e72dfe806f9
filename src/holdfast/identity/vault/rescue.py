"""Rescue keys: an age identity in a file that opens `rescue.age` beside each place, and signs nothing.

    FILE          the rescue key itself: an age identity with the agent's id, 0600, wherever a person put it
    rescue.age    for the rescue keys that count: the passphrases of the places' present repositories, and what opens
                  a journal for reading (core/reading_ring.py). The vault's own key opens it too, so that it is sealed
                  again only where something changed
    escrow.age    `others` has one entry per rescue key: its recipient, and when it was revoked. Who may read backups is
                  decided there, where only the open vault writes, and in no plain file
    rescue.json   the same entries in the agent's folder, to look at: nothing is decided by it

What is not in rescue.age: the vault's root, from which the passphrase of the next repository comes; `k_effect`; the
journal keys themselves, from which the key of the tools' secrets comes; every key that signs.

Borg cannot take a key back. So a revoked key opens each place until that place begins a new repository, and the old
repository for as long as a copy of it exists. `epochs` keeps how far the key had come when it was revoked: what has a
higher epoch is closed to it. An entry is never removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from holdfast.core.clock import Entropy
from holdfast.core.decoding import decode_json
from holdfast.core.ids import fingerprint_key
from holdfast.core.reading_ring import ReadingRing
from holdfast.errors import BadInput, BadKeyFile, HoldfastError, KeysWrong, PassphraseRefused, VaultDamaged, VaultLocked
from holdfast.host.private_files import create_durably
from holdfast.identity.records.encodings import AgentId, parse_agent_id
from holdfast.identity.records.secret_bytes import SecretBytes, Wiped
from holdfast.identity.vault.age import AgeIdentity, open_sealed, seal
from holdfast.identity.vault.ring import Escrow, JournalKeys, key_of_hex
from holdfast.identity.vault.slots import read_mounted
from holdfast.journal.seal import PAYLOAD, WRAP, derived, key_check_of
from holdfast.layout.rescued import RESCUED

RESCUE = "rescue.age"
FORMAT = 1
KEYS_MAX = 16  # that count at the same time
FILE_BYTES_MAX = 16 * 1024
_ENTRY = "rescue-key/"  # in the escrow's `others`: rescue-key/NAME
_AGENT, _NAME = "# agent: ", "# name: "


class RescueEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rescue key, as the vault knows it."""

    name: str
    recipient: str
    added_ms: int
    revoked_ms: int = 0  # 0: it counts
    epochs: dict[str, int] = {}  # when it was revoked: the last key epoch of each place


def entries_of(escrow: Escrow) -> tuple[RescueEntry, ...]:
    """All rescue keys, revoked ones too, by name. Raises VaultDamaged."""
    found = [value for name, value in sorted(escrow.others.items()) if name.startswith(_ENTRY)]
    try:
        return tuple(decode_json(one, RescueEntry) for one in found)
    except msgspec.DecodeError:
        raise VaultDamaged("escrow.age has a malformed entry of a rescue key") from None


def with_entry(escrow: Escrow, entry: RescueEntry) -> Escrow:
    """Raises BadInput where too many count."""
    text = msgspec.json.encode(entry).decode()
    changed = replace(escrow, others={**escrow.others, _ENTRY + entry.name: text})
    if len(counting(entries_of(changed))) > KEYS_MAX:
        raise BadInput(f"this agent already has {KEYS_MAX} rescue keys, which is the limit", hint="revoke one first")
    return changed


def counting(entries: Sequence[RescueEntry]) -> tuple[RescueEntry, ...]:
    return tuple(one for one in entries if not one.revoked_ms)


# the key's own file


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueKey(Wiped):
    """What the file holds."""

    agent: AgentId
    name: str
    identity: AgeIdentity

    def wipe(self) -> None:
        self.identity.wipe()


def make_key_file(path: Path, *, agent: AgentId, name: str, entropy: Entropy) -> RescueKey:
    """A new key in a new file; the key that is there, where an earlier run made it for the same agent and name.
    Raises BadInput where something else is there."""
    with AgeIdentity.new(entropy) as identity:
        text = (
            "# A rescue key of Holdfast: it opens the backups of this agent, and signs nothing.\n"
            f"{_AGENT}{agent}\n{_NAME}{name}\n# public key: {identity.recipient}\n{identity.reveal()}\n"
        )
        create_durably(path, text.encode())
    found = read_key_file(path)
    if (found.agent, found.name) != (agent, name):
        raise BadInput(f"{path} already holds the rescue key {found.name!r} of {found.agent}", hint="give a new file")
    return found


def read_key_file(path: Path) -> RescueKey:
    """Raises BadKeyFile; ModeTooWide, WrongOwner, WrongKind where others may have read it."""
    try:
        lines = read_mounted(path, bytes_max=FILE_BYTES_MAX).decode().splitlines()
    except FileNotFoundError:
        raise BadKeyFile(f"there is no file {path}", hint="give the file that `holdfast rescue add` made") from None
    except UnicodeDecodeError:
        lines = []
    try:
        agent, name = (_after(mark, lines) for mark in (_AGENT, _NAME))
        (secret,) = (line for line in lines if line.strip() and not line.startswith("#"))
        return RescueKey(agent=parse_agent_id(agent), name=name, identity=AgeIdentity.from_text(secret))
    except (ValueError, HoldfastError):
        raise BadKeyFile(
            f"{path} is not a rescue key of Holdfast", hint="give the file that `holdfast rescue add` made, unchanged"
        ) from None


def _after(mark: str, lines: Sequence[str]) -> str:
    (found,) = (line.removeprefix(mark).strip() for line in lines if line.startswith(mark))
    return found


# what it opens


class _JournalKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: int
    wrap: str
    payload: str


class ReadingKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What opens a journal for reading, as rescue.age and the keys.json of a rescued copy have it."""

    journal_keys: tuple[_JournalKey, ...]
    digest_key: str
    key_check: str

    def ring(self) -> ReadingRing:
        """Raises ValueError, TypeError."""
        keys = [(one.id, WRAP, one.wrap) for one in self.journal_keys]
        keys += [(one.id, PAYLOAD, one.payload) for one in self.journal_keys]
        return ReadingRing(
            sealing={(number, info): key_of_hex(text) for number, info, text in keys},
            digest_key=key_of_hex(self.digest_key),
            key_check=bytes.fromhex(self.key_check),
        )


def reading_keys(keys: JournalKeys) -> ReadingKeys:
    return ReadingKeys(
        journal_keys=tuple(
            _JournalKey(id=number, wrap=derived(key, WRAP).hex(), payload=derived(key, PAYLOAD).hex())
            for number, key in keys.journal_keys.items()
        ),
        digest_key=fingerprint_key(keys.k_effect).hex(),
        key_check=key_check_of(keys.k_effect).hex(),
    )


class _Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    epoch: int
    passphrase: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    file: str
    recipients: tuple[str, ...]
    places: tuple[_Place, ...] = ()
    keys: ReadingKeys | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """An opened rescue.age, or several: it gives passphrases as an escrow does, of the epochs that it has."""

    passphrases: Mapping[tuple[str, int], SecretBytes] = field(repr=False)
    keys: ReadingKeys = field(repr=False)

    def backup_passphrase(self, place: str, *, epoch: int = 1) -> SecretBytes:
        found = self.passphrases.get((place, epoch))
        if found is None:
            raise PassphraseRefused(
                f"place {place}: the rescue key does not open its repository (key epoch {epoch})",
                hint="the key was revoked, or the place was added after its rescue.age was written",
            )
        return found


def sealed_rescue(escrow: Escrow, epochs: Mapping[str, int], own: AgeIdentity, *, kept: bytes | None) -> bytes | None:
    """The rescue.age for places with these key epochs: `kept` where it still says the same; None where there never was
    a rescue key. Without one that counts it opens nothing."""
    entries = entries_of(escrow)
    if not entries:
        return None
    recipients = (own.recipient, *(one.recipient for one in counting(entries)))
    wanted = _File(format=FORMAT, file="rescue", recipients=recipients)
    if len(recipients) > 1:
        places = tuple(
            _Place(name=name, epoch=epoch, passphrase=escrow.backup_passphrase(name, epoch=epoch).reveal().decode())
            for name, epoch in epochs.items()
        )
        wanted = msgspec.structs.replace(wanted, places=places, keys=reading_keys(escrow.keys))
    try:
        if kept is not None and _opened(kept, own) == wanted:
            return kept
    except HoldfastError:
        pass  # another vault's, or damaged: it is written again
    return seal(msgspec.json.encode(wanted), recipients)


def open_rescue(files: Sequence[bytes], key: RescueKey) -> Rescue:
    """What these copies of rescue.age give this key, all together. Raises VaultLocked where it opens none."""
    opened: list[_File] = []
    for raw in files:
        try:
            opened.append(_opened(raw, key.identity))
        except HoldfastError:
            continue
    known = [one.keys for one in opened if one.keys is not None]
    if not known:
        raise VaultLocked(
            f"the rescue key {key.name!r} opens no {RESCUE} of the given places",
            hint="it may be revoked (`holdfast rescue list` on the agent's machine); give another place, or use the "
            "recovery words",
        )
    return Rescue(
        passphrases={
            (one.name, one.epoch): SecretBytes(one.passphrase.encode()) for file in opened for one in file.places
        },
        keys=max(known, key=lambda one: len(one.journal_keys)),
    )


def _opened(raw: bytes, identity: AgeIdentity) -> _File:
    try:
        found = decode_json(open_sealed(raw, identity), _File)
        if (found.format, found.file) != (FORMAT, "rescue"):
            raise ValueError("another file")
        if found.keys is not None:
            found.keys.ring()
    except (ValueError, TypeError, RecursionError):
        raise VaultDamaged(f"{RESCUE} has unexpected contents") from None
    return found


# the keys.json of a rescued copy


class _RescuedKeys(ReadingKeys, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int


def rescued_key_file(keys: ReadingKeys) -> bytes:
    fields = {"format": RESCUED, **msgspec.to_builtins(keys)}
    return msgspec.json.format(msgspec.json.encode(fields)) + b"\n"


def read_rescued(raw: bytes, *, where: Path) -> ReadingRing:
    """Raises KeysWrong."""
    try:
        return decode_json(raw, _RescuedKeys).ring()
    except (ValueError, TypeError, RecursionError) as error:
        raise KeysWrong(f"{where} is malformed ({type(error).__name__})") from None
