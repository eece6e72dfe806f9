"""Keys that do not sign (journal keys, effect key, root of backup passphrases), in `escrow.age`: added, never replaced.

    vault_key    the vault's own age identity, so that op.age opens too
    vault_root   32 random bytes; the passphrase of each backup place is derived from it
    ring         k_effect and the journal keys, as keys.json had them; the journals they serve (core/served.py)
    places       folders that get a copy of escrow.age whenever it changes
    others       further secrets by name: mail keys, logins of relays

A new key must never be in use while only one disk has it: `change` writes the copies first, reads
each back, and the vault's own file last, which is the one that running workers read. A kill in
between leaves copies that know a key more than the vault does, which no one has used; the next
change writes over them. Without a second place nothing is changed at all. For a mail key one
copy is enough: it is made although a disk is in a drawer, and published when the places have it (mail_keys.py).

Several workers, also of other machines, may have the same vault open: each reads escrow.age when
it starts, and again when a journal names a key that it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.core.clock import Entropy
from holdfast.core.served import Served, format_of, listed, parse_served
from holdfast.errors import BadInput, HoldfastError, KeysWrong, PlaceMissing, VaultDamaged
from holdfast.host.private_files import check_place, check_private_folder
from holdfast.identity.records.secret_bytes import SecretBytes
from holdfast.identity.vault.age import AgeIdentity, open_sealed
from holdfast.identity.vault.vault import Contents, Vault, parse_contents

ESCROW = "escrow"
KEY_BYTES = 32
PLACES_MAX = 16
OTHERS_MAX = 1_000
OTHER_CHARS_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalKeys:
    """What a journal needs. Nothing of it is shown."""

    k_effect: bytes = field(repr=False)
    current: int
    journal_keys: dict[int, bytes] = field(repr=False)
    journals: Served = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Escrow:
    """The contents of escrow.age."""

    vault_key: str = field(repr=False)
    vault_root: bytes = field(repr=False)
    keys: JournalKeys
    places: tuple[str, ...] = ()
    others: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def backup_passphrase(self, place: str, *, epoch: int = 1) -> SecretBytes:
        """Of the repository at a place: the same for as long as the vault's root is. The root is this agent's alone, so
        no other agent has it. A new epoch is for a new repository: changing a known passphrase does not hide it."""
        info = b"holdfast/backup/1\0" + place.encode()
        if epoch != 1:
            info += b"\0" + str(epoch).encode()
        return SecretBytes(self._derived(info).hex().encode())

    def secrets_identity(self) -> AgeIdentity:
        """For whom the secret files of an adopted agent are sealed in its snapshots; as lasting as the root."""
        return AgeIdentity.from_secret(SecretBytes(self._derived(b"holdfast/sealed-secrets/1")))

    def _derived(self, info: bytes) -> bytes:
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(self.vault_root)


class VaultRing:
    """core.served.ServingRing from a vault."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._escrow = read_escrow(vault)

    @property
    def k_effect(self) -> bytes:
        return self._escrow.keys.k_effect

    @property
    def current_journal_key(self) -> int:
        return self._escrow.keys.current

    @property
    def journals(self) -> Served:
        return self._escrow.keys.journals

    def change_journals(self, decide: Callable[[Served], Served]) -> None:
        def changed(escrow: Escrow) -> Escrow:
            return replace(escrow, keys=replace(escrow.keys, journals=decide(escrow.keys.journals)))

        try:
            self._escrow = change(self._vault, changed)
        except FileNotFoundError as error:
            raise PlaceMissing(
                f"{error.filename} is missing. Holdfast adds a journal to the vault's keys only if it can also write "
                "every copy of them",
                hint="mount the disk of this file, or put the journal into a folder of its own",
            ) from error

    def journal_key(self, key_id: int) -> bytes:
        if key_id not in self._escrow.keys.journal_keys:
            self.refresh()  # another worker may have added it
        key = self._escrow.keys.journal_keys.get(key_id)
        if key is None:
            raise KeysWrong(f"the vault has no journal key {key_id}")
        return key

    def key_ids(self) -> list[int]:
        """The journal keys that the vault holds now."""
        self.refresh()
        return sorted(self._escrow.keys.journal_keys)

    def refresh(self) -> None:
        found = read_escrow(self._vault)
        if found.keys.k_effect != self._escrow.keys.k_effect:
            raise VaultDamaged("the vault changed while Holdfast used it: it now has the keys of another journal")
        self._escrow = found

    def add_journal_key(self, entropy: Entropy) -> int:
        """A new key for what is sealed from now on; old ones stay. Its id."""
        self._escrow = change(self._vault, lambda escrow: _with_new_key(escrow, entropy))
        return self._escrow.keys.current

    def __repr__(self) -> str:
        return f"VaultRing({self._vault!r})"


def new_keys(entropy: Entropy) -> JournalKeys:
    return JournalKeys(k_effect=entropy.bytes(KEY_BYTES), current=1, journal_keys={1: entropy.bytes(KEY_BYTES)})


def read_escrow(vault: Vault) -> Escrow:
    return _parsed(vault.read(ESCROW))


def open_escrow(raw: bytes, identity: AgeIdentity) -> Escrow:
    """escrow.age as found beside a backup, with the paper's escrow key. Raises VaultLocked."""
    return _parsed(parse_contents(open_sealed(raw, identity), vault_id=None, name=ESCROW))


def change(vault: Vault, decide: Callable[[Escrow], Escrow], *, least: int | None = None) -> Escrow:
    """Change what is kept, copies first. On return it is in at least two places. Raises BadInput where there is no
    second place; ReadOnly, JournalFull where one of them cannot be written: then the vault itself is as it was.
    `least`: see `store`."""
    with vault.turn():
        changed = decide(read_escrow(vault))
        store(vault, changed, least=least)
        return changed


def store(
    vault: Vault, escrow: Escrow, *, also: Sequence[Path] = (), but: Collection[str] = (), least: int | None = None
) -> None:
    """Write escrow.age to every place, read each back, then to the vault itself. `but`: places that are away now, where
    that may not stop the change; each gets its copy with the next backup to it. `least`: so many copies are enough,
    whichever places cannot be written; None: all are needed."""
    contents = contents_of(escrow)
    if _parsed(contents) != escrow:
        raise BadInput("Holdfast did not write escrow.age: read back from the file, the keys would not be the same")
    copies = [*also, *(Path(place) for place in escrow.places if place not in but)]
    if not copies:
        raise BadInput(
            "Holdfast did not write escrow.age: there would be no copy of it outside the vault",
            hint="give a folder on another disk for the copy; without it, a new key would exist only in this vault",
        )
    raw, failed = vault.sealed(ESCROW, contents), 0
    for folder in copies:
        try:
            check_place(folder, allow_network_fs=True)
            check_private_folder(folder)
            vault.put(ESCROW, raw, contents, folder)
        except (HoldfastError, OSError):
            failed += 1
            if least is None or len(copies) - failed < least:
                raise
    vault.put(ESCROW, raw, contents)


def contents_of(escrow: Escrow) -> Contents:
    keys = escrow.keys
    return {
        "vault_key": escrow.vault_key,
        "vault_root": escrow.vault_root.hex(),
        "ring": {
            "format": format_of(keys.journals),
            "k_effect": keys.k_effect.hex(),
            "current": keys.current,
            "journal_keys": [{"id": number, "key": key.hex()} for number, key in keys.journal_keys.items()],
            **({"journals": listed(keys.journals)} if keys.journals else {}),
        },
        "places": list(escrow.places),
        "others": dict(escrow.others),
    }


def with_place(escrow: Escrow, folder: Path) -> Escrow:
    if str(folder) in escrow.places:
        return escrow
    return replace(escrow, places=(*escrow.places, str(folder)))


def _with_new_key(escrow: Escrow, entropy: Entropy) -> Escrow:
    keys = escrow.keys
    number = max(keys.journal_keys) + 1
    added = {**keys.journal_keys, number: entropy.bytes(KEY_BYTES)}
    return replace(escrow, keys=replace(keys, current=number, journal_keys=added))


def _parsed(contents: Contents) -> Escrow:
    try:
        return _strict(contents)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise VaultDamaged("escrow.age has unexpected contents") from None


def _strict(contents: Contents) -> Escrow:
    wanted = {"vault_key", "vault_root", "ring", "places", "others"}
    ring = contents["ring"]
    if contents.keys() != wanted:
        raise ValueError("unknown fields")
    AgeIdentity.from_text(contents["vault_key"]).wipe()
    journal_keys = {key_number(one["id"]): key_of_hex(one["key"]) for one in ring["journal_keys"]}
    if len(journal_keys) != len(ring["journal_keys"]) or ring["current"] not in journal_keys:
        raise ValueError("key ids")
    places, others = contents["places"], contents["others"]
    _check_texts(places, PLACES_MAX)
    _check_texts([*others, *others.values()], 2 * OTHERS_MAX)
    k_effect, root = key_of_hex(ring["k_effect"]), key_of_hex(contents["vault_root"])
    journals = parse_served(ring.get("journals", []), ring_format=ring["format"])
    current = key_number(ring["current"])
    keys = JournalKeys(k_effect=k_effect, current=current, journal_keys=journal_keys, journals=journals)
    key = contents["vault_key"]
    return Escrow(vault_key=key, vault_root=root, keys=keys, places=tuple(places), others=dict(others))


def _check_texts(texts: list[Any], count_max: int) -> None:
    if len(texts) > count_max:
        raise ValueError("too many")
    if not all(isinstance(text, str) and len(text) <= OTHER_CHARS_MAX for text in texts):
        raise ValueError("no text")


def key_of_hex(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError("a key must be text")
    raw = bytes.fromhex(text)
    if len(raw) != KEY_BYTES:
        raise ValueError("a key must have 32 bytes")
    return raw


def key_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("a key id must be a positive whole number")
    return value
