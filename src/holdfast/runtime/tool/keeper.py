"""The keeper of a tool's process: it ends only when every process that the tool started has ended.

A tool's process may start others, and those may leave its group, its session and its parent. Killed or not, none of
them may send after the quiet time has begun. So on Linux the process that the worker starts runs no tool. It forks the
tool's process and keeps watch:

    worker ── keeper (holds the session's lock) ── first process ── tool's process ── whatever it starts

* The keeper ends on a signal. The worker sends it to end a call, and the kernel sends it when the worker dies. It then
  ends everything below it, waits until all of it has ended, and ends itself. Only that releases the session's lock, so
  whoever finds the lock free knows that nothing of the attempt runs.
* Where the kernel allows it (CAP_SYS_ADMIN), the first process is the first of a PID namespace. It runs no tool either:
  it only reaps. When it ends, the kernel kills the whole namespace, and it dies with the keeper. So nothing survives
  even where worker and keeper are killed at once.
* Where it is refused, there is no first process, and the keeper is a subreaper: what loses its parent becomes its
  child. It kills its children until it has none.

What is left: no namespace (or no Linux, and so no keeper), and the keeper was killed too. Then a process that the tool
started may live on. For that case the tool's process sets a byte in the session's page before it starts its first one
(an audit hook: a library that forks in C code is not seen), and clears it when it gives its word; a keeper that has
ended everything clears it too. Whoever takes over the step and finds the byte set parks it: nobody knows when that
process ends (core/resume.py).
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from holdfast.host.hardening import (
    IS_LINUX,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    kill_children,
    prctl,
    unshare_pids,
)

END = signal.SIGUSR1  # to the keeper: end everything below, then yourself
STARTS_A_PROCESS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"))
MAY_LIVE_ON, ENDED = b"\x5a", b"\xa5"  # the byte in the page
SIGNAL_EXIT = 128  # exit codes above this name the signal that ended the tool's process


@dataclass(slots=True)
class Kept:
    """What the tool's process knows of its keeper."""

    enclosed: bool  # the kernel ends every process that the tool starts
    lock_fd: int | None
    noted: mmap.mmap  # shared with the keeper: where the byte is that was set, or zero
    at: int | None = None  # where the byte of this call is

    def before_start(self) -> None:
        """The tool is about to start a process: make that durable first. Raises OSError: then it does not start."""
        if not self.enclosed and self.lock_fd is not None and self.at is not None:
            self.noted[:] = self.at.to_bytes(8)
            os.pwrite(self.lock_fd, MAY_LIVE_ON, self.at)

    def gave_its_word(self) -> None:
        """The tool said what came of the call: what it left running is no matter of this call."""
        self.at = None
        _clear(self.noted, self.lock_fd)


def start_kept(parent: int, lock_fd: int | None, tell: Callable[[bool, int], None]) -> Kept:
    """Fork the tool's process and return in it; the caller's process becomes the keeper and does not return. `tell` is
    called before anything of a tool can run, with: whether a namespace encloses it, and the number of its first
    process."""
    noted = mmap.mmap(-1, 8)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() if IS_LINUX else ())
    if IS_LINUX:
        prctl(PR_SET_PDEATHSIG, END)
    if os.getppid() != parent:
        os._exit(0)  # the worker died before the line above
    if not IS_LINUX:
        tell(False, 0)
        return Kept(False, lock_fd, noted)
    enclosed = unshare_pids()
    if not enclosed:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair()
    first = os.fork()
    if first:
        theirs.close()
        with suppress(OSError):  # the worker or the first process is dead: both are noticed below
            if ours.recv(1):
                tell(enclosed, first)
                ours.sendall(b"g")
        _keep(first, enclosed, noted, lock_fd)
    ours.close()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Asked and answered after the line above: the keeper was alive then, so its death is noticed. In a namespace
    # getppid would be 0 in any case.
    theirs.sendall(b"r")
    if not theirs.recv(1):
        os._exit(0)
    theirs.close()
    os.setsid()  # a tool that signals its own group must not meet the keeper
    if enclosed and (tool := os.fork()):
        _reap(tool)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Kept(enclosed, lock_fd, noted)


def _keep(first: int, enclosed: bool, noted: mmap.mmap, lock_fd: int | None) -> NoReturn:
    """Wait for the order to end, or for the end of the tool's process; end all; end."""
    code: int | None = None
    while code is None and signal.sigwait((END, signal.SIGCHLD)) == signal.SIGCHLD:
        code = _reaped(first, os.WNOHANG)
    if enclosed and code is None:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)  # returns when the whole namespace has ended
    elif not enclosed:
        kill_children()
    _clear(noted, lock_fd)
    os._exit(SIGNAL_EXIT + signal.SIGKILL if code is None else code)


def _reap(tool: int) -> NoReturn:
    """The first process of a namespace: every orphan in it becomes its child."""
    while (code := _reaped(tool, 0)) is None:
        continue
    os._exit(code)


def _reaped(pid: int, how: int) -> int | None:
    """Reap what has ended; the exit code of that process, once it is among them."""
    while True:
        ended, status = os.waitpid(-1, how)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return SIGNAL_EXIT - code if code < 0 else code
        if not ended or not how:
            return None


def _clear(noted: mmap.mmap, lock_fd: int | None) -> None:
    at = int.from_bytes(noted[:])
    if at and lock_fd is not None:
        os.pwrite(lock_fd, ENDED, at)
        noted[:] = bytes(8)
