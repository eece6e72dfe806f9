"""Bodies as HTML forms send them, with nested fields as `outer[inner]`; order is the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlencode

from holdfast.errors import Misuse


def encoded(fields: Mapping[str, Any]) -> bytes:  # Any: JSON values
    """The bytes of the form. Raises Misuse."""
    try:
        return urlencode(list(_pairs(fields))).encode("ascii")
    except UnicodeEncodeError:
        raise Misuse("a field with a lone surrogate: it cannot be sent") from None


def _pairs(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        yield from _of(f"{prefix}[{name}]" if prefix else name, value)


def _of(name: str, value: object) -> Iterator[tuple[str, str]]:
    match value:
        case None:
            return
        case bool():
            yield name, "true" if value else "false"
        case int() | str():
            yield name, str(value)
        case dict():
            yield from _pairs(cast("dict[str, Any]", value), name)
        case list():
            for number, item in enumerate(cast("list[object]", value)):
                yield from _of(f"{name}[{number}]", item)
        case _:
            raise Misuse(f"{name}: {type(value).__name__} cannot be a field of a form")
