"""Keys of age: an X25519 identity as `AGE-SECRET-KEY-1...` and its recipient `age1...`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.core.clock import Entropy
from holdfast.errors import BadInput
from holdfast.identity.records import bech32
from holdfast.identity.records.secret_bytes import Hidden

KEY_BYTES = 32
SECRET_PREFIX = "age-secret-key-"


class AgeIdentity:
    """Opens what was sealed for its recipient. Any age program takes its text."""

    __slots__ = ("_text", "recipient")

    def __init__(self, text: Hidden) -> None:
        self._text = text
        self.recipient = str(_pyrage().x25519.Identity.from_str(self.reveal()).to_public())

    @classmethod
    def from_secret(cls, secret: Hidden) -> AgeIdentity:
        raw = secret.reveal()
        if len(raw) != KEY_BYTES:
            raise BadInput(f"an X25519 key has {KEY_BYTES} bytes, not {len(raw)}")
        return cls(Hidden(bech32.encode(SECRET_PREFIX, raw, form=bech32.Form.BECH32).upper().encode()))

    @classmethod
    def from_text(cls, text: str) -> AgeIdentity:
        """Raises BadInput; the text is not shown."""
        try:
            return cls(Hidden(text.strip().encode()))
        except (ValueError, _pyrage().IdentityError):
            raise BadInput("that is no age identity") from None

    @classmethod
    def new(cls, entropy: Entropy) -> AgeIdentity:
        return cls.from_secret(Hidden(entropy.bytes(KEY_BYTES)))

    def reveal(self) -> str:
        """AGE-SECRET-KEY-1...: what `age -d -i` wants to read."""
        return self._text.reveal().decode()

    def wipe(self) -> None:
        self._text.wipe()

    def __enter__(self) -> AgeIdentity:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return f"AgeIdentity({self.recipient})"


def is_recipient(text: str) -> bool:
    try:
        _pyrage().x25519.Recipient.from_str(text)
    except _pyrage().RecipientError:
        return False
    return True


def _pyrage() -> Any:  # Any: the package has no types
    return import_module("pyrage")
