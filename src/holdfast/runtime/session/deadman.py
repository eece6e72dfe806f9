"""The dead-man timer: the kernel kills this process at its lease deadline, whatever it does.

A worker that is stopped, swapped out or held by a debugger past its lease must not wake up and send. The timer's signal
is SIGKILL, so it needs no scheduling, no handler and no luck: a stopped process dies without running another
instruction. It counts on CLOCK_BOOTTIME, like leases do, so sleep of the machine counts too.

`arm_at` takes an absolute time on that clock, and that is the form for leases: a worker that is paused between working
out the time left and setting the timer would otherwise get the pause on top. Re-arming costs about 2 microseconds; the
earlier deadline holds until the new one is set.

The timer belongs to this process alone: fork and exec do not pass it on. Children of the worker die with it by
PR_SET_PDEATHSIG (hardening.py). Not covered: a paused virtual machine, whose clocks stop too, and bytes that are
already in the kernel.

Only `holdfast worker` uses this. macOS has no POSIX timers: `DeadMan.create` returns None there, and a stopped worker
is held off by the epoch check and the quiet rule alone.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from holdfast.host.hardening import IS_LINUX, last_error, load_libc

if TYPE_CHECKING:
    import ctypes

_CLOCK_BOOTTIME = 7
_SIGEV_SIGNAL = 0
_TIMER_ABSTIME = 1
_SIGEVENT_BYTES = 64
_NS = 1_000_000_000
_NS_PER_MS = 1_000_000


class DeadMan:
    """One armed or disarmed timer. Made by `create`."""

    __slots__ = ("_setting", "_settime", "_timer")

    def __init__(self, timer: ctypes.c_void_p, libc: ctypes.CDLL) -> None:
        import ctypes

        self._timer = timer
        self._settime = libc.timer_settime
        self._setting = (ctypes.c_long * 4)()  # struct itimerspec: interval s, ns; value s, ns

    @classmethod
    def create(cls) -> DeadMan | None:
        """A disarmed timer; None where the platform has none (not Linux, or not 64 bits)."""
        import ctypes

        # 32-bit C libraries have two layouts of time under one name; we do not guess.
        if not IS_LINUX or ctypes.sizeof(ctypes.c_long) != 8:
            return None
        libc = _timer_library()
        event = (ctypes.c_int * (_SIGEVENT_BYTES // 4))()  # struct sigevent: value, signo, notify
        event[2], event[3] = signal.SIGKILL, _SIGEV_SIGNAL
        timer = ctypes.c_void_p()
        if libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer)):
            raise last_error("timer_create")
        return cls(timer, libc)

    def arm_at(self, boot_ms: int) -> None:
        """Die when CLOCK_BOOTTIME reaches this; at once where it has passed."""
        self._set(max(boot_ms, 1) * _NS_PER_MS)

    def arm(self, seconds: float) -> None:
        """Die this long from now. See above why leases use `arm_at`."""
        now = time.clock_gettime_ns(_CLOCK_BOOTTIME)
        self._set(now + max(int(seconds * _NS), 0))

    def disarm(self) -> None:
        self._set(0)  # the kernel reads zero as "no timer"

    def _set(self, at_ns: int) -> None:
        import ctypes

        self._setting[2], self._setting[3] = divmod(at_ns, _NS)
        if self._settime(self._timer, _TIMER_ABSTIME, ctypes.byref(self._setting), None):
            raise last_error("timer_settime")


def _timer_library() -> ctypes.CDLL:
    import ctypes

    libc = load_libc()
    if hasattr(libc, "timer_create"):
        return libc
    return ctypes.CDLL("librt.so.1", use_errno=True)  # glibc before 2.34
