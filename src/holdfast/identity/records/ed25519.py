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

from holdfast.identity.records.encodings import KEY_BYTES, SIGNATURE_BYTES, PublicKey


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


@lru_cache(maxsize=1024)  # witnesses come again in every record
def _is_main_subgroup(key: bytes) -> bool:
    return bool(nacl.bindings.crypto_core_ed25519_is_valid_point(key))
