"""Where a secret's value may come from: a hidden prompt, a descriptor, a private file."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.cli.input.terminal import ask_twice, read_descriptor
from holdfast.errors import BadInput, BadSecret
from holdfast.host.private_files import open_private
from holdfast.identity.journal_keys.secret_file import VALUE_BYTES_MAX


def read_secret(name: str, *, from_fd: str | None, from_file: str | None) -> str:
    """The value, without a final line break."""
    if from_fd is not None and from_file is not None:
        raise BadInput("give only one of --from-fd and --from-file")
    if from_fd is not None:
        return _decoded(read_descriptor("--from-fd", from_fd, VALUE_BYTES_MAX + 2))
    if from_file is not None:
        return _decoded(_from_file(Path(from_file)))
    hint = "give --from-fd 0 to read it from standard input"
    return ask_twice(f"value of secret://{name}", for_what="the value", hint=hint)


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
        raise BadSecret(
            "the value is not UTF-8 text", hint="store bytes as base64 and let the tool decode them"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
