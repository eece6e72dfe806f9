"""An outsider's reading of the journal: every record, checked the moment it is committed.

The ledger sees what is durable and nothing else, so it can say at the moment a request leaves
whether its intent was there (I4) and whether the step before was closed (I5). It also watches
what no record may ever do: change a closed step (I7), or carry an epoch that is not the task's
newest (I8).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId
from holdfast.core.step import CLOSED, Event, Step, apply
from holdfast.errors import InvariantViolated
from holdfast.journal.records import Body, Record, RecordKind


class Row:
    """One step, as far as it is durable."""

    __slots__ = ("args", "effect_key", "letter", "ordinal", "starts", "step", "tool")

    def __init__(self, record: Record, body: Body) -> None:
        self.ordinal = record.ordinal
        self.letter: Letter = body["letter"]
        self.tool = str(body["tool"])
        args: object = body["args"]
        self.args = msgspec.json.decode(args) if isinstance(args, msgspec.Raw) else args
        self.effect_key = record.effect_key
        self.starts = 0
        self.step: Step | None = None

    @property
    def closed(self) -> bool:
        return self.step is not None and self.step.state in CLOSED


class Ledger:
    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Row]] = {}  # by task, in the order they were planned
        self.pairs: set[tuple[str, str]] = set()  # (event, letter) seen
        self.breaches: list[str] = []
        self._epochs: dict[str, int] = {}
        self._claims: dict[tuple[str, int], int] = {}  # also those of timelines that were lost

    def take(self, task_id: str, record: Record, body: Body) -> None:
        """Look at one record right after its commit."""
        self._check_epoch(task_id, record)
        if record.kind is RecordKind.RESTORED:
            for row in self.rows.get(task_id, {}).values():
                if not row.closed:
                    self._take_event(task_id, row, Event.RESTORE, record)
        if record.kind is not RecordKind.STEP:
            return
        rows = self.rows.setdefault(task_id, {})
        row = rows.get(record.ordinal)
        if row is None:
            row = rows[record.ordinal] = Row(record, body)
        for event in record.events:
            self._take_event(task_id, row, event, record)

    def rewind(self, timelines: dict[TaskId, Iterable[Record]]) -> None:
        """An older copy of the journal has taken its place."""
        self.rows.clear()
        self._epochs.clear()
        for task_id, records in timelines.items():
            for record in records:
                self.take(task_id, record, record.body)

    def send_breach(self, task_id: str, ordinal: str, *, attempt: int, args: object) -> str:
        """What is wrong with a request that leaves now; empty where nothing is."""
        rows = self.rows.get(task_id, {})
        row = rows.get(ordinal)
        if row is None or row.starts < attempt:
            return f"I4: {task_id}/{ordinal}: attempt {attempt} was sent before its start is durable"
        if row.args != args:
            return f"I4: {task_id}/{ordinal}: was recorded with other arguments than it is sent"
        for earlier in rows.values():
            if earlier is row:
                return ""
            if not earlier.closed and not parallel(earlier.ordinal, ordinal):
                return f"I5: {task_id}/{ordinal}: was sent while {earlier.ordinal} is open"
        return ""

    def _check_epoch(self, task_id: str, record: Record) -> None:
        epoch = self._epochs.get(task_id, 0)
        claims = record.kind is RecordKind.CLAIMED
        claim = (task_id, record.epoch)
        if claims and self._claims.setdefault(claim, record.number) != record.number:
            self.breaches.append(f"I8: {task_id}: epoch {record.epoch} was claimed twice")
        if record.epoch < epoch or (claims and record.epoch == epoch):
            self.breaches.append(f"I8: {task_id}: epoch {record.epoch} was written after {epoch}")
        if record.epoch != epoch and not claims and record.kind is not RecordKind.RESTORED:
            self.breaches.append(f"I8: {task_id}: epoch {record.epoch} was never claimed")
        self._epochs[task_id] = max(epoch, record.epoch)

    def _take_event(self, task_id: str, row: Row, event: Event, record: Record) -> None:
        self.pairs.add((event.name, row.letter))
        if row.closed:
            self.breaches.append(f"I7: {task_id}/{row.ordinal}: {event.name} after it was closed")
            return
        row.starts += event is Event.START
        try:
            row.step = apply(row.step, event, epoch=record.epoch, quiet=record.quiet, letter=row.letter)
        except InvariantViolated as error:
            self.breaches.append(f"I7: {task_id}/{row.ordinal}: {error.message}")


def parallel(one: str, other: str) -> bool:
    """Whether neither of two ordinals waits for the other: branches of a gather, slots of a scope.

    Components of a path are step, branch, step, branch, ...
    """
    if one.startswith("@") and other.startswith("@"):
        return one.partition(".")[0] != other.partition(".")[0]
    pairs = zip(one.split("."), other.split("."), strict=False)
    for place, (left, right) in enumerate(pairs):
        if left != right:
            numbers = left.isdigit() and right.isdigit()
            return place % 2 == 1 and numbers
    return False
