"""A whole folder takes the place of another in one act, and the old one is kept.

The kernel exchanges the two names at once (`renameat2` with RENAME_EXCHANGE), so at every instant
the name leads to the old folder or to the new one, whole. Afterwards the old one is renamed to
where it is kept. Where the exchange is missing (other kernels, some file systems) there are two
renames, and a crash between them leaves no folder under the name.

Before either, a note beside the folder says what is about to happen: where the new folder lies, which inode it is,
where the old one is to be kept. `settle`, run before every restore, reads the note that a crash has left and finishes
or undoes: if the name leads to the new inode the exchange was done, and the old folder is moved to where it is kept; if
nothing is under the name the old folder is put back; otherwise nothing had happened yet. So after a kill anywhere the
name leads to one whole folder, and the old one is never removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import glob
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import BackupDamaged, BackupFailed
from holdfast.host.private_files import disk_error, read_private, remove_durably, sync_folder, write_atomically
from holdfast.host.tree import empty, open_folder

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_MISSING = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)  # other kernels, some file systems


def exchange_names(one: Path, other: Path) -> bool:
    """At every instant each name leads to one of the two; False where that cannot be done here.
    Raises OSError where it could be, and was not: one of them is not there, or not ours."""
    call = _renameat2()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _MISSING:
        return False
    raise OSError(code, os.strerror(code), str(other))


@functools.cache
def _renameat2() -> Callable[[bytes, bytes], int] | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def call(one: bytes, other: bytes) -> int:
        return int(function(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE))

    return call


NOTE_BYTES_MAX = 64 * 1024


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    fresh: str
    inode: int
    aside: str


def swap_in(fresh: Path, home: Path, *, aside: Path) -> bool:
    """`fresh` becomes `home`; what was there lies at `aside` afterwards. Durable on return.
    All three on one file system, `aside` free. True where there was something to keep."""
    if os.path.lexists(aside):
        raise BackupFailed(f"{aside} already exists")
    note = _Note(fresh=str(fresh), inode=fresh.stat().st_ino, aside=str(aside))
    try:
        write_atomically(_note_path(home), msgspec.json.encode(note))
        kept = os.path.lexists(home)
        if kept and exchange_names(fresh, home):
            _sync(home, fresh)
            os.rename(fresh, aside)
        elif kept:
            os.rename(home, aside)
            os.rename(fresh, home)
        else:
            os.rename(fresh, home)
        _sync(home, fresh)
        remove_durably(_note_path(home))
    except OSError as error:
        raise disk_error(error, home) from error
    return kept


def folders_before(home: Path) -> list[Path]:
    """What was under this name before, as restores and moves keep it. The name may have characters of a pattern."""
    return sorted(home.parent.glob(f"{glob.escape(home.name)}.before-*"))


def settle(home: Path) -> None:
    """Finish or undo a swap that a crash has cut off. Raises BackupDamaged for a note not ours."""
    path = _note_path(home)
    try:
        raw = read_private(path, NOTE_BYTES_MAX)
    except FileNotFoundError:
        return
    try:
        note = decode_json(raw, _Note)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BackupDamaged(
            f"{path}, the note of an interrupted restore, is malformed: {error}",
            hint=f"copy the folders next to this file whose names contain {home.name} to safety. If {home.name} is "
            f"missing, rename the newest {home.name}.before-* to it. Then remove this file and run the command again",
        ) from None
    fresh, aside = Path(note.fresh), Path(note.aside)
    if not os.path.lexists(home):
        os.rename(aside if os.path.lexists(aside) else fresh, home)
    elif home.stat().st_ino == note.inode and os.path.lexists(fresh):
        os.rename(fresh, aside)
    _sync(home, aside)
    remove_durably(path)


def remove_tree(path: Path) -> None:
    """Remove a folder of ours with all it holds, also what lost its write bit."""
    with contextlib.suppress(FileNotFoundError):
        fd = open_folder(str(path))
        try:
            os.fchmod(fd, 0o700)
            empty(fd)
        finally:
            os.close(fd)
        shutil.rmtree(path, ignore_errors=True)


def _note_path(home: Path) -> Path:
    return home.with_name(f".{home.name}.swap")


def _sync(*paths: Path) -> None:
    for folder in {path.parent for path in paths}:
        if folder.exists():
            sync_folder(folder)
