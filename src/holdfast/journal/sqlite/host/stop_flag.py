"""The sign that a sync of this journal failed: until it is repaired no step begins.

After a failed sync the kernel may call pages clean that never reached the disk. What memory shows is then not what a
restart will find, so the file is not tried again: it is rewritten by one process alone (`JournalUse.exclusive`), and
`clear_stopped` comes last, after the new file is durable. The sign is left in two places, because the disk is failing
as it is written: the file `stopped` with the reason, for all sessions, and a byte in the page of the session that saw
it. Either one stops everybody, across crashes and restarts. A sign that cannot be read counts.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.host.private_files import open_private, read_private, remove_durably, write_atomically
from holdfast.journal.sqlite.host.page_layout import CLEAR, STOP_AT, page_ids, page_path, parsed
from holdfast.journal.sqlite.host.page_reader import is_alive, read_bytes

FORMAT = 1
_FILE = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Why the journal takes no new steps."""

    reason: str
    session_id: str
    at_ms: int


def mark_stopped(folder: Path, *, reason: str, session_id: str, at_ms: int) -> bool:
    """Leave the sign for all sessions; the first reason stays. False where it cannot be kept.
    Also call `SessionPage.mark_stopped`: two places are surer than one on a failing disk."""
    if os.path.lexists(folder / _FILE):
        return True
    fields = {"format": FORMAT, "reason": reason, "session_id": session_id, "at": at_ms}
    try:
        write_atomically(folder / _FILE, json.dumps(fields).encode() + b"\n")
    except (OSError, HoldfastError):
        return False
    return True


def find_stopped(folder: Path) -> Stopped | None:
    """The sign, if there is one in either place."""
    try:
        raw = read_private(folder / _FILE, 65_536)
    except FileNotFoundError:
        return _find_in_pages(folder)
    try:
        fields: dict[str, object] = json.loads(raw)
        at_ms = fields["at"] if type(fields["at"]) is int else 0
        return Stopped(reason=str(fields["reason"]), session_id=str(fields["session_id"]), at_ms=at_ms)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Stopped(reason="a sync failed; its reason cannot be read", session_id="", at_ms=0)


def clear_stopped(folder: Path) -> None:
    """Take the sign away after a repair, while holding `JournalUse.exclusive`. The pages of dead sessions are cleared
    first: a crash in between leaves the file, so the repair is simply done again."""
    for session_id in page_ids(folder):
        if _says_stopped(folder, session_id) and not is_alive(folder, session_id):
            fd = open_private(page_path(folder, session_id), os.O_RDWR)
            try:
                os.pwrite(fd, bytes((CLEAR,)), STOP_AT)
            finally:
                os.close(fd)
    remove_durably(folder / _FILE)


def _find_in_pages(folder: Path) -> Stopped | None:
    for session_id in page_ids(folder):
        if _says_stopped(folder, session_id):
            return Stopped(reason="a sync of the journal failed", session_id=session_id, at_ms=0)
    return None


def _says_stopped(folder: Path, session_id: str) -> bool:
    image = parsed(read_bytes(folder, session_id), session_id=session_id)
    return image is not None and image.stopped
