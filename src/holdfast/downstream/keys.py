"""The idempotency key table of a far end, after draft-ietf-httpapi-idempotency-key-header.

A key is in one of three conditions: unknown, in flight (its first request has not been answered
yet) or answered. It is known from its first request on, for `window_s` seconds. The answer is
stored when the work is done and before it is sent, so a reply lost on the way is not lost here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

KEY_CHARS_MAX = 255
Fingerprint = Literal["checked", "ignored"]
Stored = TypeVar("Stored")

# Printable ASCII without space, quote, comma and backslash: one form, nothing to escape.
_KEY = re.compile(r"[\x21\x23-\x2b\x2d-\x5b\x5d-\x7e]+", re.ASCII)


class BadKey(Exception):
    """The header is not a key; the text says why."""


def parse_key(values: list[str]) -> str | None:
    """The key, or None where there is no header; bare and quoted forms are the same key. Raises BadKey: empty, too
    long, repeated, or with other characters."""
    if not values:
        return None
    if len(values) > 1:
        raise BadKey("Idempotency-Key is given more than once")
    text = values[0].strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if not text or len(text) > KEY_CHARS_MAX:
        raise BadKey(f"Idempotency-Key must have 1 to {KEY_CHARS_MAX} characters")
    if not _KEY.fullmatch(text):
        raise BadKey("Idempotency-Key must be printable ASCII without spaces, double quotes, commas and backslashes")
    return text


@dataclass(slots=True, kw_only=True)
class KeyEntry(Generic[Stored]):
    """One use of a key, held by the request that does the work."""

    key: str
    fingerprint: str
    first_s: float
    answer: Stored | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Generic[Stored]):
    """The work was done before; this is its answer."""

    answer: Stored


class InFlight:
    """The first request with this key has not been answered yet."""


class Reused:
    """The key is known with another body."""


class KeyTable(Generic[Stored]):
    def __init__(self, *, window_s: float, fingerprint: Fingerprint) -> None:
        self._window_s = window_s
        self._checked = fingerprint == "checked"
        self._entries: dict[str, KeyEntry[Stored]] = {}

    def begin(
        self, key: str, *, fingerprint: str, now_s: float
    ) -> KeyEntry[Stored] | Replay[Stored] | InFlight | Reused:
        """Take the key for this request, or say what became of the one that has it. The caller ends a KeyEntry with
        `finish` or `forget`."""
        entry = self._entries.get(key)
        if entry is None or (entry.answer is not None and now_s >= entry.first_s + self._window_s):
            entry = KeyEntry[Stored](key=key, fingerprint=fingerprint, first_s=now_s)
            self._entries[key] = entry
            return entry
        if self._checked and entry.fingerprint != fingerprint:
            return Reused()
        return InFlight() if entry.answer is None else Replay(answer=entry.answer)

    def finish(self, entry: KeyEntry[Stored], answer: Stored) -> None:
        entry.answer = answer

    def forget(self, entry: KeyEntry[Stored]) -> None:
        """The work was not done and its answer is not kept: the key is free again."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
