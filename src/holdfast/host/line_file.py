"""Files that only grow, line by line: durable on return, and a line that a crash cut short never counts."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from holdfast.host.private_files import open_private, sync, sync_folder, write_all


def append_line(path: Path, line: bytes, *, bytes_max: int) -> None:
    """On return the line is in the file, durably. Does nothing where it is there already. Raises OSError."""
    fresh, line = not path.exists(), line + b"\n"
    fd = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with os.fdopen(os.dup(fd), "rb") as file:
            raw = file.read(bytes_max)
        whole = raw.rfind(b"\n") + 1
        if not raw.startswith(line) and b"\n" + line not in raw:
            os.ftruncate(fd, whole)  # what a crash left without its end
            os.lseek(fd, whole, os.SEEK_SET)
            write_all(fd, line)
        sync(fd)
    finally:
        os.close(fd)
    if fresh:
        sync_folder(path.parent)


def read_lines(path: Path, *, bytes_max: int) -> list[bytes]:
    """The whole lines; none where there is no file."""
    try:
        fd = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with open(fd, "rb") as file:
        *lines, _torn = file.read(bytes_max).split(b"\n")
    return lines
