"""One Ed25519 key that signs. PyNaCl (libsodium) does the work."""

from __future__ import annotations

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from holdfast.core.clock import Entropy
from holdfast.errors import BadInput
from holdfast.identity.records.encodings import PublicKey, key_text
from holdfast.identity.records.secret_bytes import Hidden

SEED_BYTES = 32
_TRIAL = b"holdfast/1/trial\0"  # no record's signature begins so


class KeyPair:
    """A signing key: its public half is shown, its seed never is."""

    __slots__ = ("_seed", "public_bytes")

    def __init__(self, seed: Hidden) -> None:
        raw = seed.reveal()
        if len(raw) != SEED_BYTES:
            raise BadInput(f"an Ed25519 seed has {SEED_BYTES} bytes, not {len(raw)}")
        self._seed = seed
        self.public_bytes = bytes(SigningKey(raw).verify_key)

    @classmethod
    def new(cls, entropy: Entropy) -> KeyPair:
        return cls(Hidden(entropy.bytes(SEED_BYTES)))

    @property
    def public(self) -> PublicKey:
        """As records write it; with `sign` this is ed25519.Signer."""
        return key_text(self.public_bytes)

    def sign(self, message: bytes) -> bytes:
        """64 bytes over exactly these; the family prefix is the caller's."""
        return SigningKey(self._seed.reveal()).sign(message).signature

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

    def __enter__(self) -> KeyPair:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"KeyPair({self.public_bytes.hex()})"
