"""The logs of the days, `memory/YYYY-MM-DD.md`: which there are, and what they say.

A day's file only grows: an entry has an id, so the join of two copies is the set of their
entries, and foreign lines stay where they are. A last line without an end is a torn tail: somebody
died while writing it. It is read like every other line, and told. Pure, but for the list of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.memory.entries import Line, moment, read
from holdfast.memory.lines import split

_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A file's lines as they are read, numbered from 1."""

    lines: tuple[tuple[int, Line], ...]
    torn: bool


def day_of(at_ms: int, *, back: int = 0) -> str:
    """The day, UTC; `back` days before."""
    return f"{moment(at_ms) - timedelta(days=back):%Y-%m-%d}"


def check_day(text: str) -> str:
    if not _DAY.fullmatch(text):
        raise BadInput(f"{text!r} is not a day", hint="days are written 2026-11-15")
    return text


def heading(day: str) -> list[str]:
    """The first lines of a new day's file."""
    return [f"# {day}", ""]


def parsed(text: str, *, day: str = "") -> Log:
    """What a file says: lines that say nothing and headings left out."""
    lines, torn = split(text)
    found: list[tuple[int, Line]] = []
    for number, line in enumerate(lines, start=1):
        one = read(line)
        if one.text and not one.text.startswith("#"):
            found.append((number, one if one.day else Line(text=one.text, id=one.id, day=day, origin=one.origin)))
    return Log(lines=tuple(found), torn=torn)


def day_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Day and path of each log, the newest first."""
    try:
        names = sorted((path.name for path in folder.iterdir()), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.endswith(".md") and _DAY.fullmatch(name[:-3]):
            yield name[:-3], folder / name
