"""Borders of storage: rows and records of a journal, and the files of its instance folder."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

import msgspec

from holdfast.core.ids import task_id_from_bytes
from holdfast.errors import HoldfastError
from holdfast.host import manifest as manifests
from holdfast.journal.chain import first_link, next_link, place
from holdfast.journal.records import TaskView, fold
from holdfast.journal.seal import DataKeySealer
from holdfast.journal.sqlite.host.disk_trouble import find_stopped
from holdfast.journal.sqlite.host.high_water import noted, stored_mark
from holdfast.journal.sqlite.host.page_reader import PAGE_BYTES, SLOT_COUNT, TAG_BYTES, DeadPage, parsed, read_dead_page
from holdfast.journal.sqlite.rows import open_record, task_row, verify_link
from holdfast.journal.sqlite.verbs.inbox import open_item
from holdfast_proofs.fuzz.borders import texts
from holdfast_proofs.fuzz.feed import Feed, as_text, law

TASK = bytes(range(16))
SESSION = "0123456789abcdef"
RECORDS_MAX = 40
_SEALER = DataKeySealer(bytes(32))


def records(raw: bytes) -> None:
    """A chain of records that opens and verifies, whatever is in it, folded into a view."""
    feed = Feed(raw)
    view = TaskView(task_id_from_bytes(TASK))
    link, seq = first_link(TASK), 0
    while feed.left and seq < RECORDS_MAX:
        row = _row(feed, link, seq)
        link = verify_link(link, row, where="fuzz")
        fold(view, open_record(row, TASK, _SEALER))
        law(view.seq == seq, "a record was not counted")
        seq += 1


def _row(feed: Feed, link: bytes, seq: int) -> tuple[object, ...]:
    kind, what, epoch = feed.byte() % 10, feed.number(2), feed.byte()
    ordinal = as_text(feed.take(feed.byte() % 8)).encode("utf-8", "replace").decode()
    slot, quiet = feed.byte() - 1, bool(feed.byte() & 1)
    body = _SEALER.seal(feed.part(), place(TASK, seq=seq, kind=kind, ordinal=ordinal, epoch=epoch))
    link = next_link(
        link,
        seq=seq,
        kind=kind,
        what=what,
        epoch=epoch,
        at_ms=seq,
        boot_ms=seq,
        slot=slot,
        quiet=quiet,
        ordinal=ordinal,
        effect_key=b"k" * 16,
        fingerprint=b"f" * 16,
        body=body,
    )
    return (seq + 1, seq, seq, kind, what, ordinal, epoch, seq, seq, b"k" * 16, b"f" * 16, slot, int(quiet), body, link)


def rows(raw: bytes) -> None:
    """Rows whose columns hold anything that SQLite can hold there."""
    feed = Feed(raw)
    row = tuple(_column(feed) for _ in range(15))
    with contextlib.suppress(HoldfastError):
        verify_link(first_link(TASK), row, where="fuzz")
    with contextlib.suppress(HoldfastError):
        open_record(row, TASK, _SEALER)
    with contextlib.suppress(HoldfastError):
        open_item(list(row[:6]), TASK, _SEALER)
    task_row(row[:12])


def _column(feed: Feed) -> object:
    match feed.byte() % 6:
        case 0:
            return None
        case 1:
            return feed.byte()
        case 2:
            return feed.number(8) - 2**63
        case 3:
            return feed.number(2) / 7
        case 4:
            return feed.text().encode("utf-8", "replace").decode()
        case _:
            return feed.part()


def inbox(raw: bytes) -> None:
    """An inbox row that opens, with any body."""
    feed = Feed(raw)
    kind = ("evidence", "decision", "approval", "cancel", "retry", feed.text())[feed.byte() % 6]
    kind = kind.encode("utf-8", "replace").decode()
    where = b"inbox\0%s\0%s\0%s" % (TASK.hex().encode(), b"1", kind.encode())
    open_item([1, "1", kind, _SEALER.seal(feed.rest(), where), 5, 0], TASK, _SEALER)


def sealed(raw: bytes) -> None:
    _SEALER.open(raw, b"place")


def page(raw: bytes) -> None:
    """A session page: damaged ones prove nothing, and none proves that nothing was sent
    unless its flag says exactly that."""
    feed = Feed(raw)
    tag, boot = feed.take(TAG_BYTES), feed.take(1)
    content = feed.rest()
    if len(content) < PAGE_BYTES and boot:
        content = content + bytes(PAGE_BYTES - len(content))
    image = parsed(content, session_id=SESSION)
    if image is None:
        return
    found = DeadPage(image=image, same_boot=image.boot_id == "boot")
    for slot in (-1, 0, 1, SLOT_COUNT - 1, SLOT_COUNT):
        found.slot(slot, tag)


@cache
def _instance() -> Path:
    made = texts.folder() / "instance" / "journal"
    (made / "sessions").mkdir(parents=True, mode=0o700)
    for one in (made, made.parent, made / "sessions"):
        one.chmod(0o700)
    return made


def instance(raw: bytes) -> None:
    """The files beside a journal: high-water mark, stamp, stop sign, a page."""
    feed, where = Feed(raw), _instance()
    name = ("high-water.json", "stamp.json", "stopped", f"sessions/{SESSION}.page")[feed.byte() % 4]
    path = where / name
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, feed.rest())
    finally:
        os.close(fd)
    try:
        for read in (stored_mark, noted, find_stopped):
            with contextlib.suppress(HoldfastError):
                read(where)
        read_dead_page(where, SESSION, boot_id="boot")
    finally:
        path.unlink()


def manifest(raw: bytes) -> None:
    """The manifest of a scratch folder: what is taken can be written below a folder."""
    found = manifests.decode(raw)
    law(manifests.encode(found) == raw, "a manifest has more than one form")
    root = "/below"
    for path in (*(file.path for file in found.files), *found.every_folder()):
        law(os.path.normpath(f"{root}/{path}") == f"{root}/{path}", "a path that is not below")
    files, folders = {file.path for file in found.files}, found.every_folder()
    law(not files & folders, "a path is a file and a folder")
    law(
        len({manifests.folded(path) for path in files | folders}) == len(files) + len(folders),
        "two paths are one to some file systems",
    )


def views(raw: bytes) -> None:
    """Bodies that are JSON objects by themselves, in the place of every kind of record."""
    feed = Feed(raw)
    kind, what = feed.byte() % 10, feed.number(2)
    try:
        body = msgspec.json.decode(feed.rest(), type=dict[str, object])
    except (ValueError, RecursionError):
        return
    opening: list[tuple[int, int, int, dict[str, object]]] = [
        (1, 0, 0, {"name": "fuzz", "request_id": ""}),
        (2, 0, 1, {"session": "s", "boot": "b", "worker": "w"}),
        (3, 0x0201, 1, {"letter": "K", "tool": "t", "args": {}}),
        (kind, what, 1 + (kind == 2), body),
    ]
    packed = b"".join(
        bytes((kind, what >> 8, what & 255, epoch, 1, ord("1"), 1, 1)) + _part(body)
        for kind, what, epoch, body in opening
    )
    records(packed)


def _part(body: dict[str, object]) -> bytes:
    raw = msgspec.json.encode(body)[:254]
    return bytes((len(raw),)) + raw
