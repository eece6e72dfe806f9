"""Reads what a model wrote as the arguments of a tool call.

Models write malformed JSON now and then. That is an outcome, not an accident: the text is kept, the
call carries a plain error, nobody guesses. A key given twice is such an error too: of two amounts
neither may be taken for the meant one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn, cast

from holdfast.core import values
from holdfast.errors import BadValue

ARGUMENTS_BYTES_MAX = 1024 * 1024
KEPT_CHARS_MAX = 2_000  # of arguments that are too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the model wrote, and either what it means or what is wrong with it."""

    text: str
    value: dict[str, object] | None
    error: str


def parse_arguments(text: str) -> Arguments:
    """Parse the text; never raises. No text at all means no arguments."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > ARGUMENTS_BYTES_MAX:
        error = f"the arguments have {size:,} bytes; the limit is {ARGUMENTS_BYTES_MAX:,}"
        return Arguments(text=_sendable(text[:KEPT_CHARS_MAX]), value=None, error=error)
    try:
        kept = values.checked(_LOADS(text if text.strip() else "{}"), what="arguments")
    except (ValueError, RecursionError, BadValue) as error:
        return Arguments(text=_sendable(text), value=None, error=f"not JSON we can keep: {error}")
    if not isinstance(kept, dict):
        return Arguments(text=text, value=None, error="the arguments are not a JSON object")
    return Arguments(text=text, value=cast("dict[str, object]", kept), error="")


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {twice!r} is given twice")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_LOADS = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant).decode
