"""Takes values from the front of fuzzed bytes; what is missing is zero or empty.

Not atheris's own provider: the other engines have none, and a finding must mean the same to all.
"""

from __future__ import annotations


class Feed:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._raw) - self._at

    def take(self, count: int) -> bytes:
        part = self._raw[self._at : self._at + count]
        self._at += len(part)
        return part

    def byte(self) -> int:
        return self.number(1)

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def part(self) -> bytes:
        """Bytes that say their own length in front, one byte; 255 takes all that is left."""
        count = self.byte()
        return self.rest() if count == 255 else self.take(count)

    def text(self) -> str:
        return as_text(self.part())

    def rest(self) -> bytes:
        return self.take(self.left)


def as_text(raw: bytes) -> str:
    """Any text a program could be given: also with lone surrogates, as arguments arrive."""
    return raw.decode("utf-8", "surrogateescape")


class Broken(AssertionError):
    """A law of the target does not hold for this input."""


def law(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)
