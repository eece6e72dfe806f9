"""Time and randomness as arguments: the ports, and the machine's own (testing/clocks.py has those of tests).

Two clocks, for two questions. The *wall clock* says when something happened, to people and to key windows; it can be
set back, so nothing here trusts it to rise. The *boot clock* says how long ago something happened on this machine:
CLOCK_BOOTTIME never jumps and counts the time a laptop sleeps, which is why leases use it and not CLOCK_MONOTONIC. A
reading of the boot clock means something only together with the boot id, which changes with every start of the machine.

On macOS CLOCK_MONOTONIC counts sleep and serves as the boot clock, and the kernel's boot session UUID as the boot id. A
paused or rolled-back virtual machine stops both clocks; no clock inside it can tell.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from holdfast.errors import BootIdMissing

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_NS_PER_MS = 1_000_000
CLOCK_TOLERANCE_MS = 5_000  # between two clocks that are both right


class Clock(Protocol):
    """Says what time it is, in whole milliseconds."""

    @property
    def boot_id(self) -> str: ...  # names this start of the machine; readings of `boot_ms` compare only under one id

    def wall_ms(self) -> int: ...  # milliseconds since 1970; may jump in either direction

    def boot_ms(self) -> int: ...  # milliseconds since the machine started, asleep or awake; never falls


class Entropy(Protocol):
    def bytes(self, count: int) -> bytes:
        """That many bytes that cannot be guessed (or, in a test, that can be repeated)."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ("_boot_clock", "boot_id")

    def __init__(self) -> None:
        self.boot_id = read_boot_id()
        self._boot_clock = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC

    def wall_ms(self) -> int:
        return time.time_ns() // _NS_PER_MS

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(self._boot_clock) // _NS_PER_MS


class SystemEntropy:
    __slots__ = ()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


def read_boot_id() -> str:
    """The id of this start of the machine. Raises BootIdMissing. Nothing can replace it: a made-up id would make a
    living session of another process look as if it had died with an earlier boot."""
    try:
        text = _BOOT_ID_FILE.read_text("ascii") if sys.platform == "linux" else _macos_boot_id()
    except (OSError, ValueError, AttributeError) as error:
        raise BootIdMissing(f"cannot read the machine's boot id: {error}") from error
    boot_id = text.strip().lower()
    if not boot_id:
        raise BootIdMissing("the machine's boot id is empty")
    return boot_id


def _macos_boot_id() -> str:
    # kern.boottime moves whenever the wall clock is set, so it cannot name a boot.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(buffer))
    if libc.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0):
        raise OSError(ctypes.get_errno(), "sysctl kern.bootsessionuuid")
    return buffer.value.decode("ascii")


LAST_MS = 253_402_300_799_000  # the last second of the year 9999: a datetime has none later


def iso(at_ms: int) -> str:
    """A moment for programs: ISO 8601 in UTC; empty where there is none. Other agents choose some: a later one
    than can be written is shown as the last one that can."""
    if at_ms <= 0:
        return ""
    return datetime.fromtimestamp(min(at_ms, LAST_MS) / 1000, UTC).isoformat(timespec="milliseconds")
