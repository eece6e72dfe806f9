"""Copies of a key log from a person: kel.jsonl of a backup, the text of a card."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import BadInput, BadSheet
from holdfast.identity.files.own_log import FILE_BYTES_MAX, RECEIPTS
from holdfast.identity.paper.paper import CODE_CHARS_MAX, read_card
from holdfast.identity.witness.witness import LogCopy


def read_log_file(path: Path) -> LogCopy:
    """The lines of a kel.jsonl, and of receipts.jsonl next to it. Nothing is verified yet."""
    beside = path.parent / RECEIPTS
    return LogCopy(records=_lines(path), receipts=_lines(beside) if beside.is_file() else ())


def read_card_file(path: Path) -> LogCopy:
    """The records in a card's text or code. They prove nothing before they are verified."""
    try:
        text = read_file(path, 64 * CODE_CHARS_MAX).decode()
    except UnicodeDecodeError:
        raise BadSheet(
            f"{path} is not text", hint="give the card's text, or the text that a phone shows for its QR code"
        ) from None
    return LogCopy(records=read_card(text), receipts=())


def _lines(path: Path) -> tuple[bytes, ...]:
    raw = read_file(path, FILE_BYTES_MAX)
    return tuple(line for line in raw[: raw.rfind(b"\n") + 1].split(b"\n") if line)


def read_file(path: Path, bytes_max: int) -> bytes:
    """The contents. Raises BadInput if the file cannot be read or is larger."""
    try:
        with path.open("rb") as file:
            raw = file.read(bytes_max + 1)
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if len(raw) > bytes_max:
        raise BadInput(f"{str(path)!r} has more than {bytes_max:,} bytes")
    return raw
