"""Where the words of a phrase or share may come from: a hidden prompt or a descriptor.

Never the command line or the environment, and no file: words belong on paper.
"""

from __future__ import annotations

import os
import sys

from holdfast.errors import BadInput

BYTES_MAX = 64 * 1024


def read_words(from_fd: str, option: str = "--from-fd") -> str:
    """The text at a descriptor."""
    if not from_fd.isascii() or not from_fd.isdigit():
        raise BadInput(f"{option}: {from_fd!r} is not the number of a descriptor")
    if os.isatty(int(from_fd)):
        raise BadInput(f"{option}: a terminal would show it", hint="leave the option out")
    try:
        with os.fdopen(os.dup(int(from_fd)), "rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{option} {from_fd} cannot be read: {error}") from error
    if len(raw) > BYTES_MAX:
        raise BadInput(f"{option} {from_fd}: more than {BYTES_MAX:,} bytes are no words")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{option} {from_fd}: not text in UTF-8") from None


def ask_words(what: str, option: str = "--from-fd") -> str:
    """Typed by a person, not shown."""
    if not sys.stdin.isatty():
        raise BadInput("nobody is there to type the words", hint=f"give {option} 0 to read them from a pipe")
    from getpass import getpass

    return getpass(f"{what} (not shown): ", stream=sys.stderr)
