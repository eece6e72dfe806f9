"""The bytes of a session page, format 1. Numbers are little endian.

    offset  bytes  what
         0      8  magic "HOLDPAGE"
         8      4  format, 1
        12      4  number of slots, 992
        16      8  incarnation of the journal when the session began
        24     64  session id, padded with NUL
        88     64  boot id, padded with NUL
       152      4  CRC-32 of the bytes before
       256      8  mark: the highest record number whose commit has returned
       264      8  the mark again, XORed with a number made from the session id
       272      1  stop: 0xA5 while writes are trusted, 0x5A after a failed sync
       512  992 x 16  slots: tag (8 bytes), flag (1), unused (7)

A slot's flag is 0xA5 (clear: nothing was sent) or 0x5A (the send had begun). Any other value, also the zeros of a slot
never taken, proves nothing. Mark, stop and each slot lie inside one 512-byte sector.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvariantViolated
from holdfast.journal.admin import INCARNATION_LIMIT, SEQUENCE_LIMIT

MAGIC = b"HOLDPAGE"
FORMAT = 1
SLOT_COUNT = 992  # the page is 16 KiB; an attempt that finds no slot parks when in doubt
PAGE_BYTES = 16_384
MARK_AT = 256
STOP_AT = 272
SLOTS_AT = 512
SLOT_BYTES = 16
TAG_BYTES = 8
CLEAR = 0xA5
SET = 0x5A

SESSIONS = "sessions"
PAGE_SUFFIX = ".page"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEAD = struct.Struct("<8sIIQ64s64s")
_CRC = struct.Struct("<I")
_MARK = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageImage:
    """What a page said when it was read, after its head was found whole."""

    session_id: str
    boot_id: str
    incarnation: int
    sequence: int | None  # None: the mark is torn
    stopped: bool
    raw: bytes

    def slot(self, number: int) -> tuple[bytes, int]:
        """The tag and flag of a slot."""
        at = SLOTS_AT + number * SLOT_BYTES
        return self.raw[at : at + TAG_BYTES], self.raw[at + TAG_BYTES]


def blank(*, session_id: str, boot_id: str, incarnation: int) -> bytes:
    """A new page: mark 0, no slot taken."""
    session, boot = checked_id(session_id).encode(), boot_id.encode()
    if len(boot) > 64 or not 0 <= incarnation < INCARNATION_LIMIT:
        raise InvariantViolated("session page", f"boot id {boot_id!r}, incarnation {incarnation}")
    page = bytearray(PAGE_BYTES)
    head = _HEAD.pack(MAGIC, FORMAT, SLOT_COUNT, incarnation, session, boot)
    page[: len(head) + _CRC.size] = head + _CRC.pack(zlib.crc32(head))
    page[MARK_AT : MARK_AT + _MARK.size] = packed_mark(0, salt=mark_salt(session_id))
    page[STOP_AT] = CLEAR
    return bytes(page)


def parsed(raw: bytes, *, session_id: str) -> PageImage | None:
    """The page of that session, or None where the bytes are not a whole page of this format."""
    if len(raw) != PAGE_BYTES:
        return None
    magic, form, slots, incarnation, session, boot = _HEAD.unpack_from(raw)
    (crc,) = _CRC.unpack_from(raw, _HEAD.size)
    if magic != MAGIC or form != FORMAT or slots != SLOT_COUNT:
        return None
    if crc != zlib.crc32(raw[: _HEAD.size]) or session.rstrip(b"\0") != session_id.encode():
        return None
    sequence, check = _MARK.unpack_from(raw, MARK_AT)
    whole = sequence ^ mark_salt(session_id) == check and sequence < SEQUENCE_LIMIT
    return PageImage(
        session_id=session_id,
        boot_id=boot.rstrip(b"\0").decode("ascii", "replace"),
        incarnation=incarnation,
        sequence=sequence if whole else None,
        stopped=raw[STOP_AT] == SET,
        raw=raw,
    )


def is_foreign_format(raw: bytes) -> bool:
    """True of a page that another version of Holdfast wrote: to be left alone."""
    return raw[:8] == MAGIC and raw[8:12] != FORMAT.to_bytes(4, "little")


def packed_mark(sequence: int, *, salt: int) -> bytes:
    return _MARK.pack(sequence, sequence ^ salt)


def mark_salt(session_id: str) -> int:
    """Makes zeros, and the mark of another page, fail the check."""
    crc = zlib.crc32(session_id.encode())
    return crc << 32 | crc ^ 0xFFFF_FFFF


def checked_id(session_id: str) -> str:
    """The id, which names a file: nothing that could lead out of the folder."""
    if not _ID.fullmatch(session_id):
        raise InvariantViolated("session id", f"{session_id!r} cannot name a page")
    return session_id


def page_path(folder: Path, session_id: str) -> Path:
    """Where a session's page is in `instance/<journal id>`."""
    return folder / SESSIONS / f"{checked_id(session_id)}{PAGE_SUFFIX}"


def page_ids(folder: Path) -> Iterator[str]:
    """The ids of the sessions that have a page, dead or alive."""
    try:
        names = sorted(path.name for path in (folder / SESSIONS).iterdir())
    except FileNotFoundError:
        return
    for name in names:
        session_id = name.removesuffix(PAGE_SUFFIX)
        if name.endswith(PAGE_SUFFIX) and _ID.fullmatch(session_id):
            yield session_id
