"""Which open steps have recorded that they send a secret."""

from __future__ import annotations

from holdfast.core.ordinal import sort_key
from holdfast.errors import JournalDamaged
from holdfast.journal.contract import Filter, Journal
from holdfast.journal.records import ENDED, TaskState
from holdfast.runtime.secrets import pins_of

TASKS_MAX = 10_000


async def find_users(journal: Journal, name: str, *, below: int | None = None) -> list[str]:
    """TASK/ORDINAL of each open step that recorded this secret; only versions below the number.
    Reads the oldest 10,000 open tasks; skips damaged ones."""
    states = frozenset(state for state in TaskState if state not in ENDED)
    rows = await journal.list_tasks(Filter(states=states, limit=TASKS_MAX, newest_first=False))
    found: list[str] = []
    for row in rows:
        try:
            view = await journal.read_task(row.task_id)
        except JournalDamaged:
            continue
        for ordinal in sorted(view.steps, key=sort_key):
            step = view.steps[ordinal]
            version = dict(pins_of(step)).get(name)
            if version is not None and not step.closed and (below is None or version < below):
                found.append(f"{row.task_id}/{ordinal}")
    return found
