"""Secret bytes that are never shown and can be wiped.

Wiping is as good as Python allows: what we hold ourselves is overwritten; copies that a library
or the interpreter made on the way (immutable bytes, text) live until their memory is used again.
That is why secrets are opened late, for short, and in processes that leave no core dumps.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from typing import NoReturn, Self

from nacl.bindings import crypto_sign, crypto_sign_BYTES
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from holdfast.core.clock import Entropy
from holdfast.errors import BadInput
from holdfast.identity.records.encodings import PublicKey, key_text


class Wiped(ABC):
    """What is wiped at the end of a `with` block."""

    __slots__ = ()

    @abstractmethod
    def wipe(self) -> None:
        """Overwrite what is held. Safe to repeat."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()


class SecretBytes(Wiped):
    """Bytes that no repr, error or pickle gives away."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes | bytearray) -> None:
        self._raw = bytearray(raw)

    def reveal(self) -> bytes:
        """A copy of the bytes, for the one call that needs them. Raises ValueError once wiped."""
        if not self._raw:
            raise ValueError("Holdfast has already wiped this secret from memory")
        return bytes(self._raw)

    def wipe(self) -> None:
        wipe(self._raw)
        self._raw.clear()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretBytes):
            return NotImplemented
        return hmac.compare_digest(self._raw, other._raw)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "SecretBytes(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def wipe(raw: bytearray) -> None:
    for at in range(len(raw)):
        raw[at] = 0


SEED_BYTES = 32
_TRIAL = b"holdfast/1/trial\0"  # no record's signature begins so


class KeyPair(Wiped):
    """A signing key: its public half is shown, its seed never is."""

    __slots__ = ("_seed", "public_bytes")

    def __init__(self, seed: SecretBytes) -> None:
        raw = seed.reveal()
        if len(raw) != SEED_BYTES:
            raise BadInput(f"an Ed25519 seed has {SEED_BYTES} bytes, not {len(raw)}")
        self._seed = seed
        self.public_bytes = bytes(SigningKey(raw).verify_key)

    @classmethod
    def new(cls, entropy: Entropy) -> KeyPair:
        return cls(SecretBytes(entropy.bytes(SEED_BYTES)))

    @property
    def public(self) -> PublicKey:
        """As records write it; with `sign` this is ed25519.Signer."""
        return key_text(self.public_bytes)

    def sign(self, message: bytes) -> bytes:
        """64 bytes over exactly these; the family prefix is the caller's."""
        secret = self._seed.reveal() + self.public_bytes  # as libsodium has it: nothing is derived again
        return crypto_sign(message, secret)[:crypto_sign_BYTES]

    def seed(self) -> bytes:
        """For the vault alone."""
        return self._seed.reveal()

    def signs_for(self, public: bytes) -> bool:
        """Sign and verify once: whether this really is the key, before anybody relies on it."""
        try:
            VerifyKey(public).verify(_TRIAL + public, self.sign(_TRIAL + public))
        except BadSignatureError:
            return False
        return True

    def wipe(self) -> None:
        self._seed.wipe()

    def __repr__(self) -> str:
        return f"KeyPair({self.public_bytes.hex()})"
