"""The lines of the memory files: how an entry of ours is written, and what is read of any line.

An entry is one line with a mark at its end, which no text can forge: what would look like a mark
is written otherwise. The mark has the entry's id, so that an entry is known again wherever it
stands and however its text was edited, and its origin, so that nobody takes a model's or a tool's
word for the user's. Pure: values in, values out.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

MARK = "<!-- hf "
ID_CHARS = 16
FILE_ORIGIN = "file"  # of a line without a mark
_MARKED = re.compile(
    r"(?P<text>.*?) ?<!-- hf (?P<id>[0-9a-f]{16}) "
    r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (?P<origin>[^<>]{1,300}) -->\s*",
    re.ASCII,
)
_ITEM = re.compile(r"\s*[-*+] +")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d +")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is read of a line; `id` is empty for a line that is not ours."""

    text: str  # without bullet, time and mark
    id: str = ""
    day: str = ""
    origin: str = FILE_ORIGIN


def entry_id(remark_id: str) -> str:
    """The id of the entry that this remark becomes."""
    digest = hashlib.sha256(b"holdfast/entry/1\0" + remark_id.encode()).hexdigest()
    return digest[:ID_CHARS]


def rendered(*, id: str, at_ms: int, text: str, origin: str, timed: bool) -> str:
    """The entry's line, without its end. `timed`: of a day's file, where the time leads."""
    at = moment(at_ms)
    clock = f"{at:%H:%M:%S} " if timed else ""
    said = re.sub(r"[<>]+", " ", one_line(origin)).strip()
    return f"- {clock}{one_line(text)} {MARK}{id} {at:%Y-%m-%dT%H:%M:%SZ} {said} -->"


def one_line(text: str) -> str:
    """Text that is one line and looks like no mark."""
    return " ".join(text.split()).replace("<!--", "&lt;!--").replace("-->", "--&gt;")


def read(line: str) -> Line:
    """What a line says, whoever wrote it."""
    if MARK in line and (found := _MARKED.fullmatch(line)) is not None:
        text = _CLOCK.sub("", _ITEM.sub("", found["text"], count=1), count=1)
        return Line(text=text.strip(), id=found["id"], day=found["at"][:10], origin=found["origin"].strip())
    return Line(text=_ITEM.sub("", line, count=1).strip())


def key_of(line: str) -> str:
    """By what a line is known again: an entry by its id, any other by what it says."""
    if MARK in line and (found := _MARKED.fullmatch(line)) is not None:
        return found["id"]
    return f"={line}"


def is_entry_key(key: str) -> bool:
    return not key.startswith("=")


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
