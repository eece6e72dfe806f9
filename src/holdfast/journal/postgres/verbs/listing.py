"""The list of tasks."""

from __future__ import annotations

from typing import Any

from holdfast.core.ids import task_id_bytes
from holdfast.journal.builds import MARK
from holdfast.journal.contract import Filter, TaskRow
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.rows import TASK_COLUMNS, TASK_FROM
from holdfast.journal.sqlite.rows import task_row
from holdfast.journal.sqlite.verbs.tasks import prefix_range


async def list_tasks(link: Link, filter: Filter) -> list[TaskRow]:
    where, values = ["true"], list[Any]()
    if filter.states is not None:
        where.append("k.state = ANY(%s)")
        values.append([state.value for state in filter.states])
    if filter.name is not None:
        where.append("(k.name = %s OR starts_with(k.name, %s))")  # of any build
        values.extend((filter.name, filter.name + MARK))
    if filter.prefix:
        where.append("k.task_id BETWEEN %b AND %b")
        values.extend(prefix_range(filter.prefix))
    if filter.after is not None:
        where.append(f"k.t {'<' if filter.newest_first else '>'} (SELECT t FROM $s.task WHERE task_id = %b)")
        values.append(task_id_bytes(filter.after))
    order = "DESC" if filter.newest_first else "ASC"
    rows = await link.run(
        f"SELECT {TASK_COLUMNS} {TASK_FROM} WHERE {' AND '.join(where)} ORDER BY k.t {order} LIMIT %s",
        (*values, filter.limit),
    )
    return [task_row(row) for row in rows]
