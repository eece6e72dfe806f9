"""Slots: the ways to one sealed key (passphrase, file, credential), each of them enough; who asks for a passphrase.

A slot seals the same small secret (the folder's age identity and the recipient of the paper) with
XChaCha20-Poly1305 under a key of its own. Everything readable in the slot, the id of the vault included, is
bound as associated data, so a slot that was changed or carried elsewhere does not open.

    passphrase   Argon2id of what a person types (NFKC)        safe when the disk is stolen
    file         32 random bytes in a mounted file             as safe as that file is
    credential   the same from systemd's credential folder     as safe as that host is

The work of Argon2id is bounded before any of it is done: weaker than the floor means that
someone has tampered, more than the cap means that someone wants us busy.

A plain folder of ours must be 0700 and its files 0600. A mounted secret (a container's secret
volume, systemd's credentials) is often a link to a file of the administrator: then what counts is
where it leads: a regular file of ours or of the administrator that no one else may read or write.
Nothing is written through a link. So the folder itself is never one: through a link it could be
read and not be written, and anyone who makes the link would say which vault this agent has.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt, crypto_aead_xchacha20poly1305_ietf_encrypt
from nacl.exceptions import CryptoError

from holdfast.core.clock import Entropy
from holdfast.core.values import canonical, checked
from holdfast.errors import BadInput, ModeTooWide, SymlinkRefused, VaultDamaged, VaultLocked, WrongKind, WrongOwner
from holdfast.host.private_files import explained
from holdfast.identity.records.secret_bytes import SecretBytes

FORMAT = 1
SALT_BYTES = 16
NONCE_BYTES = 24
TAG_BYTES = 16
KEY_BYTES = 32
SLOTS_MAX = 16
PASSPHRASE_CHARS_MIN = 8
PASSPHRASE_CHARS_MAX = 1_024
UNLOCK_FILE_BYTES_MAX = 1_024

# RFC 9106's second profile, and four times its work: about 1 s where the profile takes 0.2 s.
PASSES, MEMORY_KIB, LANES = 3, 64 * 1024, 4
PASSES_MAX, LANES_MAX = 16, 16
WORK_MAX = 4 * PASSES * MEMORY_KIB

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,254}")

RISKS = {
    "passphrase": "the agent cannot start until a person types it; do not write it down next to the vault",
    "file": "anyone who can read this file and the vault can act as the agent",
    "credential": "anyone who is root on this host can act as the agent",
}


class Argon2Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of Argon2id."""

    passes: int = PASSES
    memory_kib: int = MEMORY_KIB
    lanes: int = LANES


class Slot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way in, as it is stored."""

    id: str
    kind: str
    source: str = ""  # the path of the file, or the name of the credential
    salt: str
    work: Argon2Work | None = None
    nonce: str
    sealed: str


@dataclass(frozen=True, slots=True)
class UnlockKey:
    """What opens a slot, given by a person or found by the machine."""

    kind: str
    secret: SecretBytes
    source: str = ""
    work: Argon2Work | None = None


def passphrase_key(passphrase: str, work: Argon2Work | None = None) -> UnlockKey:
    """Raises BadInput for one that is too short to be worth its name."""
    plain = unicodedata.normalize("NFKC", passphrase)
    if not PASSPHRASE_CHARS_MIN <= len(plain) <= PASSPHRASE_CHARS_MAX:
        raise BadInput(
            f"a passphrase must have {PASSPHRASE_CHARS_MIN} to {PASSPHRASE_CHARS_MAX:,} characters",
            hint="use six random words, for example",
        )
    return UnlockKey("passphrase", SecretBytes(plain.encode()), work=work)


def file_key(path: Path, text: bytes) -> UnlockKey:
    """For a slot that a file at this path opens; `text` is what it holds."""
    return UnlockKey("file", _unlock_secret(text, str(path)), source=str(path))


def credential_key(name: str, text: bytes) -> UnlockKey:
    return UnlockKey("credential", _unlock_secret(text, name), source=name)


def new_unlock_text(entropy: Entropy) -> bytes:
    """What to put into a mounted file: 64 hex digits."""
    return entropy.bytes(KEY_BYTES).hex().encode() + b"\n"


def find_unattended(slots: Iterable[Slot]) -> list[UnlockKey]:
    """The keys that this machine has for these slots, without a person. Raises ModeTooWide, WrongOwner and WrongKind
    where a file is there and others may read it."""
    found: list[UnlockKey] = []
    for slot in slots:
        folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
        if slot.kind == "file":
            path, make = Path(slot.source), file_key
        elif slot.kind == "credential" and folder:
            path, make = Path(folder) / slot.source, None
        else:
            continue
        try:
            raw = read_mounted(path, bytes_max=UNLOCK_FILE_BYTES_MAX, group_may_read=slot.kind == "credential")
        except FileNotFoundError:
            continue
        found.append(make(path, raw) if make else credential_key(slot.source, raw))
    return found


def seal_slot(key: UnlockKey, payload: bytes, *, vault_id: str, entropy: Entropy) -> Slot:
    """A new slot that this key opens."""
    work = (key.work or Argon2Work()) if key.kind == "passphrase" else None
    id_, salt, nonce = entropy.bytes(4).hex(), _text(entropy.bytes(SALT_BYTES)), _text(entropy.bytes(NONCE_BYTES))
    slot = Slot(id=id_, kind=key.kind, source=key.source, work=work, salt=salt, nonce=nonce, sealed="")
    check_slot(slot)
    sealed = crypto_aead_xchacha20poly1305_ietf_encrypt(
        payload, _bound(slot, vault_id), _raw(slot.nonce), _derived(slot, key)
    )
    return msgspec.structs.replace(slot, sealed=_text(sealed))


def open_slot(slot: Slot, key: UnlockKey, *, vault_id: str) -> bytes | None:
    """What is sealed, or None where this key is another one. Raises VaultDamaged."""
    check_closed(slot)
    if slot.kind != key.kind:
        return None
    try:
        return crypto_aead_xchacha20poly1305_ietf_decrypt(
            _raw(slot.sealed), _bound(slot, vault_id), _raw(slot.nonce), _derived(slot, key)
        )
    except CryptoError:
        return None


def open_any(
    slots: Iterable[Slot], ask: Callable[[], str] | None, *, vault_id: str, where: Path, given: UnlockKey | None = None
) -> bytes:
    """What the slots seal: by a key that is given, by this machine's own, or by asking a person. `where` is the vault's
    folder, for messages. Raises VaultLocked, VaultDamaged, and what find_unattended raises."""
    slots = list(slots)
    for slot in slots:
        check_closed(slot)
    keys = [given] if given else find_unattended(slots)
    for key in keys:
        for slot in slots:
            payload = open_slot(slot, key, vault_id=vault_id)
            if payload is not None:
                return payload
    if given is not None:
        wrong = "wrong passphrase for" if given.kind == "passphrase" else f"the key in {given.source} does not open"
        raise VaultLocked(f"{wrong} the vault in {where}", hint=ways_in(slots))
    if ask is not None and any(slot.kind == "passphrase" for slot in slots):
        try:
            key = passphrase_key(ask())
        except BadInput:
            raise VaultLocked(f"wrong passphrase for the vault in {where}", hint=ways_in(slots)) from None
        return open_any(slots, None, vault_id=vault_id, where=where, given=key)
    read = {(key.kind, key.source) for key in keys}
    tried = "; ".join(_tried(slot, was_read=(slot.kind, slot.source) in read) for slot in slots)
    raise VaultLocked(f"cannot open the vault in {where}: {tried}", hint=ways_in(slots))


def ways_in(slots: Iterable[Slot]) -> str:
    """What a person can do to open one of these slots."""
    ways: list[str] = []
    for slot in slots:
        match slot.kind:
            case "file":
                ways.append(f"mount or restore {slot.source}")
            case "credential":
                ways.append(f"start it with systemd and the credential {slot.source}")
            case _:
                ways.append("type the passphrase")
    several = list(dict.fromkeys(ways))
    lost = "that is" if len(several) == 1 else "all of these are"
    return f"{'; or '.join(several)}; if {lost} lost, the recovery sheet still opens the vault"


def _tried(slot: Slot, *, was_read: bool) -> str:
    """Why a slot did not open, where no key was given."""
    if slot.kind == "passphrase":
        return "its passphrase is needed, and there is no terminal to ask for it"
    if slot.kind == "file":
        what = f"the file {slot.source}"
    else:
        folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
        if not folder:
            return f"systemd gave this process no credential {slot.source}"
        what = f"the credential {Path(folder) / slot.source}"
    return f"{what} has another key" if was_read else f"{what} is missing"


def check_closed(slot: Slot) -> None:
    """As check_slot, of one that is sealed."""
    check_slot(slot)
    if len(_raw(slot.sealed)) <= TAG_BYTES:
        raise VaultDamaged("slots.json has a slot without a sealed key")


def check_slot(slot: Slot) -> None:
    """Refuse what asks for too little work or for too much, before any is done."""
    known = slot.kind in RISKS
    if not known or (slot.work is None) == (slot.kind == "passphrase"):
        raise VaultDamaged("slots.json has a slot of an unknown kind, or with `work` that does not match its kind")
    if slot.kind == "file" and not os.path.isabs(slot.source):
        raise VaultDamaged("slots.json has a slot whose file path is not absolute")
    if slot.kind == "credential" and not _NAME.fullmatch(slot.source):
        raise VaultDamaged("slots.json has a slot whose credential name is invalid")
    for text, size in ((slot.salt, SALT_BYTES), (slot.nonce, NONCE_BYTES)):
        if len(_raw(text)) != size:
            raise VaultDamaged("slots.json has a slot with a salt or nonce of the wrong length")
    work = slot.work
    if work is None:
        return
    if work.passes < PASSES or work.memory_kib < MEMORY_KIB or work.lanes < 1:
        raise VaultDamaged("slots.json has a slot whose key derivation is too weak (passes, memory_kib or lanes)")
    too_much = work.passes * work.memory_kib > WORK_MAX
    if too_much or work.passes > PASSES_MAX or work.lanes > LANES_MAX:
        raise VaultDamaged("slots.json has a slot whose key derivation is too expensive (passes, memory_kib or lanes)")


def _derived(slot: Slot, key: UnlockKey) -> bytes:
    salt, work = _raw(slot.salt), slot.work
    if work is None:
        info = f"holdfast/vault/{slot.kind}/1".encode()
        kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info)
    else:
        kdf = Argon2id(
            salt=salt, length=KEY_BYTES, iterations=work.passes, lanes=work.lanes, memory_cost=work.memory_kib
        )
    return kdf.derive(key.secret.reveal())


def _bound(slot: Slot, vault_id: str) -> bytes:
    fields: dict[str, object] = {"format": FORMAT, "vault": vault_id, "id": slot.id, "kind": slot.kind}
    fields |= {"source": slot.source, "salt": slot.salt}
    if slot.work is not None:
        fields["work"] = msgspec.to_builtins(slot.work)
    return b"holdfast/vault/slot/1\0" + canonical(checked(fields, what="a slot"))


def _unlock_secret(text: bytes, where: str) -> SecretBytes:
    bare = text.strip()
    try:
        raw = bytes.fromhex(bare.decode("ascii"))
    except ValueError:
        raw = b""
    if len(bare) != 2 * KEY_BYTES or len(raw) != KEY_BYTES:
        raise VaultLocked(
            f"{where} does not contain an unlock key",
            hint="put an unlock key of 64 hex digits there, or type a passphrase at the terminal",
        )
    return SecretBytes(raw)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _raw(text: str) -> bytes:
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise VaultDamaged("slots.json has malformed base64") from None
    if _text(raw) != text:  # the decoder lets further padding and stray last bits through
        raise VaultDamaged("slots.json has base64 that is not in canonical form")
    return raw


_OTHERS = 0o077
_GROUP_READ = 0o040
_OTHERS_WRITE = 0o022


def read_mounted(path: Path, *, bytes_max: int, group_may_read: bool = False) -> bytes:
    """The bytes of a secret file. Raises FileNotFoundError, ModeTooWide, WrongOwner, WrongKind. `group_may_read` is for
    systemd's credentials: they may be the administrator's, with an access list for the service's user whose mask the
    group bits then show."""
    real = os.path.realpath(path)
    try:
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explained(error, path) from error
    try:
        _check_file(path, os.fstat(fd), group_may_read=group_may_read)
        with open(fd, "rb", closefd=False) as file:
            raw = file.read(bytes_max + 1)
    finally:
        os.close(fd)
    if len(raw) > bytes_max:
        raise WrongKind(f"{path} is larger than {bytes_max:,} bytes")
    return raw


def check_mounted_folder(path: Path) -> None:
    """Refuse a folder that others could read or fill, and a link to one. Raises FileNotFoundError too."""
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        real = os.path.realpath(path)
        raise SymlinkRefused(
            f"{path} is a symbolic link",
            hint=f"replace the link with the folder itself, or give the real path {real} wherever this path is "
            "set (options, holdfast.toml, keys.json)",
        )
    if not stat.S_ISDIR(found.st_mode):
        raise WrongKind(f"{path} is not a folder")
    _check_owner(path, found)
    wrong = _OTHERS if found.st_uid == os.geteuid() else _OTHERS_WRITE
    if mode & wrong:
        raise ModeTooWide(
            f"other users can read or change {path} (mode {mode:04o})",
            hint=f"run `chmod 700 {path}`; others may already have read it",
        )


def _check_file(path: Path, found: os.stat_result, *, group_may_read: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise WrongKind(f"{path} is not a file")
    _check_owner(path, found)
    mode = stat.S_IMODE(found.st_mode)
    spared = _GROUP_READ if group_may_read and found.st_uid == 0 else 0
    if mode & _OTHERS & ~spared:
        raise ModeTooWide(
            f"other users can read or change {path} (mode {mode:04o})",
            hint=f"run `chmod 600 {path}` (for a mounted secret, set the file mode); others may already have read it",
        )


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise WrongOwner(f"{path} belongs to user {found.st_uid}, but Holdfast runs as user {os.geteuid()}")
