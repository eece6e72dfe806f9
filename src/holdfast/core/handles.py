"""Handles: `secret://name` stands in a value where a secret is meant.

A handle may be a whole text or lie inside one (`Bearer secret://billing`). It ends at the first
character that cannot be part of a name. Only texts that are values are looked at, never the keys
of objects. What a handle stands for is nobody's business here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from holdfast.core.values import Json

SCHEME = "secret://"
NAME_CHARS_MAX = 63

_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{NAME_CHARS_MAX - 1}}}")
_HANDLE = re.compile(SCHEME + r"([A-Za-z0-9_-]+)")


def handle(name: str) -> str:
    return SCHEME + name


def is_name(text: str) -> bool:
    """Whether a secret may be called that: what a handle ends at cannot be in it."""
    return _NAME.fullmatch(text) is not None


def find_whole(value: Json) -> str | None:
    """The name, where the value is a handle and nothing else."""
    found = _HANDLE.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else found[1]


def names_in(value: Json) -> Iterator[str]:
    """Every name that a text of this value asks for."""
    if isinstance(value, str):
        if SCHEME in value:
            for found in _HANDLE.finditer(value):
                yield found[1]
    elif isinstance(value, dict):
        for item in cast("dict[str, object]", value).values():
            yield from names_in(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from names_in(item)


def resolved(value: Json, secrets: Mapping[str, str]) -> Json:
    """The value with each handle of these names replaced by its secret; other ones stay."""
    return mapped(value, lambda text: _resolved_text(text, secrets))


def mapped(value: Json, change: Callable[[str], str]) -> Json:
    """The value with every text that is a value changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        return {key: mapped(item, change) for key, item in items.items()}
    if isinstance(value, list):
        return [mapped(item, change) for item in cast("list[object]", value)]
    return value


def _resolved_text(text: str, secrets: Mapping[str, str]) -> str:
    if SCHEME not in text:
        return text
    return _HANDLE.sub(lambda found: secrets.get(found[1], found[0]), text)
