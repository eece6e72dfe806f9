"""Values from the command line: JSON itself, `@file`, or `-` for standard input."""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import Any, BinaryIO, NoReturn

from holdfast.core.values import PAYLOAD_BYTES_MAX
from holdfast.errors import BadInput, BadValue, TooLarge

# Twice what is kept: JSON may be spaced out, but reading without end must stop somewhere.
TEXT_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX


def read_text(word: str, *, what: str) -> str:
    """The text itself, or the contents of a file or of standard input without a final line break."""
    if word == "-":
        return _decoded(_read(sys.stdin.buffer, what), what)
    if not word.startswith("@"):
        return word
    path = word[1:]
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISREG(found.st_mode) and found.st_size > TEXT_BYTES_MAX:
                raise TooLarge(f"{what} has {found.st_size:,} bytes; the limit is {TEXT_BYTES_MAX:,}")
            return _decoded(_read(file, what), what)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{what}: {path!r} cannot be read: {reason}") from error


def parse_json(text: str, *, what: str) -> Any:  # Any: JSON, checked where it is used
    """The JSON value; duplicate keys, NaN and the like are rejected."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except RecursionError:
        raise BadValue(f"{what} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"{what} is not JSON: {error}", hint="put text in quotes: '\"done\"'") from None
    except ValueError as error:
        raise BadInput(
            f"{what} cannot be stored exactly: {error}", hint="give each key once, and finite numbers"
        ) from None


def read_json(word: str, *, what: str) -> Any:  # Any: JSON, checked where it is used
    return parse_json(read_text(word, what=what), what=what)


def _read(file: BinaryIO, what: str) -> bytes:
    raw = file.read(TEXT_BYTES_MAX + 1)
    if len(raw) > TEXT_BYTES_MAX:
        raise TooLarge(f"{what} has more than {TEXT_BYTES_MAX:,} bytes")
    return raw


def _decoded(raw: bytes, what: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{what} is not UTF-8 text (byte {error.start})") from None
    return text.removesuffix("\n").removesuffix("\r")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
