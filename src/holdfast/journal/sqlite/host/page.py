"""The session page: one small file that outlives its process by exactly what it knew.

A session (one worker process) makes `instance/<journal id>/sessions/<session id>.page` when it
begins and holds an exclusive lock on it until it ends. Three things hang on this file:

* **The lock proves death.** flock belongs to the open file, so the kernel releases it when the
  last descriptor is closed: those of the process and of the children that were given it. A process
  that then gets the lock knows that this session cannot send any more. The file gets its name
  only after the lock is held, so it is never seen unlocked while its maker lives.
* **The slots say what had begun.** `take_slot` (tag written, flag cleared) comes before the
  commit of the start record that names the slot; `mark_begun` comes before the first byte is
  handed to the kernel; `free_slot` comes after the step is closed or its doubt is recorded.
  Killed between any two: a start record exists and its flag is clear only if nothing was sent.
  `mark_left` comes before something starts that may outlive the session and still send.
* **The mark says how far the journal was.** `raise_mark` comes after the commit has returned, so
  the mark is never ahead of the durable journal (high_water.py).

Writes go through the page cache, as a shared mapping's would, so kill -9 keeps every one of them and power loss keeps
any mixture; what may be concluded afterwards is decided in page_reader.py. They are made with pwrite and not through a
mapping: it costs a microsecond more, and on a full copy-on-write disk or one remounted read-only it fails with an error
that can be handled, where a store into a mapping would kill the process with SIGBUS. No session writes another's page.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from holdfast.errors import InvariantViolated, LocksMissing
from holdfast.host.private_files import (
    FILE_MODE,
    TEMPORARY_SUFFIX,
    ensure_private_folder,
    explained,
    sync,
    sync_folder,
    write_all,
)
from holdfast.journal.sqlite.host import page_reader as pages
from holdfast.journal.sqlite.host.high_water import fold_marks

_CLEARED = bytes((pages.CLEAR, pages.CLEAR))
_SET = bytes((pages.SET,))
_SLOTS_AT, _SLOT_BYTES = pages.SLOTS_AT, pages.SLOT_BYTES
_FLAGS_AT = _SLOTS_AT + pages.TAG_BYTES


class SessionPage:
    """This process's own page. Made by `create`, given up by `close`."""

    __slots__ = ("_fd", "_folder", "_free", "_salt", "_taken", "mark", "session_id")

    def __init__(self, folder: Path, session_id: str, fd: int) -> None:
        self.session_id = session_id
        self.mark = 0
        self._folder = folder
        self._fd = fd
        self._salt = pages.mark_salt(session_id)
        self._free = list(range(pages.SLOT_COUNT - 1, -1, -1))
        self._taken: set[int] = set()

    @classmethod
    def create(cls, folder: Path, session_id: str, *, boot_id: str, incarnation: int) -> SessionPage:
        """Make and lock the page of a new session in `instance/<journal id>`. Blocks to sync.

        Raises:
            FileExistsError: a session of that id has or had a page.
            LocksMissing: the file system keeps no locks.
            ReadOnly, JournalFull, ModeTooWide, WrongOwner, SymlinkRefused: the place is unfit.
        """
        ensure_private_folder(folder)
        ensure_private_folder(folder / pages.SESSIONS)
        page = pages.blank(session_id=session_id, boot_id=boot_id, incarnation=incarnation)
        path = pages.page_path(folder, session_id)
        temporary = path.with_name(f".{session_id}.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")
        try:
            fd = _locked_file(temporary, page)
        except OSError as error:
            raise explained(error, temporary) from error
        try:
            os.link(temporary, path)
            os.unlink(temporary)
            sync_folder(path.parent)
        except BaseException:  # also a cancel: no file or lock is left
            temporary.unlink(missing_ok=True)
            os.close(fd)
            raise
        return cls(folder, session_id, fd)

    @property
    def lock_fd(self) -> int:
        """The descriptor whose lock proves this session alive; give it to children (pass_fds)."""
        return self._fd

    def raise_mark(self, sequence: int) -> bool:
        """Note that the commit of this record number has returned. Never lowers the mark. False where the page could
        not be written: the commit is valid, only the guard against older copies lags."""
        if sequence <= self.mark:
            return True
        if sequence >= pages.SEQUENCE_LIMIT:
            raise InvariantViolated("high water", f"record number {sequence} is out of range")
        try:
            os.pwrite(self._fd, pages.packed_mark(sequence, salt=self._salt), pages.MARK_AT)
        except OSError:
            return False
        self.mark = sequence
        return True

    def take_slot(self, tag: bytes) -> int | None:
        """A slot with this tag and a clear flag; None where all are taken or it cannot be written.
        Call it before the start record that names the slot is committed."""
        if len(tag) != pages.TAG_BYTES:
            raise InvariantViolated("slot tag", f"{len(tag)} bytes instead of {pages.TAG_BYTES}")
        if not self._free:
            return None
        slot = self._free[-1]
        try:
            # One write: a reader finds the old tag or the new one with its flag, never a mixture.
            os.pwrite(self._fd, tag + _CLEARED, _SLOTS_AT + slot * _SLOT_BYTES)
        except OSError:
            return None
        self._free.pop()
        self._taken.add(slot)
        return slot

    def mark_begun(self, slot: int) -> None:
        """Note that a byte may leave from now on. Nothing may be sent if this raises."""
        if slot not in self._taken:
            self._check_taken(slot)
        try:
            os.pwrite(self._fd, _SET, _FLAGS_AT + slot * _SLOT_BYTES)
        except OSError as error:
            raise explained(error, pages.page_path(self._folder, self.session_id)) from error

    def left_at(self, slot: int) -> int:
        """Where in this file the byte is that says what `mark_left` says."""
        self._check_taken(slot)
        return _slot_at(slot) + pages.LEFT_AT

    def mark_left(self, slot: int) -> None:
        """Note that something of this attempt may still send when the session has ended."""
        if self._fd >= 0:
            os.pwrite(self._fd, _SET, self.left_at(slot))

    def is_left(self, slot: int) -> bool:
        return self._fd >= 0 and os.pread(self._fd, 1, self.left_at(slot)) == _SET

    def free_slot(self, slot: int) -> None:
        """Give the slot back once the attempt's outcome, or its doubt, is durable."""
        if slot not in self._taken:
            self._check_taken(slot)
        self._taken.remove(slot)
        self._free.append(slot)

    def mark_stopped(self) -> bool:
        """Note that a sync of the journal failed; False where even this cannot be written."""
        try:
            os.pwrite(self._fd, _SET, pages.STOP_AT)
        except OSError:
            return False
        return True

    def close(self, *, delete: bool, at_ms: int = 0) -> None:
        """Release the lock: to others this session is dead. Safe to repeat. With `delete` the mark is folded and the
        page removed at once; without it, or where another process is folding, the page stays for the next sweep. Keep
        the page while any of its slots is named by an open step. The lock lives on in children that still run."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        os.close(fd)
        if delete:
            others = [one for one in pages.page_ids(self._folder) if one != self.session_id]
            fold_marks(self._folder, others, at_ms=at_ms)

    def _check_taken(self, slot: int) -> None:
        if slot not in self._taken:
            raise InvariantViolated("slot", f"slot {slot} of {self.session_id} is not taken")


def _slot_at(slot: int) -> int:
    return pages.SLOTS_AT + slot * pages.SLOT_BYTES


def _locked_file(path: Path, page: bytes) -> int:
    """A new file with these bytes, locked and synced."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, FILE_MODE)
    try:
        _lock(fd, path)
        write_all(fd, page)
        sync(fd)
    except BaseException:  # also a cancel: no file or lock is left
        path.unlink(missing_ok=True)
        os.close(fd)
        raise
    return fd


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise LocksMissing(f"cannot lock {path}: {error.strerror}") from error
        raise
