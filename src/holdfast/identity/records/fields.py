"""Reading the fields of a record: every one is known, present, of its kind and within its limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar, cast

from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import INT_MAX, Json
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, key_bytes, parse_agent_id, parse_digest

LIST_MAX = 8  # keys, commitments, witnesses, relays: more is no safer and slower to judge
TEXT_CHARS_MAX = 256

T = TypeVar("T")


class Fields:
    """The fields of one object, each taken once; `end` refuses those that nobody took."""

    __slots__ = ("_left", "what")

    def __init__(self, value: Json, what: str) -> None:
        if type(value) is not dict:
            raise BadRecord(f"{what}: not an object")
        self._left = dict(cast("dict[str, Json]", value))
        self.what = what

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def any(self, name: str) -> Json:
        try:
            return self._left.pop(name)
        except KeyError:
            raise BadRecord(f"{self.what}: lacks {name!r}") from None

    def end(self) -> None:
        if self._left:
            raise BadRecord(f"{self.what}: unknown field {min(self._left)!r}")

    def bad(self, name: str, why: str) -> BadRecord:
        return BadRecord(f"{self.what}: {name}: {why}")

    def text(self, name: str, *, chars_max: int = TEXT_CHARS_MAX, form: str = "") -> str:
        value = self.any(name)
        if type(value) is not str or not 0 < len(value) <= chars_max:
            raise self.bad(name, f"not a text of 1 to {chars_max} characters")
        if form and not re.fullmatch(form, value, re.ASCII):
            raise self.bad(name, "not written as it must be")
        return value

    def whole(self, name: str, *, least: int = 0, most: int = INT_MAX) -> int:
        value = self.any(name)
        if type(value) is not int or not least <= value <= most:
            raise self.bad(name, f"not a whole number from {least} to {most}")
        return value

    def choice(self, name: str, kinds: Callable[[str], T]) -> T:
        value = self.text(name)
        try:
            return kinds(value)
        except ValueError:
            raise self.bad(name, f"{value!r} is not one of the known values") from None

    def digest(self, name: str) -> Digest:
        return self._read(name, parse_digest, self.any(name))

    def id(self, name: str = "id") -> AgentId:
        found = self.any(name)
        read = self._read(name, parse_agent_id, found)
        if read != found:
            raise self.bad(name, "an id is written in lower case")
        return read

    def key(self, name: str) -> PublicKey:
        return self._read(name, _key, self.any(name))

    def keys(self, name: str) -> tuple[PublicKey, ...]:
        return self.distinct(name, _key)

    def digests(self, name: str) -> tuple[Digest, ...]:
        return self.distinct(name, parse_digest)

    def inner(self, name: str) -> Fields:
        return Fields(self.any(name), f"{self.what}: {name}")

    def members(self, name: str, *, least: int = 1, most: int = LIST_MAX) -> list[Json]:
        value = self.any(name)
        if type(value) is not list:
            raise self.bad(name, "not a list")
        items = cast("list[Json]", value)
        if not least <= len(items) <= most:
            raise self.bad(name, f"has {len(items)} members, not {least} to {most}")
        return items

    def distinct(self, name: str, read: Callable[[str], T]) -> tuple[T, ...]:
        found = tuple(self._read(name, read, item) for item in self.members(name))
        if len(set(found)) != len(found):
            raise self.bad(name, "one member stands there twice")
        return found

    def _read(self, name: str, read: Callable[[str], T], value: Json) -> T:
        if type(value) is not str:
            raise self.bad(name, "not a text")
        try:
            return read(value)
        except BadRecord as error:
            raise self.bad(name, error.message) from None


def _key(text: str) -> PublicKey:
    key_bytes(text)
    return PublicKey(text)
