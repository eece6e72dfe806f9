"""Where secret words go: a pipe, a terminal, or a file in memory of ours alone; never to a disk.

A disk keeps what was deleted, and backups copy it. So a file is written only where memory is
mounted (/dev/shm), and a redirection to a file on a disk, or to one that others may read, is
refused before any word is asked for. There is no option that allows it: a pipe to a program that
seals (`| age -p > FILE`) does, and says what is meant. Every command that prints words begins with
this: `paper print`, `share split`, `share combine`.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.host.mounts import is_in_memory
from holdfast.host.private_files import write_all

WARNING = (
    "secret: use a printer of your own; many keep what they printed on a disk, and print services "
    "of the cloud always do"
)


def check_way_out(out: str | None, *, text: bool) -> None:
    """Refuse a place that would keep the words, or a terminal that would show a PDF."""
    if out is not None:
        _check_file(Path(out))
        return
    number = _descriptor()
    if number is None:
        return
    if os.isatty(number) and not text:
        raise BadInput(
            "a PDF is not for a terminal", hint="pipe it to a printer (`| lp`), or give --text or --out /dev/shm/FILE"
        )
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        return
    if not is_in_memory(Path(f"/proc/self/fd/{number}")):
        raise BadInput(
            "standard output is a file on a disk, which keeps what is deleted",
            hint="pipe it to a printer (`| lp`) or to a program that seals it (`| age -p > FILE`), "
            "or write to /dev/shm",
        )
    if found.st_mode & 0o077:
        raise BadInput(
            f"standard output is a file that others may read (mode {stat.S_IMODE(found.st_mode):04o})",
            hint="`umask 077` first, and remove the file that is there",
        )


def _descriptor() -> int | None:
    """Of standard output; None where a program of this process takes it, and no file does."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):  # io.UnsupportedOperation is both
        return None


def put_secret(data: bytes, out: str | None) -> None:
    """Hand the pages out, after check_way_out."""
    if out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(out)
    _check_file(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
    print(f"{path}: in memory; print it, then remove it", file=sys.stderr)


def _check_file(path: Path) -> None:
    if os.path.lexists(path):
        raise BadInput(f"{path} is there already", hint="remove it, or name another file")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent}")
    if not is_in_memory(path.parent):
        raise BadInput(
            f"{path} would lie on a disk, which keeps what is deleted",
            hint="write to /dev/shm, or pipe it to a printer (`| lp`)",
        )
