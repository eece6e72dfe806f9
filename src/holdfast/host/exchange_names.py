"""Two names exchange what they lead to, in one act of the kernel."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_MISSING = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)  # other kernels, some file systems


def exchange_names(one: Path, other: Path) -> bool:
    """At every instant each name leads to one of the two; False where that cannot be done here.

    Raises OSError where it could be, and was not: one of them is not there, or not ours.
    """
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
