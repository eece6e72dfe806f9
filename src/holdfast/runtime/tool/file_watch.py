"""Which files the Python code of tools writes outside of what Holdfast keeps (`[surfaces] watch = true`).

An audit hook sees each open, rename, link and mkdir of Python code in this process, and notes it if a tool's call is
under way in that context; a context variable names the tool, and is handed on to threads and pools. A blocking tool's
own process has a hook too. Each path is written once per process to `written.jsonl` in the agent's folder, in one
append, so nothing is lost with the process. Not seen: programs that a tool starts, and C code that opens files itself.

Nothing of this is installed unless it is asked for: without it a call passes no line of this file. The hook never
raises, and never opens a file.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.thread import _worker as _pool_thread  # pyright: ignore[reportPrivateUsage]
from contextlib import suppress
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.host.private_files import read_private, write_atomically

FILE = "written.jsonl"
NOTED_MAX = 1_000  # paths that one process notes
KEPT_MAX = 1_000  # that are kept when a worker starts
COMPACT_BYTES = 256 * 1024
FILE_BYTES_MAX = 16 << 20
PATH_CHARS_MAX = 4_096
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED = getattr(os, "O_TMPFILE", 0)
_SECOND = frozenset(("os.rename", "os.link", "os.symlink"))  # what is written is their second argument
_NO_FILES, _FILES_IN_MEMORY = ("/dev/", "/proc/", "/sys/"), "/dev/shm/"  # noqa: S108 - only compared
_EVENTS = _SECOND | {"open", "os.mkdir", "os.truncate", "sqlite3.connect"}


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A path, and the tool whose code wrote it."""

    path: str
    tool: str
    at_ms: int
    host: str  # the name of the machine


class FileWatch:
    """Notes for one agent what its tools write. `kept`: folders that need no note."""

    def __init__(self, file: Path, *, kept: Iterable[str | Path]) -> None:
        self.file = file
        self.kept = tuple(f"{os.path.abspath(one)}/" for one in kept)
        self._noted: set[tuple[str, str]] = set()
        self._host = os.uname().nodename
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(file, flags, 0o600)
        _install()

    def of(self, tool: str) -> _Watched:
        """While this block runs, what its context writes is this tool's."""
        return _Watched((self, tool))

    def note(self, event: str, args: Sequence[object], tool: str) -> None:
        path = written_path(event, args)
        if not path or path.startswith(self.kept) or "/__pycache__/" in path:
            return
        if path.startswith(_NO_FILES) and not path.startswith(_FILES_IN_MEMORY):
            return
        if (tool, path) in self._noted or len(self._noted) >= NOTED_MAX:
            return
        self._noted.add((tool, path))
        line = WrittenFile(path=path, tool=tool, at_ms=time.time_ns() // 1_000_000, host=self._host)
        os.write(self._fd, msgspec.json.encode(line) + b"\n")


class _Watched:
    __slots__ = ("_now", "_token")

    def __init__(self, now: tuple[FileWatch, str]) -> None:
        self._now = now

    def __enter__(self) -> None:
        self._token = _current.set(self._now)

    def __exit__(self, *_error: object) -> None:
        _current.reset(self._token)


_current: ContextVar[tuple[FileWatch, str] | None] = ContextVar("holdfast_file_watch", default=None)
_alone: list[tuple[FileWatch, str]] = []  # of a process that serves one call at a time
_installed = False


def watch_alone(watch: FileWatch, tool: str) -> None:
    """Whatever this process writes from now on is this tool's: it serves one call at a time."""
    _alone[:] = [(watch, tool)]


def written_path(event: str, args: Sequence[object]) -> str:
    """The absolute path that this event of an audit hook writes; empty where it writes none that has a name."""
    if event == "open":
        flags = args[2] if isinstance(args[2], int) else 0
        if not flags & _WRITES or (_UNNAMED and flags & _UNNAMED == _UNNAMED):
            return ""
    given = args[1] if event in _SECOND else args[0]
    if not isinstance(given, (str, bytes, os.PathLike)):
        return ""  # a descriptor: it was opened by name before
    path = os.fsdecode(given)  # pyright: ignore[reportUnknownArgumentType] - a path of any kind
    if not path or path.startswith(":") or len(path) > PATH_CHARS_MAX:
        return ""
    return os.path.abspath(path) + ("/" if event == "os.mkdir" else "")


def _audit(event: str, args: tuple[Any, ...]) -> None:  # Any: whatever the event has
    if event in _EVENTS:
        now = _current.get() or (_alone[0] if _alone else None)
        if now is not None:
            with suppress(Exception):  # what the tool does goes on, whatever we make of it
                now[0].note(event, args, now[1])


def _install() -> None:
    global _installed  # noqa: PLW0603 - once per process; an audit hook cannot be taken out
    if not _installed:
        _installed = True
        _carry_context()
        sys.addaudithook(_audit)


def _carry_context() -> None:
    """Threads and work for pools keep the context of a tool's call that starts them."""
    submit, start = ThreadPoolExecutor.submit, threading.Thread.start

    @functools.wraps(submit)
    def carried(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if _current.get() is None:
            return submit(self, fn, *args, **kwargs)
        return submit(self, copy_context().run, fn, *args, **kwargs)

    @functools.wraps(start)
    def carried_start(self: threading.Thread) -> None:
        # A thread of a pool serves others too; the work that it is given carries its own.
        if _current.get() is not None and getattr(self, "_target", None) is not _pool_thread:
            self.run = functools.partial(copy_context().run, self.run)
        start(self)

    ThreadPoolExecutor.submit, threading.Thread.start = carried, carried_start


# Reading


def read_written(file: Path) -> list[WrittenFile]:
    """What was noted, each path of a tool once, the newest last. A line that was cut off is left out."""
    try:
        raw = read_private(file, FILE_BYTES_MAX)
    except FileNotFoundError:
        return []
    found: dict[tuple[str, str, str], WrittenFile] = {}
    for line in raw.splitlines():
        with suppress(msgspec.DecodeError):
            one = decode_json(line, WrittenFile)
            found.pop((one.tool, one.path, one.host), None)
            found[one.tool, one.path, one.host] = one
    return list(found.values())


def compact(file: Path) -> None:
    """Keep what still matters of a long file. Called before a worker's processes append to it."""
    if not file.exists() or file.stat().st_size <= COMPACT_BYTES:
        return
    here = os.uname().nodename
    kept = [one for one in read_written(file) if one.host != here or os.path.lexists(one.path)][-KEPT_MAX:]
    write_atomically(file, b"".join(msgspec.json.encode(one) + b"\n" for one in kept))
