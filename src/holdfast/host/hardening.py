"""What a worker and its children do to themselves first: no dumps, no wide files, no orphans.

Only for processes that are ours from start to end (`holdfast worker`, the children of blocking
tools). A library user's own process is never changed.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes


def harden() -> list[str]:
    """Files 0600 by default, no core dumps, no reading of our memory by other processes.
    Returns what this platform lacks, in words for `holdfast doctor`; empty on Linux."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not IS_LINUX:
        return ["processes of the same user can read this one's memory (no PR_SET_DUMPABLE)"]
    prctl(PR_SET_DUMPABLE, 0)
    return []


def die_with_parent(parent_pid: int) -> list[str]:
    """Be killed by the kernel when the parent dies; end at once if it is dead already.
    "Parent" means the thread that started this process: a parent starts children from a thread
    that lives as long as they may. Returns what this platform lacks; empty on Linux."""
    missing: list[str] = []
    if IS_LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        missing.append("children outlive a killed worker until they next read from it")
    # The parent may have died before the line above: then this process was handed to another.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
    return missing


IS_LINUX = sys.platform == "linux"

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
_M_TRIM_THRESHOLD = -1
TRIM_BYTES = 128 * 1024  # as it is in a process that has just begun
_CLONE_NEWPID = 0x20000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def unshare_pids() -> bool:
    """Linux: let the next child of this process be the first of a PID namespace of its own: when that child ends, the
    kernel kills every process in it. False where the kernel refuses: it takes CAP_SYS_ADMIN. (A user namespace would
    get it without, but in one of those `sudo` and other set-uid programs no longer work.)"""
    return not load_libc().unshare(_CLONE_NEWPID)


def unshare_network() -> None:
    """Linux: move this process into a network of its own, with nothing in it. Without rights this takes a user
    namespace, in which the user stays who it was. Raises OSError where the kernel refuses."""
    user, group = os.geteuid(), os.getegid()
    if not IS_LINUX or load_libc().unshare(_CLONE_NEWNET | (_CLONE_NEWUSER if user else 0)):
        raise last_error("unshare")
    if user:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)


def own_children() -> list[int] | None:
    """The processes whose parent this one is, also those that have ended and wait to be reaped; None where this
    platform cannot list them."""
    pids: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as listed:
                pids += map(int, listed.read().split())
    except OSError:
        return None
    return pids


def kill_children() -> None:
    """Kill and reap every child of this process, and every process that it inherits by that, until none is left."""
    with suppress(ChildProcessError):
        while True:
            for pid in own_children() or ():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def load_libc() -> ctypes.CDLL:
    """The C library this interpreter runs on, glibc or musl."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def tame_collector() -> None:
    """For a process that serves: what is loaded by now stays, and the garbage collector need not walk it again. It
    looks less often than by itself, because the work makes many short-lived objects and few cycles: a task that has
    ended is one, and so is a closed connection. But its pauses must stay short: everything waits meanwhile."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 100)


def give_back_memory() -> None:
    """Give memory that is free to the system, where the C library keeps it (glibc)."""
    with suppress(AttributeError):
        load_libc().malloc_trim(0)


def give_back_early() -> None:
    """The same from now on whenever much is freed: else the C library keeps ever more, and `give_back_memory` does not
    reach the free end of what a thread has. For a process that hardly does anything: it costs calls to the system."""
    with suppress(AttributeError):
        load_libc().mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)


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
