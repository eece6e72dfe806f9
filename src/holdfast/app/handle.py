"""A handle on one task: wait for it, read it, cancel it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from holdfast.core.ids import TaskId
from holdfast.errors import ResultErased, TaskCancelled, TaskFailed, TaskNotFound, TaskParked, TaskUnfinished
from holdfast.journal.contract import InboxItem, InboxKind, Journal, TaskRow
from holdfast.journal.records import ENDED, TaskState, TaskView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

POLL_S = 0.05


class TaskHandle:
    """One task of one journal."""

    def __init__(
        self, journal: Journal, task_id: TaskId, *, created: bool = False, check: Callable[[], None] = lambda: None
    ) -> None:
        self._journal = journal
        self._check = check  # raises the error that ended the engine
        self.id = task_id
        self.created = created  # False if the request id found an earlier task

    def __repr__(self) -> str:
        return f"TaskHandle({self.id})"

    async def row(self) -> TaskRow:
        row = await self._journal.find_task(self.id)
        if row is None:
            raise TaskNotFound(self.id)
        return row

    async def state(self) -> TaskState:
        return (await self.row()).state

    async def view(self) -> TaskView:
        """Everything the journal knows: steps, states, keys, times."""
        return await self._journal.read_task(self.id)

    async def result(self, timeout_s: float | None = None) -> Any:  # Any: the task's JSON result
        """Wait for the task's end and return its result.

        Raises:
            TaskFailed, TaskCancelled: how it ended.
            TaskParked: a person must decide; ask again afterwards.
            TaskUnfinished: the time is over; the task continues.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        async for row in self.watch():
            if row.state in ENDED or row.state is TaskState.PARKED:
                return await self._outcome(row)
            if end is not None and time.monotonic() >= end:
                break
        raise TaskUnfinished(f"task {self.id} has not ended within {timeout_s:g} s")

    async def watch(self) -> AsyncIterator[TaskRow]:
        """The task's row, again whenever something may have changed, until it ends."""
        while True:
            row = await self.row()
            yield row
            if row.state in ENDED:
                return
            self._check()
            await self._journal.wait_change(timeout_s=POLL_S)

    async def cancel(self, *, by: str = "") -> None:
        """Ask the task to stop. Its calls in flight finish first."""
        await self._journal.drop(InboxItem(task_id=self.id, ordinal="", kind=InboxKind.CANCEL, body={"by": by}))

    async def _outcome(self, row: TaskRow) -> Any:  # Any: the task's JSON result
        newest = await self._journal.read_newest(self.id)
        if newest is None:
            raise ResultErased(task_id=self.id, state=row.state.value)
        match row.state:
            case TaskState.SUCCEEDED:
                return newest.end.result
            case TaskState.CANCELLED:
                raise TaskCancelled(task_id=self.id)
            case TaskState.PARKED:
                rest = newest.rest
                question = rest.question or "its records are damaged"
                raise TaskParked(task_id=self.id, ordinal=rest.ordinal, question=question)
            case _:
                raise TaskFailed(task_id=self.id, kind=newest.end.kind, text=newest.end.text)
