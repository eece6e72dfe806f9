"""What the journal of a simulated world holds: every record shown to the ledger as it is kept.

An older copy of it can be put in place of the present one, as a restore does (T14): the
incarnation rises, and every task that is open, or submitted again, is told that the timeline
after its newest record is lost.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.ids import TaskId
from holdfast.core.notices import Notice
from holdfast.journal.records import ENDED, NewRecord, Record, RecordKind, TaskState
from holdfast_proofs.memory_journal.contents import InboxCell, TaskCell, encode_body
from holdfast_proofs.memory_journal.journal import MemoryStore
from holdfast_proofs.simulate.parts.ledger import Ledger
from holdfast_proofs.simulate.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The journal as it was at some moment."""

    tasks: dict[TaskId, TaskCell]
    inbox: list[InboxCell]
    notices: dict[str, tuple[Notice, bool]]
    effects: dict[bytes, tuple[TaskId, str]]
    table: list[tuple[str, str]]  # effects of Transactional tools
    sequence: int
    newest_ms: int
    newest_boot_ms: int
    dropped: int


class SimStore(MemoryStore):
    """Contents of the journal, watched."""

    def __init__(self, ledger: Ledger, trace: Trace, clock: Clock) -> None:
        super().__init__()
        self._ledger = ledger
        self._trace = trace
        self._clock = clock
        self._table: Any = self.db  # Any: apsw's own types can only be read from Python 3.12 on
        self._table.execute("CREATE TABLE effect (task TEXT, ordinal TEXT)")
        self._lost_after_ms: int | None = None

    def keep(self, cell: TaskCell, entry: NewRecord, raw: bytes, *, epoch: int, at_ms: int, boot_ms: int) -> Record:
        record = super().keep(cell, entry, raw, epoch=epoch, at_ms=at_ms, boot_ms=boot_ms)
        what = "+".join(event.name for event in entry.events) or entry.kind.name
        why = entry.body.get("why") or entry.body.get("reason") or entry.body.get("state") or ""
        self._trace.note("journal", f"{cell.task_id[-4:]}/{entry.ordinal or '-'} {what} {why} epoch {epoch & 0xFFFF}")
        self._ledger.take(cell.task_id, record, entry.body)
        return record

    def count_effects(self, task_id: str, ordinal: str) -> int:
        """How often a Transactional step took effect."""
        rows = self._table.execute("SELECT count(*) FROM effect WHERE task = ? AND ordinal = ?", (task_id, ordinal))
        return int(next(iter(rows))[0])

    def copy(self) -> Copy:
        """What a backup would hold now."""
        return Copy(
            tasks={task_id: _copied(cell) for task_id, cell in self.tasks.items()},
            inbox=[copy.copy(item) for item in self.inbox],
            notices=dict(self.notices),
            effects=dict(self.effects),
            table=list(self._table.execute("SELECT task, ordinal FROM effect")),
            sequence=self.sequence,
            newest_ms=self.newest_ms,
            newest_boot_ms=self.newest_boot_ms,
            dropped=self.dropped,
        )

    def restore(self, old: Copy) -> None:
        """Put the copy in place of what is there, under a new incarnation."""
        self.tasks = {task_id: _copied(cell) for task_id, cell in old.tasks.items()}
        self.inbox = [copy.copy(item) for item in old.inbox]
        self.notices, self.effects = dict(old.notices), dict(old.effects)
        self.sequence, self.dropped = old.sequence, old.dropped
        self.newest_ms, self.newest_boot_ms = old.newest_ms, old.newest_boot_ms
        self._table.execute("DELETE FROM effect")
        for row in old.table:
            self._table.execute("INSERT INTO effect VALUES (?, ?)", row)
        self.incarnation += 1
        self._lost_after_ms = old.newest_ms
        self._ledger.rewind({cell.task_id: self.records(cell) for cell in self.tasks.values()})
        now_ms = max(old.newest_ms, self._clock.wall_ms())
        for cell in self.tasks.values():
            if cell.state not in ENDED:
                self.suspect(cell.task_id, now_ms=now_ms)
                cell.state, cell.session_id = TaskState.QUEUED, ""
                cell.crashes, cell.due_ms = 0, now_ms
        self.changed()

    def suspect(self, task_id: TaskId, *, now_ms: int) -> None:
        """Tell a task that it may have gone on in a timeline that is lost, if there is one."""
        if self._lost_after_ms is None:
            return
        cell = self.tasks[task_id]
        entry = NewRecord(kind=RecordKind.RESTORED, body={"lost_after_ms": self._lost_after_ms})
        raw, boot_ms = encode_body(entry.body), self._clock.boot_ms()
        self.keep(cell, entry, raw, epoch=cell.epoch, at_ms=now_ms, boot_ms=boot_ms)


def _copied(cell: TaskCell) -> TaskCell:
    twin = copy.copy(cell)
    twin.kept = list(cell.kept)
    return twin
