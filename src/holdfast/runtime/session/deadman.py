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

A worker that serves many agents has many leases and one process. One agent that cannot renew its lease must not cost
the others theirs, so each has a share of the timer (`DeadManShare`): while the event loop runs, an agent is told to
give up shortly before its deadline, and its share is over; only if the loop does not get to it, the kernel kills the
process, at the earliest deadline of all.

Only `holdfast worker` uses this. macOS has no POSIX timers: `DeadMan.create` returns None there, and a stopped worker
is held off by the epoch check and the quiet rule alone.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from holdfast.core.clock import Clock
from holdfast.host.hardening import IS_LINUX, last_error, load_libc

if TYPE_CHECKING:
    import ctypes

_CLOCK_BOOTTIME = 7
_SIGEV_SIGNAL = 0
_TIMER_ABSTIME = 1
_SIGEVENT_BYTES = 64
_NS = 1_000_000_000
_NS_PER_MS = 1_000_000
GIVE_UP_MS = 250  # for one turn of a busy event loop, and far less than a lease


class Timer(Protocol):
    """What an engine sets to the end of its lease."""

    def arm_at(self, boot_ms: int) -> None: ...
    def arm(self, seconds: float) -> None: ...
    def disarm(self) -> None: ...


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


class SharedDeadMan:
    """One timer for the leases of many agents: it is set to the earliest deadline."""

    def __init__(self, timer: DeadMan | None, clock: Clock) -> None:
        self._timer = timer
        self.clock = clock
        self._deadlines: dict[DeadManShare, int] = {}
        self._set_to = 0

    def keep(self, share: DeadManShare, boot_ms: int) -> None:
        """The share's deadline; 0: it has none."""
        self._deadlines[share] = boot_ms
        if not boot_ms:
            del self._deadlines[share]
        earliest = min(self._deadlines.values(), default=0)
        if self._timer is not None and earliest != self._set_to:
            self._set_to = earliest
            if earliest:
                self._timer.arm_at(earliest)
            else:
                self._timer.disarm()


class DeadManShare:
    """One agent's share; `give_up` is called on the event loop, GIVE_UP_MS before the deadline at most."""

    def __init__(self, shared: SharedDeadMan, give_up: Callable[[], None]) -> None:
        self._shared = shared
        self._give_up = give_up
        self._warning: asyncio.TimerHandle | None = None

    def arm_at(self, boot_ms: int) -> None:
        self._keep(boot_ms)
        left_ms = max(boot_ms - self._shared.clock.boot_ms(), 0)
        wait_ms = left_ms - min(GIVE_UP_MS, left_ms // 8)
        self._warning = asyncio.get_running_loop().call_later(wait_ms / 1000, self._over)

    def arm(self, seconds: float) -> None:
        self.arm_at(self._shared.clock.boot_ms() + int(seconds * 1000))

    def disarm(self) -> None:
        self._keep(0)

    def _over(self) -> None:
        self._give_up()
        self._keep(0)

    def _keep(self, boot_ms: int) -> None:
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None
        self._shared.keep(self, boot_ms)


def _timer_library() -> ctypes.CDLL:
    import ctypes

    libc = load_libc()
    if hasattr(libc, "timer_create"):
        return libc
    return ctypes.CDLL("librt.so.1", use_errno=True)  # glibc before 2.34
