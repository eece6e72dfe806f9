"""Gathers the hand-off from the journal, reading again only the tasks that have changed.

Rows are cheap and read at each look; records are not. A task's facts are kept with its row: while
the row stays the same, so do they, unless its inbox holds something. Tasks that this process runs,
and those that have ended here since the last look, are taken from its own folded views and cost no
read at all. Of ended tasks the newest few are remembered, for what changed.

The hand-off of an adopted agent that has no journal is what its own files say. Nothing is known of them but
their names, their times and their lines, so nothing more is said: the newest session and daily
log, open boxes, lines about decisions, files that changed. All of it is quoted: these are
the words of others. Links are not read, and of each file at most the last part is.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.ids import TaskId
from holdfast.errors import JournalDamaged, TaskNotFound
from holdfast.journal.contract import Filter, InboxItem, Journal, TaskRow
from holdfast.journal.records import ENDED, TaskState, TaskView
from holdfast.layout.covered import CoveredKind, CoveringRules, look
from holdfast.layout.covering import workspace_in
from holdfast.memory.handoff import FILES, LINES_MAX, TASKS_MAX, Fact, Handoff, bounded, first_lines, moment, quoted
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

    def __init__(
        self,
        journal: Journal,
        *,
        agent: str,
        agent_id: Callable[[], str],
        held: Views = lambda: (),
        ended_here: deque[TaskView] | None = None,
    ) -> None:
        self.journal = journal
        self._agent = agent
        self._agent_id = agent_id
        self._held, self._ended_here = held, deque[TaskView]() if ended_here is None else ended_here
        self._known: dict[TaskId, tuple[object, TaskFacts]] = {}
        self._ended: dict[TaskId, TaskFacts] = {}
        self._first = True
        self.open_tasks: tuple[TaskFacts, ...] = ()
        self.more = 0
        self.troubles: tuple[str, ...] = ()

    def holds_tasks(self) -> bool:
        """Whether this process runs tasks: what they do is in its memory before the journal shows a change."""
        return any(True for _ in self._held())

    async def gather(self) -> Handoff:
        """The hand-off of this moment. Raises JournalBusy and what else reading may."""
        at_ms = self.journal.now_ms()  # before anything is read: all that is older is in it
        held = {view.task_id: view for view in self._held()}
        alive = {row.session_id for row in await self.journal.list_sessions() if row.alive}
        inbox = await self._inbox()
        rows = await self._open_rows()
        facts = [await self._facts(row, held.get(row.task_id), alive, inbox.get(row.task_id, ())) for row in rows]
        await self._note_ended({row.task_id for row in rows})
        self.open_tasks = tuple(sorted(facts, key=lambda one: one.rank))
        counts = await self.journal.count_tasks()
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
            decided=bounded([*_ranked(tasks, 0), *_ranked(self._ended.values(), 1)], "decided"),
            changed=_newest([*(fact for task in every for fact in task.changed), *death_facts(every)]),
        )

    async def _open_rows(self) -> list[TaskRow]:
        pressing = await self.journal.list_tasks(Filter(states=PRESSING, limit=ROWS_MAX))
        if len(pressing) >= ROWS_MAX:
            return pressing
        # The oldest of the rest: they come next.
        rest = Filter(states=OPEN - PRESSING, limit=ROWS_MAX - len(pressing), newest_first=False)
        return [*pressing, *await self.journal.list_tasks(rest)]

    async def _inbox(self) -> dict[TaskId, list[InboxItem]]:
        """What was dropped and not concluded yet, of all tasks."""
        found: dict[TaskId, list[InboxItem]] = {}
        for item in await self.journal.read_inbox(after=0):
            found.setdefault(item.task_id, []).append(item)
        return found

    async def _facts(
        self, row: TaskRow, view: TaskView | None, alive: set[str], waiting: Sequence[InboxItem]
    ) -> TaskFacts:
        held = row.session_id in alive or view is not None
        if view is not None and not await _caught_up(view, row):
            view = None  # its newest commit is not folded yet: the journal knows more
        known = self._known.get(row.task_id)
        records = row.records if view is None else view.seq + 1
        numbers = tuple(item.number for item in waiting)
        now = (records, row.state, row.cancel_asked, row.due_ms, held, numbers)
        if known is not None and known[0] == now:
            return known[1]
        if view is None:
            view = await self._read(row)
        facts = facts_of(row, view, waiting, held=held, before=None if known is None else known[1])
        self._known[row.task_id] = (now, facts)
        return facts

    async def _read(self, row: TaskRow) -> TaskView | None:
        if row.erased:
            return None
        try:
            return await self.journal.read_task(row.task_id)
        except JournalDamaged:
            return None  # its worker parks it and tells a person; here it is only named

    async def _note_ended(self, still_open: set[TaskId]) -> None:
        """Remember what has ended; a long one that came and went between two looks by its last word alone."""
        limit = ENDED_LOOKED_AT if self._first else ENDED_KEPT
        found = await self.journal.list_tasks(Filter(states=ENDED, limit=limit))
        rows = {row.task_id: row for row in sorted(found, key=_changed_at)[-ENDED_KEPT:]}
        whole = set(rows) if self._first else set[TaskId]()
        self._first = False
        for task_id in [one for one in self._known if one not in still_open]:
            del self._known[task_id]
            row = rows.get(task_id) or await self.journal.find_task(task_id)
            if row is not None and row.state in ENDED:
                rows[task_id] = row
                whole.add(task_id)
        views = {view.task_id: view for view in self._ended_here}
        self._ended_here.clear()
        for row in sorted(rows.values(), key=_changed_at)[-ENDED_KEPT:]:  # others would be forgotten at once
            if row.task_id not in self._ended or row.task_id in whole:
                all_of_it = row.records <= SHORT_RECORDS or row.task_id in whole
                view = views.get(row.task_id)
                self._ended[row.task_id] = await self._ended_facts(row, view, whole=all_of_it)
        if len(self._ended) > ENDED_KEPT:
            by_age = sorted(self._ended.values(), key=lambda one: one.ended_ms)
            self._ended = {TaskId(one.task_id): one for one in by_age[-ENDED_KEPT:]}

    async def _ended_facts(self, row: TaskRow, view: TaskView | None, *, whole: bool) -> TaskFacts:
        try:
            if view is not None and view.seq + 1 >= row.records:
                return facts_of(row, view)
            if whole:
                return facts_of(row, await self._read(row))
            return ended_facts(row, await self.journal.read_newest(row.task_id))
        except (TaskNotFound, JournalDamaged):
            return facts_of(row, None)


def _changed_at(row: TaskRow) -> int:
    return row.changed_ms


async def _caught_up(view: TaskView, row: TaskRow) -> bool:
    """Whether a view of this process has what the row counts: a commit is folded at once after
    it, and waiting for that instant is cheaper than reading a long task again."""
    for _ in range(FOLD_LOOKS):
        if view.seq + 1 >= row.records:
            return True
        await asyncio.sleep(FOLD_LOOK_S)
    return False


def _ranked(tasks: Iterable[TaskFacts], rank: int) -> Iterable[Fact]:
    return (replace(fact, rank=rank) for task in tasks for fact in task.decided)


def _newest(facts: Sequence[Fact]) -> tuple[str, ...]:
    """The newest changes; older ones are not counted: they are history, not left out."""
    newest = sorted(facts, key=lambda fact: -fact.at_ms)[: LINES_MAX["changed"]]
    return bounded(newest, "changed")


TAIL_BYTES = 64 * 1024
LOGS_READ = 2
TASK_FILES = ("HEARTBEAT.md", "TODO.md")
_OPEN_BOX = re.compile(r"^\s*[-*] \[ \] (.+)$", re.MULTILINE)
_DECIDED = re.compile(r"^\s*[-*] (.*\b(?:decided|decision|agreed)\b.*)$", re.MULTILINE | re.I)
_DAY = re.compile(r"memory/\d{4}-\d{2}-\d{2}[^/]*\.md")
_SESSION = re.compile(r"(?:.*/)?sessions/[^/]+\.jsonl")


@dataclass(frozen=True, slots=True)
class SeenFile:
    path: str
    at_ms: int


def foreign_handoff(folder: Path, rules: CoveringRules, *, agent: str, agent_id: str, at_ms: int) -> Handoff:
    """What the files of the folder say now."""
    files = list(_files(folder, rules))
    inner = workspace_in(one.path for one in files)
    days = sorted((one for one in files if _DAY.fullmatch(one.path.removeprefix(inner))), key=lambda one: one.path)
    sessions = sorted((one for one in files if _SESSION.fullmatch(one.path)), key=lambda one: one.at_ms)
    newest = [*sessions[-1:], *days[-1:]]
    logs = [one.path for one in reversed(days[-LOGS_READ:])]
    return Handoff(
        agent=agent,
        agent_id=agent_id,
        at_ms=at_ms,
        basis=FILES,
        where=tuple(_where(folder, one) for one in newest),
        pending=_lines(folder, (*(inner + name for name in TASK_FILES), *logs), _OPEN_BOX, "pending", files),
        decided=_lines(folder, (*logs, f"{inner}MEMORY.md"), _DECIDED, "decided", files),
        changed=_changed(files),
    )


def _where(folder: Path, one: SeenFile) -> str:
    last = next((line for line in reversed(_tail(folder, one.path).splitlines()) if line), "")
    return f"{quoted(one.path)}, written {moment(one.at_ms)[:19]}, ends with {quoted(last.strip())}"


def _lines(
    folder: Path, paths: Iterable[str], pattern: re.Pattern[str], section: str, files: list[SeenFile]
) -> tuple[str, ...]:
    times = {one.path: one.at_ms for one in files}
    found: list[Fact] = []
    for path in paths:
        if path in times:
            found += [
                Fact(at_ms=-number, text=f"{path}: {quoted(match.strip())}")
                for number, match in enumerate(pattern.findall(_tail(folder, path)), len(found))
            ]
    return bounded(found, section)


def _changed(files: list[SeenFile]) -> tuple[str, ...]:
    newest = sorted(files, key=lambda one: (-one.at_ms, one.path))[: LINES_MAX["changed"]]
    texts = ((one.at_ms, f"{moment(one.at_ms)[:19]} {quoted(one.path)} was written") for one in newest)
    return bounded([Fact(at_ms=at_ms, text=text) for at_ms, text in texts], "changed")


def _files(folder: Path, rules: CoveringRules) -> Iterable[SeenFile]:
    for entry in look(folder, rules):
        ours = rules.own and (entry.path == rules.own or entry.path.startswith(f"{rules.own}/"))
        if entry.kind is CoveredKind.FILE and not ours and "/.git/" not in f"/{entry.path}":
            try:
                at_ms = os.lstat(folder / entry.path).st_mtime_ns // 1_000_000
            except OSError:
                continue
            yield SeenFile(entry.path, max(0, at_ms))


def _tail(folder: Path, path: str) -> str:
    """The last part of a file, as text; empty where it is not one any more."""
    try:
        fd = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(fd)
        whole = os.pread(fd, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES)) if stat.S_ISREG(status.st_mode) else b""
        return whole.decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
