"""instance/restored.json: that this folder was restored, and from which snapshots it may be.

Written into a restored folder before it takes its place, so that a recovery which was cut short
after that knows what is there and goes on, instead of restoring again.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.host.private_files import ensure_private_folder, open_private, write_atomically

NAME = "restored.json"
BYTES_MAX = 64 * 1024
FORMAT = 1


class RestoredMark(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    heads: tuple[str, ...]  # digests: the newest that were known then
    restored_ms: int
    incarnation: int | None


def write_mark(instance: Path, mark: RestoredMark) -> None:
    ensure_private_folder(instance)
    write_atomically(instance / NAME, msgspec.json.encode(mark) + b"\n")


def find_mark(instance: Path) -> RestoredMark | None:
    """None where the folder was never restored, or the file cannot be read."""
    try:
        fd = open_private(instance / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        raw = file.read(BYTES_MAX)
    try:
        found = msgspec.json.decode(raw, type=RestoredMark)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if found.format == FORMAT else None
