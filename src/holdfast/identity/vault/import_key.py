"""A signing key that existed before the agent becomes its first operational key.

Read from a private file: an OpenSSH key of type ed25519, or a raw seed of 32 bytes, or 64 where
the public half follows, as libsodium writes it. Everything else is refused.

What is weaker: a key that lived elsewhere may have been copied there. It can certify instances
until the first rotation, and nothing more: it never rotates and never recovers. Rotate soon.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import BadKeyFile
from holdfast.host.private_files import read_private
from holdfast.identity.records.secret_bytes import SEED_BYTES, KeyPair, SecretBytes

FILE_BYTES_MAX = 16 * 1024
OPENSSH, SEED = "openssh", "seed"
_BEGIN = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_DISTINCT_MIN = 8  # bytes of a seed; a random one has about 30 different ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    key: KeyPair
    kind: str


def read_key_file(path: Path, ask: Callable[[], str] | None = None) -> Imported:
    """The key in this file; `ask` gives the passphrase of one that is encrypted. Raises BadKeyFile (it holds no such
    key, or the passphrase is wrong), ModeTooWide, WrongOwner, WrongKind, SymlinkRefused (others may have read it)."""
    try:
        raw = read_private(path, FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise BadKeyFile(f"there is no file {path}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise BadKeyFile(f"{path} has more than {FILE_BYTES_MAX:,} bytes")
    if raw.lstrip().startswith(_BEGIN):
        imported = Imported(key=_openssh(raw, path, ask), kind=OPENSSH)
    else:
        imported = Imported(key=_seed(raw, path), kind=SEED)
    if len(set(imported.key.seed())) < _DISTINCT_MIN:
        raise BadKeyFile(f"the key in {path} is not random: it has too few different bytes")
    if not imported.key.signs_for(imported.key.public_bytes):
        raise BadKeyFile(f"the key in {path} does not make valid signatures")
    return imported


def _seed(raw: bytes, path: Path) -> KeyPair:
    if len(raw) not in (SEED_BYTES, 2 * SEED_BYTES):
        raise BadKeyFile(f"{path} is neither an OpenSSH key nor a seed of 32 or 64 bytes: it has {len(raw)} bytes")
    key = KeyPair(SecretBytes(raw[:SEED_BYTES]))
    if len(raw) == 2 * SEED_BYTES and raw[SEED_BYTES:] != key.public_bytes:
        raise BadKeyFile(
            f"{path} is damaged: its last 32 bytes must be the public key of the seed in its first 32 bytes"
        )
    return key


def _openssh(raw: bytes, path: Path, ask: Callable[[], str] | None) -> KeyPair:
    key = _loaded(raw, path, None)
    if key is None:
        if ask is None:
            raise BadKeyFile(f"{path} is encrypted", hint="run the command at a terminal: it asks for the passphrase")
        key = _loaded(raw, path, ask().encode())
    if key is None:
        raise BadKeyFile(f"wrong passphrase for {path}")
    return key


def _loaded(raw: bytes, path: Path, passphrase: bytes | None) -> KeyPair | None:
    """None where a passphrase is needed, or is wrong."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = load_ssh_private_key(raw, passphrase)
    except UnsupportedAlgorithm as error:
        raise BadKeyFile(
            f"Holdfast cannot open {path}: {error.args[0]}",
            hint="remove the passphrase from a copy with `ssh-keygen -p -f COPY`, import the copy, then destroy it",
        ) from None
    except TypeError:
        return None  # encrypted, and no passphrase was given
    except (ValueError, OverflowError, MemoryError) as error:
        if passphrase is not None:
            return None
        raise BadKeyFile(f"{path} is damaged: {error}") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise BadKeyFile(f"{path} holds a key that is not of type ed25519")
    return KeyPair(SecretBytes(found.private_bytes_raw()))
