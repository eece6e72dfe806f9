"""Putting a new version of a file in its place without overwriting what an editor saves meanwhile.

A plain rename replaces whatever has the name at that instant: a version that an editor saved
after we had read the file is lost, and no check before the rename can help. So the two files change
names, in one act of the kernel (`renameat2` with RENAME_EXCHANGE), and what comes out is looked at:
it is the version we had read, or an editor's save, which is then merged too.

An editor that writes in place may still have the displaced file open, and write into it after the
exchange. The kernel knows: it grants no read lease on a file while a process has it open for writing.
So nothing is read as whole, and no displaced file is removed, while a writer has it; where that
lasts, the file stays aside and is looked at again by the next pass.

The order of writes: the new version whole and synced in the folder of asides; beside it the note of
the caller, which says what this version is; the exchange; both folders synced; the displaced version
read; and only when the caller has its lines safely in place, the aside is removed. The name of an
aside has the hash of what we put into it, or of what was merged from it: a crash at any instant
leaves a file that says by itself whether it holds anything that is not taken yet (`is_taken`), and
whether the version of a note is in its place (`is_placed`).

A file that is there keeps its mode and group, because its editor may be another user or a member of
a group; a new one is 0600. They are given to the new version before the exchange, and once more to
what has the name afterwards, by what came out: an editor's save may have brought others. A crash
between the two leaves those from before that save. Owners are not changed: a file of another user
is rejected. Access lists and other attributes are not carried over.

Where the kernel or the file system has no exchange (macOS, some network file systems), the old file
is linked aside first and then replaced, after one more look that it still has the name: a save in
the instant between that look and the rename would be lost.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import SymlinkRefused, TooLarge, WrongKind, WrongOwner
from holdfast.host.folder_swap import exchange_names
from holdfast.host.private_files import FILE_MODE, explained, sync, sync_folder, take_mode, write_all

FILE_BYTES_MAX = 8 * 1024 * 1024
QUIET_WAIT_S = 1.0  # a program that saves has the file open for an instant
QUIET_LOOK_S = 0.003
EXCHANGE_TRIES = 100  # a name that comes and goes
HASH_CHARS = 16
NEW, LEFT, OLD, NOTE = ".new", ".left", ".old", ".json"
_F_SETLEASE, _F_SETSIG = 1024, 10


def read_quiet(path: Path) -> bytes | None:
    """The file's bytes, read while no process has it open for writing; None where there is none.
    A writer that keeps it open for longer than an instant is read beside. Raises SymlinkRefused, WrongKind, WrongOwner,
    TooLarge, ReadOnly."""
    until = time.monotonic() + QUIET_WAIT_S
    while True:
        try:
            fd = _open(path)
        except FileNotFoundError:
            return None
        try:
            quiet = _lease(fd)
            found = _read_all(fd, path)
            if quiet or time.monotonic() >= until:
                return found
        finally:
            os.close(fd)  # gives the lease back
        time.sleep(QUIET_LOOK_S)


def exchange(path: Path, data: bytes, *, asides: Path, note: Callable[[str], bytes] | None = None) -> Path | None:
    """Give the file this content; what it was before is at the path that is returned.
    None where there was no file. On return the new version is durable in its place. `note`: what is kept beside the
    aside of this name (`note_of`), durable before the exchange; the caller removes it."""
    aside = write_aside(path, data, asides=asides)
    try:
        if note is not None:
            _write_new(note_of(aside), note(aside.name))
            sync_folder(asides)
        ours = os.open(aside, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            displaced = _swap(path, aside, ours)
            before = os.lstat(aside) if displaced else None
            if before is not None and stat.S_ISREG(before.st_mode):
                take_mode(ours, before)
        finally:
            os.close(ours)
        sync_folder(path.parent)
        sync_folder(asides)
    except OSError as error:
        raise explained(error, path) from error
    return aside if displaced else None


def write_aside(path: Path, data: bytes, *, asides: Path) -> Path:
    aside = asides / f"{path.name}.{os.urandom(4).hex()}.{hash_of(data)}{NEW}"
    try:
        _write_new(aside, data)
    except OSError as error:
        raise explained(error, path) from error
    return aside


def _write_new(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, FILE_MODE)
    try:
        write_all(fd, data)
        sync(fd)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def note_of(aside: Path) -> Path:
    return aside.with_name(f"{aside.name}{NOTE}")


def put_down(aside: Path, taken: bytes) -> bool:
    """Done with a displaced file whose content was taken; False where it may still change.
    Then it stays, under a name that says what was taken of it."""
    fd = _open(aside)
    try:
        if _lease(fd) and _read_all(fd, aside) == taken:
            aside.unlink()
            return True
    finally:
        os.close(fd)
    stem = aside.name.rsplit(".", 2)[0]
    os.replace(aside, aside.with_name(f"{stem}.{hash_of(taken)}{LEFT}"))
    return False


def left_asides(path: Path, asides: Path) -> list[Path]:
    """What was put aside for this file, also by passes that died."""
    return _found(path, asides, (NEW, LEFT, OLD))


def left_notes(path: Path, asides: Path) -> list[tuple[Path, Path]]:
    """The notes of exchanges that no pass has ended, and the aside of each."""
    return [(one, one.with_name(one.name.removesuffix(NOTE))) for one in _found(path, asides, NOTE)]


def _found(path: Path, asides: Path, ends: str | tuple[str, ...]) -> list[Path]:
    try:
        found = sorted(asides.iterdir())
    except FileNotFoundError:
        return []
    return [one for one in found if one.name.startswith(f"{path.name}.") and one.name.endswith(ends)]


def is_taken(aside: Path, content: bytes) -> bool:
    """Whether it holds nothing but what was ours, or was merged already."""
    return aside.name.rsplit(".", 2)[1] == hash_of(content)


def is_placed(aside: Path, path: Path) -> bool:
    """Whether what was written to this aside has got its place: something else came out, or the file still has it."""
    came, ours = read_quiet(aside), aside.name.rsplit(".", 2)[1]
    return (came is not None and hash_of(came) != ours) or hash_of(read_quiet(path) or b"") == ours


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:HASH_CHARS]


def _swap(path: Path, aside: Path, ours: int) -> bool:
    """Whether there was a file to be displaced; it has the other name then. `ours`: the aside."""
    for _ in range(EXCHANGE_TRIES):
        try:
            found = os.lstat(path)
            _check_file(path, found)
            take_mode(ours, found)
            if exchange_names(aside, path) or _replace_linked(path, aside):
                return True
        except FileNotFoundError:
            try:
                os.link(aside, path, follow_symlinks=False)
            except FileExistsError:
                continue  # another process made it meanwhile: that one is displaced instead
            aside.unlink()
            return False
    raise OSError(errno.EBUSY, "the file is created and removed again and again", str(path))


def _replace_linked(path: Path, aside: Path) -> bool:
    """The way without an exchange; False where the name has moved on and it must begin again."""
    kept = aside.with_name(f"{aside.name}{OLD}")
    os.link(path, kept, follow_symlinks=False)
    try:
        if not os.path.samestat(os.lstat(path), os.lstat(kept)):
            return False
        os.replace(aside, path)
        os.replace(kept, aside)
        return True
    finally:
        kept.unlink(missing_ok=True)


def _open(path: Path) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explained(error, path) from error
    try:
        _check_file(path, os.fstat(fd))
    except BaseException:  # whatever it was: the caller gets no descriptor to close
        os.close(fd)
        raise
    return fd


def _check_file(path: Path, found: os.stat_result) -> None:
    """Refuse what is no plain file of ours. Its mode is the editor's: the folder is private."""
    if stat.S_ISLNK(found.st_mode):
        raise SymlinkRefused(f"{path} is a symbolic link")
    if not stat.S_ISREG(found.st_mode):
        raise WrongKind(f"{path} is not a file")
    if found.st_uid != os.geteuid():
        raise WrongOwner(f"{path} belongs to user {found.st_uid}, but Holdfast runs as user {os.geteuid()}")
    if found.st_size > FILE_BYTES_MAX:
        raise TooLarge(f"{path} has {found.st_size:,} bytes; at most {FILE_BYTES_MAX:,} are allowed in a memory file")


def _lease(fd: int) -> bool:
    """Whether no process has the file open for writing; none can open it so until it is closed."""
    if sys.platform != "linux":
        return _rests(fd)
    try:
        # Who opens it now makes the kernel tell us: by a signal that does nothing.
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_RDLCK)
        return True
    except OSError as error:
        return _rests(fd) if error.errno != errno.EAGAIN else False


def _rests(fd: int) -> bool:
    """Where there are no leases: it does not change for an instant."""
    before = os.fstat(fd)
    time.sleep(QUIET_LOOK_S * 3)
    after = os.fstat(fd)
    return (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)


def _read_all(fd: int, path: Path) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := os.read(fd, 1 << 20):
        parts.append(part)
        size += len(part)
        if size > FILE_BYTES_MAX:
            raise TooLarge(f"{path} has more than {FILE_BYTES_MAX:,} bytes")
    return b"".join(parts)
