"""The one record that is being published: `pending.jsonl` in the home, absent at rest.

True at all times: a record is here, synced, before anybody else sees a byte of it, and it leaves
only after it stands in the agent's own log, or after it is certain that it was never sent. So a
command that was killed half way finds here what it may have sent already and sends the same bytes
again; it never makes a second record for one position.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import BadRecord, LogDamaged
from holdfast.host.private_files import open_private, remove_durably, write_atomically
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.records import Record, parse_record
from holdfast.identity.records.signed import Signed

NAME = "pending.jsonl"


def find_pending(home_folder: Path) -> Signed[Record] | None:
    """The record that may have been sent already. Raises LogDamaged."""
    path = home_folder / NAME
    try:
        with open(open_private(path, os.O_RDONLY), "rb") as file:
            raw = file.read(LINE_BYTES_MAX + 2)
    except FileNotFoundError:
        return None
    try:
        return parse_record(raw.removesuffix(b"\n"))
    except BadRecord as error:
        raise LogDamaged(
            f"{path}: {error.message}",
            hint="it may have been sent: `holdfast identity show --fetch` asks the witnesses; "
            "then remove the file: what they hold is what counts",
        ) from error


def write_pending(home_folder: Path, signed: Signed[Record]) -> None:
    write_atomically(home_folder / NAME, signed.line() + b"\n")


def clear_pending(home_folder: Path) -> None:
    """Safe to repeat."""
    if os.path.lexists(home_folder / NAME):
        remove_durably(home_folder / NAME)
