"""Failures of a disk in words that a person can act on.

`explained` (private_files.py) names what can be wrong with a path of ours and leaves the rest as
it is, because code of the journal acts on it. Here nothing is left: whoever reads the message gets
a path, what the system said, and what to do.
"""

from __future__ import annotations

import errno
from pathlib import Path

from holdfast.errors import DiskFailed, DiskFull, HoldfastError
from holdfast.host.private_files import explained

_FULL = (errno.ENOSPC, errno.EDQUOT)
# What a disk, a mount or a limit says, and no mistake in the code can cause.
_NAMES = "EIO EROFS EACCES EPERM EFBIG ESTALE ENODEV EREMOTEIO EUCLEAN EBADMSG ENOTCONN EHOSTDOWN ENOMEDIUM ELOOP ENXIO"
_FAILED = frozenset(code for name in _NAMES.split() if (code := getattr(errno, name, None)) is not None)


def disk_error(error: OSError, path: Path) -> HoldfastError:
    """The failure of an act below this path; the file that the system names is the better one."""
    where = _named(error) or path
    if error.errno in _FULL:
        return DiskFull(f"cannot write {where}: {error.strerror}")
    known = explained(error, where)
    if isinstance(known, HoldfastError):
        return known
    return DiskFailed(f"{where}: {error.strerror or error}")


def find_disk_error(error: OSError) -> HoldfastError | None:
    """The same where nothing is known but the error; None where it may be a defect of ours."""
    where = _named(error)
    if error.errno in _FULL:
        return DiskFull(f"cannot write {where or 'the output'}: {error.strerror}")
    if error.errno not in _FAILED:
        return None
    return disk_error(error, where or Path("a file"))


def _named(error: OSError) -> Path | None:
    name = error.filename
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    return Path(name) if isinstance(name, str) and name.startswith("/") else None
