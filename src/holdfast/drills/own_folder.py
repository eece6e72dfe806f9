"""The folder of a drill, for one run alone.

It is outside the agent's: every write of its shadows lands there, and it is removed at the end. Its
marker is locked while a drill runs. A kill leaves the folder; the next run says so and clears it before it begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

from holdfast.core.clock import iso
from holdfast.drills.far.far_side import remove
from holdfast.errors import BadInput, NotNow
from holdfast.host.private_files import ensure_private_folder, open_private

MARKER = "holdfast-drill.json"
Tell = Callable[[str], None]


@contextlib.contextmanager
def own_folder(folder: Path, *, drill: str, tell: Tell) -> Generator[Path]:
    """The drill's folder, empty, for this run alone."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise BadInput(f"{folder} has files that no drill made", hint="name another folder with --folder")
    ensure_private_folder(folder)
    fd = open_private(folder / MARKER, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotNow(f"another drill runs in {folder}", hint="wait until it ends, or give --folder DIR") from None
        left = os.pread(fd, 4096, 0)
        if left:
            tell(f"the last drill was killed ({_said(left)}): removing what it left in {folder}")
        clear(folder)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"drill": drill, "pid": os.getpid(), "began": _now()}).encode(), 0)
        try:
            yield folder
        finally:
            clear(folder)
            (folder / MARKER).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
    finally:
        os.close(fd)


def _said(marker: bytes) -> str:
    try:
        found = json.loads(marker)
        return f"{found['drill']}, {found['began']}"
    except (ValueError, KeyError, TypeError):
        return "its marker cannot be read"


def clear(folder: Path) -> None:
    """Remove everything but the marker."""
    for one in folder.iterdir():
        if one.name == MARKER:
            continue
        if one.is_dir() and not one.is_symlink():
            remove(str(one))
        else:
            one.unlink()


def _now() -> str:
    return iso(time.time_ns() // 1_000_000)
