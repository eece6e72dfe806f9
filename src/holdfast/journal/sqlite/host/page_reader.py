"""Session pages: their bytes (format 1), who is alive, and what a dead session had begun to send.

Numbers are little endian.

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
       512  992 x 16  slots: tag (8 bytes), flag (1), left (1), unused (6)

A slot's flag is 0xA5 (clear: nothing was sent) or 0x5A (the send had begun). Any other value, also the zeros of a slot
never taken, proves nothing. Left is 0x5A where something that the attempt started may outlive the session and still
send (a process, a thread of a process that goes on); any other value says nothing. Mark, stop and each slot are inside
one 512-byte sector.

A page is evidence, and only NOT_BEGUN lets an Unrepeatable step run again, so every doubt counts as begun. NOT_BEGUN
needs all of:

* the lock is free: the session and the children it gave the lock to are dead, so nothing can still set the flag;
* the page was made in this boot of the machine: after power loss it may hold any mixture of what was once written to
  it, and a flag that was set may read as clear;
* a sync of the file succeeds: a failed write-back, whose page the kernel then forgets, would show the older contents in
  the same boot, and the sync is where the kernel reports it;
* the head is whole, the slot's tag is that of the attempt, and the flag is exactly the clear one.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError, InvariantViolated
from holdfast.host.private_files import open_private, sync
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
LEFT_AT = TAG_BYTES + 1  # in a slot
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


@dataclass(frozen=True, slots=True)
class Begun:
    """The attempt may have handed a byte to the kernel."""


@dataclass(frozen=True, slots=True)
class NotBegun:
    """Proof that nothing of the attempt was sent, nor ever will be."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The page proves nothing: treat the attempt as begun."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPage:
    """The last word of a dead session, read once for all its attempts."""

    image: PageImage
    same_boot: bool

    def is_left(self, slot: int, tag: bytes) -> bool:
        """Whether something of that attempt may have outlived the session and still send. Nothing outlives a restart of
        the machine."""
        is_there = self.same_boot and 0 <= slot < SLOT_COUNT and self.image.slot(slot)[0] == tag
        return is_there and self.image.raw[SLOTS_AT + slot * SLOT_BYTES + LEFT_AT] == SET

    def slot(self, slot: int, tag: bytes) -> Begun | NotBegun | Unreadable:
        if not 0 <= slot < SLOT_COUNT:
            return Unreadable(f"there is no slot {slot}")
        found, flag = self.image.slot(slot)
        if found != tag:
            return Unreadable("the slot belongs to another attempt")
        if flag == SET:
            return Begun()
        if flag != CLEAR:
            return Unreadable("the slot's flag is damaged")
        return NotBegun() if self.same_boot else Unreadable("the machine was restarted after the attempt")


def read_dead_page(folder: Path, session_id: str, *, boot_id: str) -> DeadPage | Unreadable:
    """The whole page of a dead session, for resumers of many tasks. Blocks for one sync."""
    try:
        fd = open_private(page_path(folder, session_id), os.O_RDONLY)
    except FileNotFoundError:
        return Unreadable("the session has no flag page")
    except HoldfastError as error:
        return Unreadable(error.message)
    try:
        if _is_locked(fd):
            return Unreadable("the session is alive")
        sync(fd)
        image = parsed(os.pread(fd, PAGE_BYTES + 1, 0), session_id=session_id)
    except OSError as error:
        return Unreadable(f"the page cannot be read: {error.strerror}")
    finally:
        os.close(fd)
    if image is None:
        return Unreadable("the page is damaged")
    return DeadPage(image=image, same_boot=image.boot_id == boot_id)


def is_alive(folder: Path, session_id: str) -> bool:
    """True while the session's process, or a child that shares its lock, is there. No page: not alive. A page that may
    not be opened counts as alive, because nothing is proven; the lease then decides."""
    try:
        fd = open_private(page_path(folder, session_id), os.O_RDONLY)
    except FileNotFoundError:
        return False
    except HoldfastError:
        return True
    try:
        return _is_locked(fd)
    finally:
        os.close(fd)


def read_bytes(folder: Path, session_id: str) -> bytes:
    """What the page holds just now, alive or not; empty where it cannot be opened."""
    try:
        fd = open_private(page_path(folder, session_id), os.O_RDONLY)
    except (FileNotFoundError, HoldfastError):
        return b""
    try:
        return os.pread(fd, PAGE_BYTES + 1, 0)
    finally:
        os.close(fd)


def is_done(folder: Path, session_id: str) -> bool:
    """Dead, not of another version of Holdfast (left alone), and not the only witness of a failed sync."""
    if is_alive(folder, session_id):
        return False
    raw = read_bytes(folder, session_id)
    image, is_foreign = parsed(raw, session_id=session_id), raw[8:12] != FORMAT.to_bytes(4, "little")
    return not (raw[:8] == MAGIC and is_foreign) and not (image and image.stopped)


def _is_locked(fd: int) -> bool:
    """Whether a process holds the page's exclusive lock. Those who ask share: they never see each other."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    # Unlocked by hand: a fork in another thread may have copied the descriptor.
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
