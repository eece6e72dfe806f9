"""Reading the fields of a record: every one is known, present, of its kind and within its limit.

A record class says once, for each of its fields, how it is read (`of`); reading (`read_fields`) and writing
(`fields_json`) follow from that table. A field with a default may be absent, and is then not written either.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import MISSING
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast, dataclass_transform

from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import INT_MAX, Json
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, parse_agent_id, parse_digest, parse_key

LIST_MAX = 8  # keys, commitments, witnesses, relays: more is no safer and slower to judge
TEXT_CHARS_MAX = 256

T = TypeVar("T")
VERSION = 1


class Fields:
    """The fields of one object, each taken once; `end` refuses those that no one took."""

    __slots__ = ("_left", "what")

    def __init__(self, value: Json, what: str) -> None:
        if type(value) is not dict:
            raise BadRecord(f"{what}: it must be a JSON object")
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
            raise self.bad(name, f"it must be a text of 1 to {chars_max} characters")
        if form and not re.fullmatch(form, value, re.ASCII):
            raise self.bad(name, "it is not in the required form")
        return value

    def whole(self, name: str, *, least: int = 0, most: int = INT_MAX) -> int:
        value = self.any(name)
        if type(value) is not int or not least <= value <= most:
            raise self.bad(name, f"it must be a whole number from {least} to {most}")
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
            raise self.bad(name, "an id must be in lower case")
        return read

    def key(self, name: str) -> PublicKey:
        return self._read(name, parse_key, self.any(name))

    def keys(self, name: str) -> tuple[PublicKey, ...]:
        return self.distinct(name, parse_key)

    def digests(self, name: str) -> tuple[Digest, ...]:
        return self.distinct(name, parse_digest)

    def inner(self, name: str) -> Fields:
        return Fields(self.any(name), f"{self.what}: {name}")

    def members(self, name: str, *, least: int = 1, most: int = LIST_MAX) -> list[Json]:
        value = self.any(name)
        if type(value) is not list:
            raise self.bad(name, "it must be a list")
        items = cast("list[Json]", value)
        if not least <= len(items) <= most:
            raise self.bad(name, f"it has {len(items)} members, not {least} to {most}")
        return items

    def distinct(self, name: str, read: Callable[[str], T]) -> tuple[T, ...]:
        found = tuple(self._read(name, read, item) for item in self.members(name))
        if len(set(found)) != len(found):
            raise self.bad(name, "it has the same member twice")
        return found

    def _read(self, name: str, read: Callable[[str], T], value: Json) -> T:
        if type(value) is not str:
            raise self.bad(name, "it must be a text")
        try:
            return read(value)
        except BadRecord as error:
            raise self.bad(name, error.message) from None


Reader = Callable[[Fields, str], T]


Writer = Callable[[Any], Json]
Within = tuple[str, str] | None  # the object that holds a field, and the field's name there


def of(read: Reader[Any], write: Writer | None = None, *, default: Any = MISSING, within: Within = None) -> Any:
    """A field that is read and written so. Any: the field's own annotation says what it holds."""
    return dataclasses.field(default=default, metadata={"how": _How(read, write or _plain, within)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(of,))
def record(cls: type[T]) -> type[T]:
    """A record: its fields are the table by which it is read and written."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


class Body:
    """A record that is signed by itself; `KIND` is its `t`."""

    __slots__ = ()
    KIND = ""

    def to_json(self) -> Json:
        return {"v": VERSION, "t": self.KIND, **fields_json(self)}


def read_fields(cls: type[T], fields: Fields) -> T:
    """The record in these fields. Fields that the record does not have are left to `end`."""
    values: dict[str, Any] = {}
    inner: dict[str, Fields] = {}
    for name, how, optional in _table(cls):
        if how.within is not None:
            holder, inside = how.within
            inner[holder] = inner.get(holder) or fields.inner(holder)
            values[name] = how.read(inner[holder], inside)
        elif not optional or name in fields:
            values[name] = how.read(fields, name)
    for one in inner.values():
        one.end()
    return cls(**values)


def fields_json(value: object) -> dict[str, Json]:
    """The fields of a record as JSON; those that have their default are left out."""
    found: dict[str, Any] = {}
    for name, how, optional in _table(type(value)):
        item = getattr(value, name)
        if how.within is not None:
            found.setdefault(how.within[0], {})[how.within[1]] = how.write(item)
        elif not optional or item:
            found[name] = how.write(item)
    return found


def whole(*, least: int = 0, most: int = INT_MAX) -> Reader[int]:
    return lambda fields, name: fields.whole(name, least=least, most=most)


def text(*, chars_max: int = TEXT_CHARS_MAX, form: str = "") -> Reader[str]:
    return lambda fields, name: fields.text(name, chars_max=chars_max, form=form)


def choice(kinds: Callable[[str], T]) -> Reader[T]:
    return lambda fields, name: fields.choice(name, kinds)


def inner(cls: type[T]) -> Reader[T]:
    """One record inside another."""
    return lambda fields, name: _read_all(cls, fields.inner(name))


def several(cls: type[T]) -> Reader[tuple[T, ...]]:
    return lambda fields, name: tuple(
        _read_all(cls, Fields(item, f"{fields.what}: {name}")) for item in fields.members(name, least=0)
    )


def texts(form: str, *, most: int = LIST_MAX) -> Reader[tuple[str, ...]]:
    """A list of different texts, maybe empty."""

    def read(fields: Fields, name: str) -> tuple[str, ...]:
        items = fields.members(name, least=0, most=most)
        found = tuple(Fields({name: item}, fields.what).text(name, form=form) for item in items)
        if len(set(found)) != len(found):
            raise fields.bad(name, "it has the same member twice")
        return found

    return read


class _How(NamedTuple):
    read: Reader[Any]
    write: Writer
    within: Within


@cache
def _table(cls: type) -> tuple[tuple[str, _How, bool], ...]:
    return tuple((one.name, one.metadata["how"], one.default is not MISSING) for one in dataclasses.fields(cls))


def _read_all(cls: type[T], fields: Fields) -> T:
    found = read_fields(cls, fields)
    fields.end()
    return found


def _plain(value: Any) -> Json:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(one) for one in cast("tuple[Any, ...]", value)]
    return fields_json(value) if dataclasses.is_dataclass(value) else value
