"""Where secret words go: a pipe, a terminal, or a private file in memory; never to a disk.

A disk keeps what was deleted, and backups copy it. So we write a file only in memory (/dev/shm),
and refuse a redirection to a file on a disk, or to one that others may read, before we ask for any
word. No option allows it; a pipe to a program that encrypts (`| age -p > FILE`) does. Every command
that prints words checks this first: `paper print`, `share split`, `share combine`.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.host.private_files import is_in_memory, write_all

WARNING = "secret: use your own printer; many printers keep copies on a disk, and cloud print services always do"
_NOT_THERE = "Holdfast does not write the words there, because deleted data can be recovered from a disk"


def check_way_out(out: str | None, *, text: bool) -> None:
    """Refuse a file that would keep the words, or a PDF on a terminal."""
    if out is not None:
        _check_file(Path(out))
        return
    number = _descriptor()
    if number is None:
        return
    if os.isatty(number) and not text:
        raise BadInput(
            "cannot show a PDF on a terminal",
            hint="pipe the PDF to a printer (`| lp`), or give --text or --out /dev/shm/FILE",
        )
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        return
    if not is_in_memory(Path(f"/proc/self/fd/{number}")):
        raise BadInput(
            f"standard output is a file on a disk. {_NOT_THERE}",
            hint="pipe the sheet to a printer (`| lp`) or to a program that encrypts it (`| age -p > FILE`), "
            "or write to /dev/shm",
        )
    if found.st_mode & 0o077:
        raise BadInput(
            f"standard output is a file that others may read (mode {stat.S_IMODE(found.st_mode):04o})",
            hint="remove that file, run `umask 077`, then run this command again",
        )


def _descriptor() -> int | None:
    """Of standard output; None if it is not a real file of the system."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):  # io.UnsupportedOperation is both
        return None


def put_secret(data: bytes, out: str | None) -> None:
    """Write the pages, after check_way_out."""
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
    print(f"{path}: written to memory; print it, then remove it", file=sys.stderr)


def _check_file(path: Path) -> None:
    if os.path.lexists(path):
        raise BadInput(f"{path} exists already", hint="remove that file, or name another one")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent}")
    if not is_in_memory(path.parent):
        raise BadInput(
            f"{path} would be on a disk. {_NOT_THERE}",
            hint="write to /dev/shm, or pipe the sheet to a printer (`| lp`)",
        )
