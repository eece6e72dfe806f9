"""How digests, ids, public keys and signatures are written in records: one spelling each.

A digest is the SHA-256 in base32, lower case, no padding: 52 characters. An id is the same hash
in Bech32m under `hf`. A public key is a multikey, equal to what did:key shows: `z`, then base58
of ed01 and the 32 bytes. A signature is base64url without padding: 86 characters. Trailing bits
that nothing uses must be zero in all of them, so that a text has no second spelling.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from functools import lru_cache
from typing import NewType

from holdfast.errors import BadRecord
from holdfast.identity.records import bech32

AgentId = NewType("AgentId", str)
Digest = NewType("Digest", str)
PublicKey = NewType("PublicKey", str)  # a multikey

ID_PREFIX = "hf"
ID_CHARS = 61
DIGEST_CHARS = 52
SIGNATURE_CHARS = 86
KEY_BYTES = 32
SIGNATURE_BYTES = 64
_MULTICODEC_ED25519 = b"\xed\x01"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUES = {char: value for value, char in enumerate(_BASE58)}
_BASE32 = re.compile("[a-z2-7]+")
_BASE32_CHARS = b"abcdefghijklmnopqrstuvwxyz234567".ljust(256)
_KEY_CHARS = 48  # every key of 32 bytes behind ed01: z6Mk and 44 more


def digest_of(raw: bytes) -> Digest:
    """The digest of bytes: of a record's canonical body, mostly."""
    return digest_text(hashlib.sha256(raw).digest())


def _halves() -> list[tuple[int, int, int]]:
    """Masks that move 64 groups of 5 bits into 64 bytes: halves apart, then quarters, down to single groups."""
    found: list[tuple[int, int, int]] = []
    for groups in (32, 16, 8, 4, 2, 1):
        lower = sum(((1 << 5 * groups) - 1) << start for start in range(0, 512, 16 * groups))
        found.append((lower, lower << 5 * groups, 3 * groups))
    return found


_HALVES = _halves()


def digest_text(hashed: bytes) -> Digest:
    """Base32 of 32 bytes. Python's own is written in Python, three times slower, and each request needs several."""
    bits = int.from_bytes(hashed, "big") << 4  # 260: whole groups of 5
    for lower, upper, shift in _HALVES:
        bits = (bits & lower) | ((bits & upper) << shift)
    return Digest(bits.to_bytes(DIGEST_CHARS, "big").translate(_BASE32_CHARS).decode())


def parse_digest(text: str) -> Digest:
    if len(text) != DIGEST_CHARS or text != text.lower():
        raise BadRecord(f"a digest must have {DIGEST_CHARS} characters in lower case")
    if not _BASE32.fullmatch(text):
        raise BadRecord("a digest has a character that base32 does not use")
    if text[-1] not in "aq":  # 52 characters hold 260 bits, of which the last four are zero
        raise BadRecord("a digest has bits left over at its end")
    return Digest(text)


def agent_id(inception_body: bytes) -> AgentId:
    """The id of the agent whose first record has this canonical body."""
    return AgentId(bech32.encode(ID_PREFIX, hashlib.sha256(inception_body).digest()))


@lru_cache(maxsize=1024)  # every record of a log names it
def parse_agent_id(text: str) -> AgentId:
    """The id as records write it; one in capitals, as codes on paper show it, is put right."""
    if len(bech32.decode(text, prefix=ID_PREFIX)) != hashlib.sha256().digest_size:
        raise BadRecord(f"an id must have {ID_CHARS} characters")
    return AgentId(text.lower())


@lru_cache(maxsize=4096)
def key_text(raw: bytes) -> PublicKey:
    """The multikey of 32 bytes."""
    if len(raw) != KEY_BYTES:
        raise BadRecord(f"a public key must have {KEY_BYTES} bytes")
    return PublicKey(f"z{_base58(_MULTICODEC_ED25519 + raw)}")


@lru_cache(maxsize=4096)
def key_bytes(text: str) -> bytes:
    """The 32 bytes of a multikey. Whether they are a good key, the verifier says."""
    if len(text) != _KEY_CHARS or text[0] != "z":
        raise BadRecord(f"a public key must be a multikey of {_KEY_CHARS} characters")
    number = 0
    for char in text[1:]:
        value = _BASE58_VALUES.get(char)
        if value is None:
            raise BadRecord("a public key has a character that base58 does not use")
        number = number * 58 + value
    raw = number.to_bytes(len(text), "big").lstrip(b"\0")
    if len(raw) != KEY_BYTES + 2 or not raw.startswith(_MULTICODEC_ED25519):
        raise BadRecord("a multikey is not an Ed25519 key")
    return raw[2:]


def parse_key(text: str) -> PublicKey:
    key_bytes(text)
    return PublicKey(text)


@lru_cache(maxsize=4096)
def key_digest(key: PublicKey) -> Digest:
    """What is committed to before a key is shown: the digest of the multikey's characters."""
    return digest_of(key.encode())


def signature_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def signature_bytes(text: str) -> bytes:
    if len(text) != SIGNATURE_CHARS:
        raise BadRecord(f"a signature has {len(text)} characters instead of {SIGNATURE_CHARS}")
    try:
        raw = base64.b64decode(f"{text}==".encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadRecord("a signature has a character that base64url does not use") from None
    if signature_text(raw) != text:
        raise BadRecord("a signature has bits left over at its end")
    return raw


def _base58(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    chars: list[str] = []
    while number:
        number, rest = divmod(number, 58)
        chars.append(_BASE58[rest])
    return "".join(reversed(chars))
