"""Secret bytes that are never shown and can be wiped.

Wiping is as good as Python allows: what we hold ourselves is overwritten; copies that a library
or the interpreter made on the way (immutable bytes, text) live until their memory is used again.
That is why secrets are opened late, for short, and in processes that leave no core dumps.
"""

from __future__ import annotations

import hmac
from typing import NoReturn


class Hidden:
    """Bytes that no repr, error or pickle gives away."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes | bytearray) -> None:
        self._raw = bytearray(raw)

    def reveal(self) -> bytes:
        """A copy of the bytes, for the one call that needs them. Raises ValueError once wiped."""
        if not self._raw:
            raise ValueError("this secret was wiped")
        return bytes(self._raw)

    def wipe(self) -> None:
        """Overwrite what is held. Safe to repeat."""
        wipe(self._raw)
        self._raw.clear()

    def __enter__(self) -> Hidden:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hidden):
            return NotImplemented
        return hmac.compare_digest(self._raw, other._raw)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Hidden(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")


def wipe(raw: bytearray) -> None:
    for at in range(len(raw)):
        raw[at] = 0
