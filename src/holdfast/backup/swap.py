"""A whole folder takes the place of another in one act, and the old one is kept.

The kernel exchanges the two names at once (`renameat2` with RENAME_EXCHANGE), so at every instant
the name leads to the old folder or to the new one, whole. Afterwards the old one is renamed to
where it is kept. A crash between the two leaves the old folder under the name the new one had,
beside; `find_left` finds it.

Where the exchange is missing (other kernels, some file systems) there are two renames, and a crash
between them leaves no folder under the name. `settle`, run before every restore, then puts the old
one back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path

from holdfast.core.private_files import explained, sync_folder
from holdfast.core.tree import open_folder
from holdfast.core.tree_io import empty
from holdfast.errors import BackupFailed

_EXCHANGE = 2
_AT_FDCWD = -100
_MISSING = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def swap_in(fresh: Path, home: Path, *, aside: Path) -> bool:
    """`fresh` becomes `home`; what was there lies at `aside` afterwards. Durable on return.

    All three on one file system, `aside` free. True where there was something to keep.
    """
    if os.path.lexists(aside):
        raise BackupFailed(f"{aside} is there already")
    try:
        if not os.path.lexists(home):
            os.rename(fresh, home)
            _sync(home, fresh)
            return False
        if exchange(fresh, home):
            _sync(home, fresh)
            os.rename(fresh, aside)
        else:
            os.rename(home, aside)
            os.rename(fresh, home)
        _sync(home, aside, fresh)
    except OSError as error:
        raise explained(error, home) from error
    return True


def exchange(one: Path, other: Path) -> bool:
    """Exchange what the two names lead to, at once; False where that cannot be done here."""
    call = getattr(_LIBC, "renameat2", None)
    if call is None or not sys.platform.startswith("linux"):
        return False
    done = call(
        ctypes.c_int(_AT_FDCWD), ctypes.c_char_p(os.fsencode(one)), ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(other)), ctypes.c_uint(_EXCHANGE),
    )  # fmt: skip
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in _MISSING:
        return False
    raise OSError(code, os.strerror(code), str(other))


def settle(home: Path, *, aside_of: str) -> Path | None:
    """Put the newest folder that was kept back, if a crash has left none under the name."""
    if os.path.lexists(home):
        return None
    kept = sorted(home.parent.glob(f"{aside_of}*"))
    if not kept:
        return None
    os.rename(kept[-1], home)
    sync_folder(home.parent)
    return kept[-1]


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


def _sync(*paths: Path) -> None:
    for folder in {path.parent for path in paths}:
        sync_folder(folder)


_LIBC = ctypes.CDLL(None, use_errno=True)
