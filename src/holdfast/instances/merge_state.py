"""`instance/shared-memory.json`: what a folder knows of its merges with the other instances; never copied.

It is read by commands that do not merge, without the library of documents. Losing it costs a look at every file.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically

STATE = "shared-memory.json"
STATE_BYTES_MAX = 8 * 1024 * 1024
HISTORY_MS = 30 * 86_400_000  # so long the history of documents is kept for an instance that is silent

SAID_MS = 600_000  # so long after two folders sent as one instance a person still hears of it

Signature = tuple[int, ...]  # of a file and its document


class PeerState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of another instance."""

    heard_ms: int = (
        0  # when it made its newest envelope that was read here, by its clock; at the latest when it was read
    )
    behind_ms: int = 0  # since when it has not confirmed something of this instance; 0: it has all
    files: int = 0  # that it has not confirmed
    waits: str = ""  # what of it this instance waits for
    fix: str = ""  # what a person can do about that, where it is known
    life: str = ""  # of its folder, as its newest envelope said
    life_before: str = ""
    changed_back_ms: int = 0  # when a life came back: two folders send as this instance
    ignored_ms: int = 0  # when the envelope of an earlier life was made that was ignored last

    def is_old(self, at_ms: int, life: str) -> bool:
        """Whether an envelope is of the earlier life, and from before what was heard of the one of now: a program that
        copies folders may bring it back. A folder with a slow clock sends such ones too, but each newer than its
        last."""
        is_behind = life != self.life and life == self.life_before and at_ms < self.heard_ms
        return is_behind and not 0 < self.ignored_ms < at_ms

    def ignoring(self, at_ms: int) -> PeerState:
        return msgspec.structs.replace(self, ignored_ms=at_ms)

    def heard(self, at_ms: int, life: str, now_ms: int) -> PeerState:
        at_ms = min(at_ms, now_ms)  # a clock that is years ahead would keep the history for years
        if life == self.life:
            return msgspec.structs.replace(self, heard_ms=at_ms)
        back_ms = now_ms if life == self.life_before else self.changed_back_ms
        return msgspec.structs.replace(self, heard_ms=at_ms, life=life, life_before=self.life, changed_back_ms=back_ms)

    def is_two(self, now_ms: int) -> bool:
        return bool(self.changed_back_ms) and now_ms - self.changed_back_ms < SAID_MS

    @property
    def kept_until_ms(self) -> int:
        """Until when no history is dropped that it may need; 0: it needs none. An instance that comes back later takes
        the whole document, and merges its own lines into it at the last version that it knew."""
        return max(self.behind_ms, self.heard_ms) + HISTORY_MS if self.behind_ms else 0


class MergeState(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder knows of its merges; in `instance/`, never copied."""

    format: int = 1
    since: str = ""  # the day on which this folder began to share
    peers: dict[str, PeerState] = {}
    trouble: str = ""  # why this folder merges with none, or sends nothing
    fix: str = ""  # what a person can do about that
    files: dict[str, str] = {}  # what a file waits for
    settled: dict[str, Signature] = {}  # files that all have as they are here
    life: str = ""  # of this folder (life.py)
    sent: tuple[str, ...] = ()  # the hashes of the newest envelopes that it sent
    documents: frozenset[str] = frozenset()  # files that have had a document here: one that is lost is asked for

    def troubled_by(self, error: OSError | HoldfastError | None) -> MergeState:
        text, fix = (error.message, error.hint) if isinstance(error, HoldfastError) else (str(error or ""), "")
        return msgspec.structs.replace(self, trouble=text, fix=fix)


def signature_of(*paths: Path) -> Signature:
    """Changes when one of the files was written, or is lost."""
    found: list[int] = []
    for one in paths:
        try:
            entry = os.lstat(one)
            found += entry.st_ino, entry.st_mtime_ns, entry.st_size
        except (FileNotFoundError, NotADirectoryError):
            found.append(0)
    return tuple(found)


def load_state(instance: Path) -> MergeState:
    """What this folder knows; nothing where the file is missing or cannot be read."""
    try:
        return decode_json(read_private(instance / STATE, STATE_BYTES_MAX), MergeState)
    except (FileNotFoundError, HoldfastError, msgspec.MsgspecError):
        return MergeState()


def save_state(instance: Path, state: MergeState) -> None:
    ensure_private_folder(instance)
    write_atomically(instance / STATE, msgspec.json.encode(state) + b"\n")
