"""The newest commit that this host has seen, kept outside the journal: `seen.json` in the instance folder.

The high-water mark is a number, which a dump that was put back may have passed since. A commit is also known by the
lane that made it and by that lane's stamp (`lane.py`): only its own process moves the row of a lane, and never down. So
a journal in which the row is lower, or missing without having been folded, is an older copy (docs/decisions/0097).

A worker hears of the newest commit with each renewal of its lease, which is a commit of its own: once it has returned,
everything that it has read is as durable as itself. So a worker without tasks knows how far the others have come.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import HighWaterDamaged
from holdfast.host.private_files import open_private, write_atomically
from holdfast.journal.postgres.links import Link, Links
from holdfast.journal.rules import SeenCommit, is_older_copy

NEWEST = "(SELECT concat_ws(' ', last, w, stamp, at_ms) FROM $s.tally WHERE last > 0 ORDER BY last DESC LIMIT 1)"
# The newest time of a row of `tally` that was put together with another.
_NOTE_FOLDED = (
    "INSERT INTO $s.meta AS m (key, value) VALUES ('folded_ms', (%s)::bigint::text) ON CONFLICT (key) DO UPDATE "
    "SET value = excluded.value WHERE m.value::bigint < excluded.value::bigint"
)
LANE = (
    "(SELECT stamp FROM $s.tally WHERE w = %s), "
    "(SELECT coalesce(max(value::bigint), 0) FROM $s.meta WHERE key = 'folded_ms'), "
    "(SELECT coalesce(max(last), 0) FROM $s.tally)"
)
STORE_EVERY_S = 30.0  # a write and two syncs; what is newer is still known by its number
_SLACK_MS = 60_000  # the row of a lane may have the time at which its record was made, a little earlier
_FILE = "seen.json"
_FORMAT = 1


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    journal_id: str
    seen: SeenCommit


def read_seen(folder: Path) -> SeenCommit | None:
    """Raises HighWaterDamaged."""
    try:
        fd = open_private(folder / _FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        raw = file.read(4_096)
    try:
        found = decode_json(raw, _Stored)
        if (found.format, found.journal_id) != (_FORMAT, folder.name):
            raise ValueError(f"it is of format {found.format}, for the journal {found.journal_id!r}")
    except ValueError as error:
        raise HighWaterDamaged(f"{folder / _FILE} cannot be read: {error}") from error
    return found.seen


def forget_seen(folder: Path) -> None:
    """After a restore: what was seen before it counts no more."""
    (folder / _FILE).unlink(missing_ok=True)


async def note_folded(link: Link, at_ms: int) -> None:
    """In the transaction that puts rows of `tally` together: the newest time that one of them had."""
    await link.run(_NOTE_FOLDED, (at_ms,))


class Seen:
    """What this process has seen of the journal."""

    def __init__(self, folder: Path, *, incarnation: int) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._mark: SeenCommit | None = None
        self._stored: SeenCommit | None = None
        self._store_at_s = 0.0

    async def heard(self, newest: str | None, links: Links) -> bool:
        """After a renewal: `newest` is what NEWEST gave. False where the journal has lost what was seen before."""
        before, found = self._mark, self._read(newest)
        if before is not None and not _follows(before, found):
            query = f"SELECT {LANE}"
            stamp, folded_ms, last = await links.read(lambda link: link.one(query, (before.lane,))) or (None, 0, 0)
            number = self._incarnation
            if is_older_copy(before, incarnation=number, newest=last, stamp=stamp, folded_ms=folded_ms):
                return False
        self._mark = found or before
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._store_at_s and self._mark != self._stored:
            self._store_at_s = now_s + STORE_EVERY_S
            self.store()
        return True

    def committed(self, *, number: int, lane: str, stamp: int, at_ms: int) -> None:
        """A commit of this process, known to be durable."""
        if number > (0 if self._mark is None else self._mark.number):
            self._mark = self._commit(number, lane, stamp, max(0, at_ms - _SLACK_MS))

    def store(self) -> None:
        """Keep the mark. Where that fails, the journal is valid all the same, and the next time tries again."""
        mark = self._mark
        if mark is None or mark == self._stored:
            return
        with suppress(OSError, HighWaterDamaged):
            other = read_seen(self._folder)  # of another process of this host
            if other is None or (other.incarnation, other.number) < (mark.incarnation, mark.number):
                kept = _Stored(format=_FORMAT, journal_id=self._folder.name, seen=mark)
                write_atomically(self._folder / _FILE, msgspec.json.encode(kept) + b"\n")
            self._stored = mark

    def _read(self, newest: str | None) -> SeenCommit | None:
        if not newest:
            return None
        number, lane, stamp, at_ms = newest.split(" ")
        return self._commit(int(number), lane, int(stamp), int(at_ms))

    def _commit(self, number: int, lane: str, stamp: int, at_ms: int) -> SeenCommit:
        return SeenCommit(incarnation=self._incarnation, number=number, lane=lane, stamp=stamp, at_ms=at_ms)


def _follows(before: SeenCommit, found: SeenCommit | None) -> bool:
    """Whether the newest commit itself shows that the one seen before is still there."""
    if found is None or found.lane != before.lane:
        return False
    return found.number >= before.number and found.stamp >= before.stamp
