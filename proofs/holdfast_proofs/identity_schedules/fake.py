"""Signatures that cost nothing: a keyed hash of the message.

Anybody could forge them; the worlds here do not. What the schedules try is the rules over
signatures, a hundred thousand times; the signatures themselves are tried by the public suites.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from holdfast.identity.records.ed25519 import Signer
from holdfast.identity.records.encodings import PublicKey, key_text
from holdfast.identity.records.signed import Family, Signed, sealed
from holdfast.identity.statements.roster import Roster, parse_roster


class FakePort:
    def verifies(self, key: bytes, message: bytes, signature: bytes) -> bool:
        return _mac(key, message) == signature

    def is_good_key(self, key: bytes) -> bool:
        return key != bytes(32)


class FakeSigner:
    __slots__ = ("_raw", "public")

    def __init__(self, name: str) -> None:
        self._raw = hashlib.sha256(name.encode()).digest()
        self.public: PublicKey = key_text(self._raw)

    def sign(self, message: bytes) -> bytes:
        return _mac(self._raw, message)


@lru_cache(maxsize=4096)  # the worlds use the same names
def signer(name: str) -> FakeSigner:
    return FakeSigner(name)


def sign_roster(roster: Roster, *signers: Signer) -> Signed[Roster]:
    """As a speaker signs one: read back as others will read it; BadRecord where they could not."""
    return parse_roster(sealed(roster, Family.ROSTER, signers).line())


def _mac(key: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(message, key=key, digest_size=64).digest()


PORT = FakePort()
