"""Tasks that wait and that no live worker serves: said by `submit`, `doctor`, a notice and a metric.

A session records the names of the tasks that it serves. A task whose name no live session has would wait without a word
for ever: its worker is down, has another app, or never existed. So would a task that is pinned to a build which no live
session serves (`journal/builds.py`). A session of an older version does not say what it
serves; where one lives, nothing is said, because nothing is known. A scope waits for its own program and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.notices import serves_it, waits_unserved
from holdfast.journal.builds import pinned_name
from holdfast.journal.contract import Journal, SessionRow, TaskRow, WaitingTasks


class Unserved(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    build: str = ""
    tasks: int
    since_ms: int
    age_ms: int

    @property
    def text(self) -> str:
        return waits_unserved(self.name, self.tasks, self.age_ms, build=self.build)

    @property
    def hint(self) -> str:
        return serves_it(self.name, build=self.build)

    def keeps(self, row: TaskRow) -> bool:
        """Whether this task is one of them."""
        return (row.name, row.build) == (self.name, self.build)


async def find_unserved(journal: Journal, *, parked: bool = False) -> list[Unserved]:
    """By name and build, the one that has waited for longest first. `parked`: see `Journal.count_waiting`."""
    waiting = await journal.count_waiting(parked=parked)
    if not waiting:
        return []
    now_ms, found = journal.now_ms(), unserved(waiting, await journal.list_sessions())
    return [
        Unserved(
            name=one.name, build=one.build, tasks=one.tasks, since_ms=one.since_ms, age_ms=max(0, now_ms - one.since_ms)
        )
        for one in sorted(found, key=lambda one: one.since_ms)
    ]


def unserved(waiting: Iterable[WaitingTasks], sessions: Iterable[SessionRow]) -> list[WaitingTasks]:
    served: set[str] = set()
    for session in sessions:
        if session.alive and session.serves is None:
            return []
        if session.alive and session.serves is not None:
            served |= session.serves
    return [one for one in waiting if pinned_name(one.name, one.build) not in served and not one.name.startswith("@")]
