"""Reading the pages of other sessions: who is alive, and what a dead one had begun to send.

A page is evidence, and only NOT_BEGUN is evidence that lets an Unrepeatable step run again, so
everything here leans the other way. NOT_BEGUN needs all of:

* the lock is free: the session and the children it gave the lock to are gone, so nothing can
  still set the flag;
* the page was made in this boot of the machine: after power loss it may hold any mixture of what
  was once written to it, and a flag that was set may read as clear;
* a sync of the file succeeds: a failed write-back, whose page the kernel then forgets, would
  show the older contents in the same boot, and the sync is where the kernel reports it;
* the head is whole, the slot's tag is that of the attempt, and the flag is exactly the clear one.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.host.private_files import open_private, sync
from holdfast.journal.sqlite.host.page_layout import CLEAR, PAGE_BYTES, SET, SLOT_COUNT, PageImage, page_path, parsed


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
        return NotBegun() if self.same_boot else Unreadable("the machine was restarted since")


def read_slot(folder: Path, session_id: str, slot: int, tag: bytes, *, boot_id: str) -> Begun | NotBegun | Unreadable:
    """Whether that attempt of a dead session had begun to send. Blocks for one sync."""
    page = read_dead_page(folder, session_id, boot_id=boot_id)
    return page if isinstance(page, Unreadable) else page.slot(slot, tag)


def read_dead_page(folder: Path, session_id: str, *, boot_id: str) -> DeadPage | Unreadable:
    """The whole page of a dead session, for resumers of many tasks. Blocks for one sync."""
    try:
        fd = open_private(page_path(folder, session_id), os.O_RDONLY)
    except FileNotFoundError:
        return Unreadable("the session has no page")
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


def _is_locked(fd: int) -> bool:
    """Whether a process holds the page's exclusive lock. Those who ask share: they never see each other."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    # Unlocked by hand: a fork in another thread may have copied the descriptor.
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
