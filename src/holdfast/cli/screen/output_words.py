"""How a person gets the words of a new agent: copied by hand at a terminal, or from a descriptor.

Holdfast never writes them to standard output or to its own files.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.identity.paper.phrase import Phrase


def words_out(fd: str | None, name: str) -> Callable[[Phrase], None]:
    """The function that shows the words. Raises BadInput if nobody would see them."""
    if fd is None:
        if not sys.stdin.isatty() or not sys.stderr.isatty():
            raise BadInput(
                "the 24 words can be shown only at a terminal",
                hint="run it at a terminal, or give --words-fd N to get them there",
            )
        return lambda phrase: _by_hand(phrase, name)
    if not fd.isascii() or not fd.isdigit() or int(fd) in (0, 1):
        raise BadInput(f"--words-fd: {fd!r} is not a descriptor for secrets", hint="use 3 or higher")
    try:
        found = os.fstat(int(fd))
        appends = fcntl.fcntl(int(fd), fcntl.F_GETFL) & os.O_APPEND
    except (OSError, OverflowError) as error:
        raise BadInput(f"--words-fd {fd} is not open") from error
    if stat.S_ISREG(found.st_mode):
        _check_file(fd, found, appends=bool(appends))
    return lambda phrase: _written(phrase, int(fd))


def _check_file(fd: str, found: os.stat_result, *, appends: bool) -> None:
    """Refuse a file that a second run would empty, or that others may read: it is the only copy."""
    if not appends:
        raise BadInput(
            f"--words-fd {fd} is a file that a second run would empty: the words would be lost",
            hint=f"open it for appending: {fd}>> FILE",
        )
    if found.st_mode & 0o077:
        raise BadInput(
            f"--words-fd {fd} is a file that others may read (mode {stat.S_IMODE(found.st_mode):04o})",
            hint="make it first, with umask 077, in /dev/shm",
        )


def _written(phrase: Phrase, fd: int) -> None:
    from holdfast.host.private_files import write_all

    try:
        write_all(fd, (" ".join(phrase.words) + "\n").encode())
    except OSError as error:
        raise BadInput(f"--words-fd {fd} cannot be written: {error.strerror}") from error


def _by_hand(phrase: Phrase, name: str) -> None:
    from holdfast.cli.input.hand_copying import copy_by_hand
    from holdfast.identity.paper.phrase import english

    copy_by_hand(f"recovery words of {name}", phrase.words, english())
