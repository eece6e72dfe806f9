"""Ordinals: a step's place in its task, as a path.

`4` is the fourth step; `4.2.1` the first step of the second branch of the gather at 4; `4.r1` a
retry slot, opened only where the far end stores refusals; `4.c1` a compensation; `@charge-1` a
slot that foreign code named in a scope. Compared component by component.
"""

from __future__ import annotations

import re

from holdfast.errors import BadReference, Misuse

ORDINAL_CHARS_MAX = 200
_COMPONENT = r"(?:[1-9][0-9]{0,8}|[rc][1-9][0-9]{0,3})"
_ORDINAL = re.compile(rf"(?:[1-9][0-9]{{0,8}}|@[A-Za-z0-9_-]{{1,64}})(?:\.{_COMPONENT})*")
_SLOT = re.compile(r"[A-Za-z0-9_-]{1,64}")

Key = tuple[tuple[int, int, str], ...]


def parse_ordinal(text: str) -> str:
    if len(text) > ORDINAL_CHARS_MAX or not _ORDINAL.fullmatch(text):
        raise BadReference(f"{text!r} is not an ordinal")
    return text


def slot_ordinal(slot: str) -> str:
    if not _SLOT.fullmatch(slot):
        raise Misuse(
            f"slot {slot!r}: use 1 to 64 letters, digits, '-' or '_'",
            hint="use fixed names: the same call must use the same slot after a restart",
        )
    return f"@{slot}"


def sort_key(ordinal: str) -> Key:
    return tuple(_component_key(part) for part in ordinal.split("."))


def base(ordinal: str) -> str:
    """The step of this slot: `4` for `4.r1`. "Once" is counted per base ordinal."""
    head, dot, last = ordinal.rpartition(".")
    return head if dot and last.startswith("r") else ordinal


def retry_slot(ordinal: str, number: int) -> str:
    return f"{base(ordinal)}.r{number}"


def compensation(ordinal: str, number: int) -> str:
    return f"{base(ordinal)}.c{number}"


def parent(ordinal: str) -> str:
    """The step that a compensation undoes: `4` for `4.c1`."""
    return ordinal.rpartition(".")[0]


def _component_key(part: str) -> tuple[int, int, str]:
    if part.startswith("@"):
        return (3, 0, part)
    if part.startswith("r"):
        return (1, int(part[1:]), "")
    if part.startswith("c"):
        return (2, int(part[1:]), "")
    return (0, int(part), "")
