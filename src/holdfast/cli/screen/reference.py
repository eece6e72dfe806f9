"""Task and step references from a person: whole ids, or unique beginnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.ids import TASK_ID_CHARS, TaskId, parse_task_prefix
from holdfast.core.ordinal import parse_ordinal
from holdfast.errors import BadReference, TaskNotFound
from holdfast.journal.contract import Filter

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

SHOWN_MAX = 5


async def get_task_id(hf: Holdfast, text: str) -> TaskId:
    """The task that the text names. Raises BadReference, TaskNotFound."""
    prefix = parse_task_prefix(text)
    found = await hf.journal.list_tasks(Filter(prefix=prefix, limit=SHOWN_MAX + 1))
    if not found:
        raise TaskNotFound(prefix if len(prefix) == TASK_ID_CHARS else f"{prefix}...")
    if len(found) > 1:
        ids = ", ".join(row.task_id for row in found[:SHOWN_MAX])
        more = ", ..." if len(found) > SHOWN_MAX else ""
        raise BadReference(f"{prefix} is the beginning of several task ids", hint=f"which one? {ids}{more}")
    return found[0].task_id


async def get_step_place(hf: Holdfast, text: str) -> tuple[TaskId, str]:
    """The step that TASK/ORDINAL names; whether it exists is not checked."""
    task, slash, ordinal = text.partition("/")
    if not slash or not task or not ordinal:
        raise BadReference(f"{text!r} is not a step")
    place = parse_ordinal(ordinal.strip())
    return await get_task_id(hf, task), place
