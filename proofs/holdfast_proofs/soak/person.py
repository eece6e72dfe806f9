"""The person: asks the far end about what is parked, and decides. Never before it is quiet.

A person may be slow; this one is quick, so that the load goes on. It sees what a person sees, the
journal through the public interface and the far end's books, and it decides only what the
journal asks: was it done? A task parked as poison (its workers died three times, at this rate of
kills by no fault of its own) is simply run again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.app.holdfast import Holdfast, get_step
from holdfast.core.ids import TaskId
from holdfast.errors import NotNow, NotSettleable
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState
from holdfast_proofs.soak.books import Books

AT_ONCE = 1_000
_PARKED = frozenset((TaskState.PARKED,))


@dataclass(slots=True)
class Person:
    hf: Holdfast
    books: Books
    settled: dict[str, int] = field(default_factory=lambda: {"done": 0, "run": 0})
    retried: int = 0
    asked: set[str] = field(default_factory=set[str])  # "task/ordinal" of every question
    _answered: dict[TaskId, int] = field(default_factory=dict[TaskId, int])  # records by then

    async def look(self) -> None:
        """Answer every question that can be answered now."""
        found = await self.hf.journal.list_tasks(Filter(states=_PARKED, limit=AT_ONCE, newest_first=False))
        for row in found:
            if self._answered.get(row.task_id) != row.records:
                await self._answer(row.task_id, row.records)

    async def _answer(self, task_id: TaskId, records: int) -> None:
        newest = await self.hf.journal.read_newest(task_id)
        ordinal = str(newest.body.get("ordinal") or "") if newest is not None else ""
        try:
            if ordinal:
                await self._decide(task_id, ordinal)
            else:
                await self.hf.retry(task_id, by="soak")
                self.retried += 1
            self._answered[task_id] = records
        except (NotNow, NotSettleable):
            pass  # not quiet yet, or it has moved on: looked at again in a moment

    async def _decide(self, task_id: TaskId, ordinal: str) -> None:
        _, step = await get_step(self.hf.journal, task_id, ordinal)
        self.asked.add(f"{task_id}/{ordinal}")
        await self.hf.check_settle(task_id, ordinal, "run")
        # Only now: what the books do not hold once it is quiet will never be in them.
        log = self.books.logs[step.tool]
        log.read()
        done = log.find(task_id, ordinal)
        if done:
            await self.hf.settle(task_id, ordinal, "done", result=done[0].id, by="soak")
        else:
            await self.hf.settle(task_id, ordinal, "run", by="soak")
        self.settled["done" if done else "run"] += 1
