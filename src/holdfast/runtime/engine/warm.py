"""A worker from a warm parent: forked where its code is loaded, instead of started from nothing.

Loading the code takes most of a worker's start, and a worker that was killed should resume its
tasks at once. The supervising parent has the code loaded, runs none of it, and has one thread, no
journal, no keys and no event loop; so a fork of it is what a fresh start would be, only sooner.

The code on the disk may have changed since (an upgrade in place). Half of a program from before
and half from after must never run together, so a parent whose files have changed starts workers
from nothing again. macOS cannot fork without exec safely: there it is always so.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from holdfast.host.hardening import die_with_parent

PACKAGE = "holdfast"
EXIT_DEFECT = 1


class Warm:
    """What a worker runs, with its code loaded."""

    def __init__(self, run: Callable[[], int]) -> None:
        self._run = run
        self._stamps = _stamps()

    def is_fresh(self) -> bool:
        """Whether a fork would run what is on the disk."""
        return sys.platform == "linux" and self._stamps == _stamps(self._stamps)

    def fork(self, *, signals: Sequence[signal.Signals], close: Sequence[int]) -> int:
        """Start a worker; its process id. It never returns to the caller's code."""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = EXIT_DEFECT
        try:
            signal.set_wakeup_fd(-1)
            for number in signals:
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(parent)
            os.setpgid(0, 0)
            for descriptor in close:
                os.close(descriptor)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            code = self._run()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _stamps(known: dict[str, tuple[int, int]] | None = None) -> dict[str, tuple[int, int]]:
    """Size and time of the files of our own modules that are loaded."""
    paths = known or {
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == PACKAGE and getattr(module, "__file__", None)
    }
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (-1, -1)
    return (found.st_size, found.st_mtime_ns)
