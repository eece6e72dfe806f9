"""The C library, for the few calls Python does not wrap. Loaded on first use only."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

IS_LINUX = sys.platform == "linux"

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4


def load_libc() -> ctypes.CDLL:
    """The C library this interpreter runs on, glibc or musl."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Linux only: set one attribute of this process. Raises OSError."""
    import ctypes

    zero = ctypes.c_ulong(0)
    if load_libc().prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero):
        raise last_error("prctl")


def last_error(call: str) -> OSError:
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
