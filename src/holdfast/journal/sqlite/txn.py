"""One transaction, as an act sees it: what it may ask, and what it adds.

Acts that only add records gather them here, to be written together; each says which head its records follow, and so the
running total over all tasks moves along. The last record of those that are written together carries the total, so the
newest record of the journal always does.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.host.sqlite import Db, Row
from holdfast.journal.seal import Nonces
from holdfast.journal.sqlite.totals import store_total
from holdfast.journal.total import RunningTotal

INSERT = (
    "INSERT INTO record (n, t, seq, prev, kind, what, ordinal, epoch, at_ms, boot_ms, effect_key, "
    "fingerprint, slot, quiet, body, hash, total) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
NONCES_MIN, NONCES_MAX = 4, 512  # drawn at once
PART = 60  # records that are inserted together
NO_TOTAL = b""  # of every record but the newest that is written at once
NEWEST = "SELECT n, at_ms, boot_ms, total FROM record ORDER BY n DESC LIMIT 1"
# One statement checks the hold and moves it: epoch, sequence and state are compared as it writes.
MOVE = (
    "UPDATE task SET seq = ?, head = ?, last = ?, changed_ms = ?, crashes = CASE WHEN ? THEN 0 ELSE crashes END "
    "WHERE t = ? AND epoch = ? AND seq = ? AND state = 'running'"
)
_HASH = -2  # the column of a row that is its hash


class Txn:
    """What an act needs to know about the transaction it runs in. `records`: about as many are expected."""

    __slots__ = (
        "_kept",
        "_running",
        "at_ms",
        "boot_ms",
        "db",
        "moves",
        "nonces",
        "number",
        "one_by_one",
        "rows",
        "stored",
        "total",
    )

    def __init__(
        self,
        db: Db,
        *,
        number: int,
        at_ms: int,
        boot_ms: int,
        running: RunningTotal,
        total: int,
        stored: bytes = b"",
        one_by_one: bool = False,
        records: int = NONCES_MIN,
    ) -> None:
        self.db = db
        self._running = running
        self.nonces = Nonces(min(max(records, NONCES_MIN), NONCES_MAX))  # gone with the transaction
        self.total: int = total  # of all tasks
        self._kept: int = total  # what is written of it
        self.stored: bytes = stored  # the written total, as it is in the file
        self.number = number  # of the newest record
        self.at_ms = at_ms
        self.boot_ms = boot_ms
        self.one_by_one = one_by_one  # each move is told at once whether its hold was stale
        self.rows: list[Row] = []  # records of acts that only add: inserted together
        self.moves: list[Row] = []  # of the same acts: holds that are checked and moved together

    def add_rows(self, rows: Sequence[Row], *, before: bytes) -> None:
        """Insert these records of one task, at the latest with the commit. Their numbers are one above
        the newest; a collision is a broken promise, not luck. `before`: the head that they follow,
        empty where the task is new."""
        self.rows.extend(rows)
        if rows:
            self.number = rows[-1][0]
            self.total += self._running.moved(before, rows[-1][_HASH])

    def erase(self, head: bytes) -> None:
        """Count a task as erased from now on."""
        self.total += self._running.element(head, erased=True) - self._running.element(head)

    def forget(self, head: bytes) -> None:
        """Count an erased task no more."""
        self.total -= self._running.element(head, erased=True)

    def move(self, values: Row, *, at_once: bool) -> bool:
        """Check a hold and move it; False where it was stale, as far as that is known yet."""
        if not (at_once or self.one_by_one):
            self.moves.append(values)
            return True
        self.db.execute(MOVE, values)
        return self.db.changes() == 1

    def write_part(self) -> None:
        """Write what was gathered, but for the newest record, where that is much: what is written soon after it was
        made is at hand for the processor, and the collector does not meet it. Raises StaleHold."""
        if len(self.rows) > PART:
            self._move_all()
            *rows, newest = self.rows
            self.rows = [newest]
            self.db.executemany(INSERT, rows)

    def _move_all(self) -> None:
        if self.moves:
            moves, self.moves = self.moves, []
            before = self.db.total_changes()
            self.db.executemany(MOVE, moves)
            if self.db.total_changes() - before != len(moves):
                raise StaleHold

    def write_out(self) -> None:
        """Write what was gathered. Raises StaleHold where not every move met its hold."""
        self._move_all()
        if self.rows:
            rows, self.rows = self.rows, []
            *columns, newest, _ = rows[-1]
            self._kept, self.stored = self.total, self._running.hide(self.total, newest)
            rows[-1] = (*columns, newest, self.stored)
            self.db.executemany(INSERT, rows)

    def close(self) -> None:
        """Write out what is left, and a total that has changed without a new record."""
        self.write_out()
        if self.total != self._kept:
            self._kept, self.stored = self.total, store_total(self.db, self._running, self.total)


class StaleHold(Exception):
    """One of several moves was refused: which one is found out one by one."""
