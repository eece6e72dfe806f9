"""Where the bytes of a journal's folder lie, by what they are.

The file's pages are told apart by SQLite's own page map (dbstat) and by the layout of a b-tree
page: header, cell pointers, unused middle, cells. A byte kind has a name such as "task cells" or
"log frame header".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from holdfast.host.sqlite import open_db
from holdfast_proofs.crash.bit_flips.furnished import JOURNAL

FILE_HEADER_BYTES = 100
LOG_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
SLOTS_AT, SLOT_BYTES = 512, 16  # of a session page; docs/formats/instance.md
PAGE_HEAD_BYTES, MARK_AT, STOP_AT = 156, 256, 272
_INNER = frozenset((2, 5))  # b-tree page types with four more header bytes
_LEAVES = frozenset((10, 13))
# Set aside, locks, and SQLite's index over the log, which whoever comes first makes anew.
_PLAIN = {"reserve": "reserve", "use.lock": "lock", "fold.lock": "lock", f"{JOURNAL}-shm": "index"}


class Place(NamedTuple):
    """A stretch of bytes in a file below the journal's folder."""

    file: str
    offset: int
    length: int


def places(folder: Path) -> dict[str, list[Place]]:
    """Every byte of the folder's files, by kind; empty stretches are left out."""
    found: dict[str, list[Place]] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        for kind, offset, length in _stretches(path):
            if length > 0:
                place = Place(str(path.relative_to(folder)), offset, length)
                found.setdefault(kind, []).append(place)
    return found


def _stretches(path: Path) -> Iterator[tuple[str, int, int]]:
    size = path.stat().st_size
    if path.name == JOURNAL:
        yield from _pages(path)
    elif path.name == f"{JOURNAL}-wal":
        yield from _log(path, size)
    elif path.suffix == ".page":
        yield from _session_page(size)
    elif path.name == "reserve":
        yield "reserve", 0, min(size, 64)  # zeros: a few stand for all
    else:
        yield _PLAIN.get(path.name, path.name), 0, size


def _session_page(size: int) -> Iterator[tuple[str, int, int]]:
    yield "session page head", 0, PAGE_HEAD_BYTES
    yield "session page mark", MARK_AT, 16
    yield "session page stop", STOP_AT, 1
    yield "session page slots", SLOTS_AT, 2 * SLOT_BYTES  # the first ones are in use
    yield "session page rest", SLOTS_AT + 2 * SLOT_BYTES, size - SLOTS_AT - 2 * SLOT_BYTES


def _log(path: Path, size: int) -> Iterator[tuple[str, int, int]]:
    raw = path.read_bytes()
    page_bytes = int.from_bytes(raw[8:12], "big")
    yield "log header", 0, LOG_HEADER_BYTES
    for at in range(LOG_HEADER_BYTES, size, FRAME_HEADER_BYTES + page_bytes):
        yield "log frame header", at, FRAME_HEADER_BYTES
        yield "log payload", at + FRAME_HEADER_BYTES, page_bytes


def _pages(path: Path) -> Iterator[tuple[str, int, int]]:
    raw = path.read_bytes()
    page_bytes = int.from_bytes(raw[16:18], "big")
    names = _page_names(path)
    yield "file header", 0, FILE_HEADER_BYTES
    for number in range(1, len(raw) // page_bytes + 1):
        start = (number - 1) * page_bytes
        head = start + (FILE_HEADER_BYTES if number == 1 else 0)
        name = names.get(number, "unused")
        kind = raw[head]
        if kind not in _INNER | _LEAVES:
            yield f"{name} page", head, start + page_bytes - head
            continue
        cells = int.from_bytes(raw[head + 3 : head + 5], "big")
        content = int.from_bytes(raw[head + 5 : head + 7], "big") or 65_536
        pointers = head + (12 if kind in _INNER else 8)
        yield "b-tree header", head, pointers - head
        yield "b-tree pointers", pointers, 2 * cells
        yield "unused middle", pointers + 2 * cells, start + content - pointers - 2 * cells
        yield f"{name} cells", start + content, page_bytes - content


def _page_names(path: Path) -> dict[int, str]:
    """Which table or index each page of the file belongs to, without the log."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = open_db(f"file:{path}?immutable=1", flags=flags)
    try:
        rows = db.execute("SELECT pageno, name FROM dbstat").fetchall()
    finally:
        db.close()
    return {int(str(number)): str(name) for number, name in rows}
