"""What a worker and its children do to themselves first: no dumps, no wide files, no orphans.

Only for processes that are ours from start to end (`holdfast worker`, the children of blocking
tools). A library user's own process is never changed.
"""

from __future__ import annotations

import os
import resource
import signal

from holdfast.host.libc import IS_LINUX, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl


def harden() -> list[str]:
    """Files 0600 by default, no core dumps, no reading of our memory by other processes.

    Returns what this platform lacks, in words for `holdfast doctor`; empty on Linux.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not IS_LINUX:
        return ["processes of the same user can read this one's memory (no PR_SET_DUMPABLE)"]
    prctl(PR_SET_DUMPABLE, 0)
    return []


def die_with_parent(parent_pid: int) -> list[str]:
    """Be killed by the kernel when the parent dies; end at once if it is dead already.

    "Parent" means the thread that started this process: a parent starts children from a thread
    that lives as long as they may. Returns what this platform lacks; empty on Linux.
    """
    missing: list[str] = []
    if IS_LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        missing.append("children outlive a killed worker until they next read from it")
    # The parent may have died before the line above: then this process was handed to another.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
    return missing
