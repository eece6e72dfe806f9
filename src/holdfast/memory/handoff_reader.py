"""Gathers the hand-off from the journal, reading again only the tasks that have changed.

Rows are cheap and read at each look; records are not. A task's facts are kept with its row: while
the row stays the same, so do they, unless its inbox holds something. Tasks that this process runs
are taken from its own folded views and cost no read at all. Of ended tasks the newest few are
remembered, for what changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.core.ids import TaskId
from holdfast.errors import JournalDamaged, TaskNotFound
from holdfast.journal.contract import Filter, InboxItem, Journal, TaskRow
from holdfast.journal.records import ENDED, TaskState, TaskView
from holdfast.memory.handoff import LINES_MAX, TASKS_MAX, Fact, Handoff, bounded, first_lines
from holdfast.memory.handoff_facts import RANK_DECIDE, TaskFacts, death_facts, ended_facts, facts_of

OPEN = frozenset(TaskState) - ENDED
# Those that need a person are read first: a long queue must not push them out.
PRESSING = frozenset((TaskState.PARKED, TaskState.WAITING, TaskState.RUNNING))
ROWS_MAX = 200
ENDED_LOOKED_AT = 200
ENDED_KEPT = 20
SHORT_RECORDS = 100
FOLD_LOOKS, FOLD_LOOK_S = 20, 0.002

Views = Callable[[], Iterable[TaskView]]


class HandoffReader:
    """Reads the four answers from one journal, again and again."""

    def __init__(self, journal: Journal, *, agent: str, agent_id: Callable[[], str], held: Views = lambda: ()) -> None:
        self._journal = journal
        self._agent = agent
        self._agent_id = agent_id
        self._held = held
        self._known: dict[TaskId, tuple[object, TaskFacts]] = {}
        self._ended: dict[TaskId, TaskFacts] = {}
        self._first = True
        self.open_tasks: tuple[TaskFacts, ...] = ()
        self.more = 0
        self.troubles: tuple[str, ...] = ()

    async def gather(self) -> Handoff:
        """The hand-off of this moment. Raises JournalBusy and what else reading may."""
        at_ms = self._journal.now_ms()  # before anything is read: all that is older is in it
        held = {view.task_id: view for view in self._held()}
        alive = {row.session_id for row in await self._journal.list_sessions() if row.alive}
        inbox = await self._inbox()
        rows = await self._open_rows()
        facts = [await self._facts(row, held.get(row.task_id), alive, inbox.get(row.task_id, ())) for row in rows]
        await self._note_ended({row.task_id for row in rows})
        self.open_tasks = tuple(sorted(facts, key=lambda one: one.rank))
        counts = await self._journal.count_tasks()
        self.more = max(0, sum(counts.get(state, 0) for state in OPEN) - len(rows))
        return self.compose(at_ms)

    def compose(self, at_ms: int) -> Handoff:
        """What was gathered last, with the troubles that are known by now."""
        tasks = self.open_tasks
        every = (*tasks, *self._ended.values())
        pending = [fact for task in tasks for fact in task.pending]
        pending += [Fact(at_ms=at_ms, text=f"fix {why}", rank=RANK_DECIDE) for why in self.troubles]
        return Handoff(
            agent=self._agent,
            agent_id=self._agent_id(),
            at_ms=at_ms,
            where=first_lines([task.where for task in tasks], limit=TASKS_MAX, more=self.more),
            pending=bounded(pending, "pending", more=self.more),
            # What was decided in open tasks first: it still has to be acted on.
            decided=bounded(
                (
                    replace(fact, rank=rank)
                    for rank, part in enumerate((tasks, self._ended.values()))
                    for task in part
                    for fact in task.decided
                ),
                "decided",
            ),
            changed=_newest([*(fact for task in every for fact in task.changed), *death_facts(every)]),
        )

    async def _open_rows(self) -> list[TaskRow]:
        pressing = await self._journal.list_tasks(Filter(states=PRESSING, limit=ROWS_MAX))
        left = ROWS_MAX - len(pressing)
        if left <= 0:
            return pressing
        # The oldest of the rest: they come next.
        rest = Filter(states=OPEN - PRESSING, limit=left, newest_first=False)
        return [*pressing, *await self._journal.list_tasks(rest)]

    async def _inbox(self) -> dict[TaskId, list[InboxItem]]:
        """What was dropped and not concluded yet, of all tasks."""
        found: dict[TaskId, list[InboxItem]] = {}
        for item in await self._journal.read_inbox(after=0):
            found.setdefault(item.task_id, []).append(item)
        return found

    async def _facts(
        self, row: TaskRow, view: TaskView | None, alive: set[str], waiting: Sequence[InboxItem]
    ) -> TaskFacts:
        held = row.session_id in alive or view is not None
        if view is not None and not await _caught_up(view, row):
            view = None  # its newest commit is not folded yet: the journal knows more
        known = self._known.get(row.task_id)
        now = (
            row.records if view is None else view.seq + 1,
            row.state,
            row.cancel_asked,
            row.due_ms,
            held,
            tuple(item.number for item in waiting),
        )
        if known is not None and known[0] == now:
            return known[1]
        if view is None:
            view = await self._read(row)
        facts = facts_of(row, view, waiting, held=held)
        self._known[row.task_id] = (now, facts)
        return facts

    async def _read(self, row: TaskRow) -> TaskView | None:
        if row.erased:
            return None
        try:
            return await self._journal.read_task(row.task_id)
        except JournalDamaged:
            return None  # its worker parks it and tells a person; here it is only named

    async def _note_ended(self, still_open: set[TaskId]) -> None:
        """Remember what has ended; a long one that came and went between two looks by its last
        word alone."""
        limit = ENDED_LOOKED_AT if self._first else ENDED_KEPT
        found = await self._journal.list_tasks(Filter(states=ENDED, limit=limit))
        newest = sorted(found, key=lambda row: row.changed_ms)[-ENDED_KEPT:]
        whole = {row.task_id for row in newest} if self._first else set[TaskId]()
        self._first = False
        rows = {row.task_id: row for row in newest}
        for task_id in [one for one in self._known if one not in still_open]:
            del self._known[task_id]
            row = rows.get(task_id) or await self._journal.find_task(task_id)
            if row is not None and row.state in ENDED:
                rows[task_id] = row
                whole.add(task_id)
        for task_id, row in rows.items():
            if task_id not in self._ended or task_id in whole:
                short = row.records <= SHORT_RECORDS
                self._ended[task_id] = await self._ended_facts(row, whole=short or task_id in whole)
        if len(self._ended) > ENDED_KEPT:
            by_age = sorted(self._ended.values(), key=lambda one: one.ended_ms)
            self._ended = {TaskId(one.task_id): one for one in by_age[-ENDED_KEPT:]}

    async def _ended_facts(self, row: TaskRow, *, whole: bool) -> TaskFacts:
        try:
            if whole:
                return facts_of(row, await self._read(row))
            return ended_facts(row, await self._journal.read_newest(row.task_id))
        except (TaskNotFound, JournalDamaged):
            return facts_of(row, None)


async def _caught_up(view: TaskView, row: TaskRow) -> bool:
    """Whether a view of this process has what the row counts: a commit is folded at once after
    it, and waiting for that instant is cheaper than reading a long task again."""
    for _ in range(FOLD_LOOKS):
        if view.seq + 1 >= row.records:
            return True
        await asyncio.sleep(FOLD_LOOK_S)
    return False


def _newest(facts: Sequence[Fact]) -> tuple[str, ...]:
    """The newest changes; older ones are not counted: they are history, not left out."""
    newest = sorted(facts, key=lambda fact: -fact.at_ms)[: LINES_MAX["changed"]]
    return bounded(newest, "changed")
