"""The one verifier of signatures, behind a port.

Two readers of a log must never disagree about a signature, and libraries do disagree: about
low-order keys, with which anybody can "sign", about keys and points in a second spelling, about
an S beyond the group's order. So every signature in the house is judged by libsodium, one at a
time (batch verification gives other verdicts), and by nothing else. It refuses small-order and
non-canonical keys, small-order R and any S that is not reduced.

A key that enters a log is screened besides: only a canonical point of the main subgroup may be
registered, so that no key has a torsion part whose verdict depends on the library.

The port exists for the schedules that test the rules: they sign a hundred thousand logs with
something quicker than Ed25519.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import nacl.bindings
import nacl.exceptions

from holdfast.errors import BadRecord
from holdfast.identity.records.encodings import KEY_BYTES, SIGNATURE_BYTES, PublicKey, key_text

SEED_BYTES = 32


class Signatures(Protocol):
    """Judges signatures and keys. Both verbs are pure, and never raise."""

    def verifies(self, key: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the key signed exactly this message."""
        ...

    def is_good_key(self, key: bytes) -> bool:
        """Whether the key may be registered."""
        ...


class Signer(Protocol):
    """Holds a private key, or reaches the one that does."""

    @property
    def public(self) -> PublicKey: ...

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the signature."""
        ...


class Sodium:
    """Ed25519 as libsodium has it."""

    def verifies(self, key: bytes, message: bytes, signature: bytes) -> bool:
        if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
            return False
        try:
            nacl.bindings.crypto_sign_open(signature + message, key)
        except nacl.exceptions.BadSignatureError:
            return False
        return True

    def is_good_key(self, key: bytes) -> bool:
        return len(key) == KEY_BYTES and _is_main_subgroup(key)


class SeedSigner:
    """Signs with a key that is in this process's memory."""

    __slots__ = ("_public", "_secret")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise BadRecord(f"the seed of a key has {SEED_BYTES} bytes")
        public, self._secret = nacl.bindings.crypto_sign_seed_keypair(seed)
        self._public = key_text(public)

    @property
    def public(self) -> PublicKey:
        return self._public

    def sign(self, message: bytes) -> bytes:
        return nacl.bindings.crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def __repr__(self) -> str:  # never the secret
        return f"SeedSigner({self._public})"


@lru_cache(maxsize=1024)  # witnesses come again in every record
def _is_main_subgroup(key: bytes) -> bool:
    return bool(nacl.bindings.crypto_core_ed25519_is_valid_point(key))
