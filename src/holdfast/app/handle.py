"""A handle on one task: wait for it, read it, cancel it.

However many handles of a process wait, the journal is looked at once for all of them (`TaskWaits`). The engine of this
process names a task that it ended, so its waiters wake at once. What other processes do is found by a look after the
journal says that something changed, and at most every `LOOK_S`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.core.ids import TaskId
from holdfast.errors import ResultErased, TaskCancelled, TaskFailed, TaskNotFound, TaskParked, TaskUnfinished
from holdfast.host.who import user_at_host
from holdfast.journal.contract import InboxItem, InboxKind, Journal, TaskRow
from holdfast.journal.records import ENDED, TaskState, TaskView
from holdfast.journal.unserved import find_unserved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

POLL_S = 0.05
LOOK_S, LOOK_ANYWAY_S = 0.05, 1.0


class TaskWaits:
    """All who wait in this process for the end of a task. `check` raises the error that ended the engine."""

    def __init__(self, journal: Journal, *, check: Callable[[], None] = lambda: None) -> None:
        self.journal = journal
        self.check = check
        self._waiting: dict[TaskId, set[asyncio.Future[None]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._fresh = False  # somebody waits for whom nobody has looked yet

    def note_end(self, task_id: TaskId) -> None:
        """Wake those who wait for this task; each of them reads it again."""
        for waiter in self._waiting.pop(task_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, task_id: TaskId) -> None:
        """Return when the task may have ended or may be parked."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, set()).add(waiter)
        self._fresh = True
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="holdfast handles")
        try:
            await waiter
        finally:
            others = self._waiting.get(task_id, set())
            others.discard(waiter)
            if not others:
                self._waiting.pop(task_id, None)
            if not self._waiting:
                self._stop_looking()

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        seen, next_look = -1, 0.0
        while True:
            try:
                self.check()
                before, seen = seen, await self.journal.wait_change(timeout_s=LOOK_S, seen=seen)
                # Not every change of a state is told: a claim parks a damaged task, for one.
                if seen != before or self._fresh or loop.time() >= next_look:
                    self._fresh, next_look = False, loop.time() + LOOK_ANYWAY_S
                    for task_id in await self.journal.find_over([*self._waiting]):
                        self.note_end(task_id)
            except Exception as error:  # noqa: BLE001 - raised to everyone who waits
                self._fail(error)
                return
            await asyncio.sleep(LOOK_S)

    def _fail(self, error: Exception) -> None:
        self._looking = None
        for waiter in [one for waiting in self._waiting.values() for one in waiting if not one.done()]:
            waiter.set_exception(error)
        self._waiting.clear()


class TaskHandle:
    """One task of one journal."""

    def __init__(self, waits: TaskWaits, task_id: TaskId, *, created: bool = False) -> None:
        self._journal = waits.journal
        self._waits = waits
        self.task_id = task_id
        self.created = created  # False if the request id found an earlier task

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id})"

    @property
    def id(self) -> TaskId:
        """Another name of `task_id`."""
        return self.task_id

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
        row = await self.row()
        try:
            async with asyncio.timeout(timeout_s):
                while row.state not in ENDED and row.state is not TaskState.PARKED:
                    self._waits.check()
                    await self._waits.wait(self.id)
                    row = await self.row()
        except TimeoutError:
            why = [f": {one.text}" for one in await find_unserved(self._journal) if one.keeps(row)]
            raise TaskUnfinished(f"task {self.id} has not ended within {timeout_s:g} s{''.join(why)}") from None
        return await self._outcome(row)

    async def watch(self) -> AsyncIterator[TaskRow]:
        """The task's row, again whenever something may have changed, until it ends."""
        seen = None
        while True:
            row = await self.row()
            yield row
            if row.state in ENDED:
                return
            self._waits.check()
            seen = await self._journal.wait_change(timeout_s=POLL_S, seen=seen)

    async def cancel(self, *, by: str = "") -> None:
        """Ask the task to stop. Its calls in flight finish first."""
        body = {"by": by or user_at_host()}
        await self._journal.drop(InboxItem(task_id=self.id, ordinal="", kind=InboxKind.CANCEL, body=body))

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
                raise TaskFailed(task_id=self.id, kind=newest.end.kind, text=newest.end.text, where=newest.end.where)
