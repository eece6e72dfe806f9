"""Where a secret's value may come from: a hidden prompt, a descriptor, a private file.

Never the command line or the environment: `ps` and /proc show both to other programs. What is
read is not shown again, not even in an error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.errors import BadInput, BadSecret
from holdfast.host.private_files import open_private
from holdfast.identity.journal_keys.secret_file import VALUE_BYTES_MAX


def read_secret(name: str, *, from_fd: str | None, from_file: str | None) -> str:
    """The value; one last line break is dropped."""
    if from_fd is not None and from_file is not None:
        raise BadInput("--from-fd and --from-file: one of them")
    if from_fd is not None:
        return _decoded(_from_fd(from_fd))
    if from_file is not None:
        return _decoded(_from_file(Path(from_file)))
    return _asked(name)


def _asked(name: str) -> str:
    if not sys.stdin.isatty():
        raise BadInput("nobody is there to type the value", hint="give --from-fd 0 to read it from a pipe")
    from getpass import getpass

    first = getpass(f"value of secret://{name} (not shown): ", stream=sys.stderr)
    if getpass("once more: ", stream=sys.stderr) != first:
        raise BadInput("the two are not the same: nothing was changed", hint="type it again")
    return first


def _from_fd(word: str) -> bytes:
    if not word.isascii() or not word.isdigit():
        raise BadInput(f"--from-fd: {word!r} is not the number of a descriptor")
    if os.isatty(int(word)):
        raise BadInput("--from-fd: a terminal would show it", hint="leave the option out")
    try:
        with os.fdopen(os.dup(int(word)), "rb") as file:
            return file.read(VALUE_BYTES_MAX + 2)
    except (OSError, OverflowError) as error:
        raise BadInput(f"--from-fd {word} cannot be read: {error}") from error


def _from_file(path: Path) -> bytes:
    try:
        with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
            return file.read(VALUE_BYTES_MAX + 2)
    except OSError as error:
        raise BadInput(f"--from-file: {str(path)!r} cannot be read: {error.strerror}") from error


def _decoded(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BadSecret("the value is not text in UTF-8", hint="keep bytes as base64 and let the tool decode") from None
    return text.removesuffix("\n").removesuffix("\r")
