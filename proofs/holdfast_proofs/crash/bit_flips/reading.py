"""Everything a journal answers, as plain values: before a worker touches it, and after."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.app.binder import open_journal
from holdfast.core.journal_address import file_at
from holdfast.errors import HoldfastError
from holdfast.journal.contract import Filter, InboxItem, Journal, TaskRow
from holdfast.journal.records import ENDED, TaskState, TaskView
from holdfast_proofs.crash.bit_flips.furnished import SETTINGS, TASKS, is_at_rest

WORK_S_MAX = 4.0
NOTICES_MAX = 100
_OPEN = frozenset(TaskState) - ENDED


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Facts by a name that a person understands."""

    facts: dict[str, str] = {}


async def read_and_run(path: Path) -> tuple[Answers, str]:
    """What it answers, and what was found wrong with it (empty: nothing)."""
    facts: dict[str, str] = {}
    try:
        journal, _ = await open_journal(file_at(path), create=False)
        try:
            await _read(journal, facts, when="before")
        finally:
            await journal.close()
        await _run(path, facts)
    except HoldfastError as error:
        return Answers(facts=facts), f"{error.code}: {error.message}"
    return Answers(facts=facts), facts.pop("damage", "")


async def _read(journal: Journal, facts: dict[str, str], *, when: str) -> None:
    counts = await journal.count_tasks()
    facts[f"{when}: counts"] = _text({state.value: count for state, count in counts.items()})
    for row in await journal.list_tasks(Filter(limit=1_000)):
        view = await journal.read_task(row.task_id)
        name = f"{when}: task {row.task_id}"
        facts[name] = _text(_row(row) | _view(view))
        facts[f"{name} inbox"] = _text(_inbox(await journal.inbox_of(row.task_id), row))
    notices = await journal.pending_notices(limit=NOTICES_MAX)
    facts[f"{when}: notices"] = _text(notices)


async def _run(path: Path, facts: dict[str, str]) -> None:
    """Serve it until it rests; then only what does not depend on the moment is compared."""
    async with holdfast.open(path, tasks=TASKS, settings=SETTINGS, create=False) as hf:
        try:
            async with asyncio.timeout(WORK_S_MAX):
                await _serve(hf)
        except TimeoutError:
            facts["after: rest"] = f"tasks still wait after {WORK_S_MAX} s"
        for notice in await hf.journal.pending_notices(limit=NOTICES_MAX):
            if notice.kind == "damaged":
                facts["damage"] = notice.text
        for row in await hf.journal.list_tasks(Filter(limit=1_000)):
            name = f"after: task {row.task_id}"
            if "damage" in facts:
                facts[name] = row.state.value
                continue
            view = await hf.journal.read_task(row.task_id)
            steps = {ordinal: (one.state, one.result) for ordinal, one in view.steps.items()}
            facts[name] = _text((row.state, view.outcome, steps))


async def _serve(hf: holdfast.Holdfast) -> None:
    """Wait for rest; whoever watches a task learns where the engine has ended, and why."""
    for row in await hf.journal.list_tasks(Filter(states=_OPEN, limit=1_000)):
        async for _ in hf.task(row.task_id).watch():
            if await is_at_rest(hf):
                return


def _row(row: TaskRow) -> dict[str, Any]:  # Any: any column
    """The row but for times that are only shown or only order what is due already.

    They follow from nothing else in the journal, so that a flip inside of what is possible cannot
    be told; proofs/README.md names them.
    """
    plain = msgspec.structs.asdict(row)
    del plain["changed_ms"]
    if row.state in (TaskState.QUEUED, TaskState.RUNNING):
        del plain["due_ms"]
    return plain


def _inbox(items: list[InboxItem], row: TaskRow) -> list[dict[str, Any]]:  # Any: any field
    """Without the time that is only shown; what an ended task has applied is history."""
    left_out = {"at_ms", *(("applied",) if row.state in ENDED else ())}
    plain = [msgspec.structs.asdict(item) for item in items]
    return [{name: one[name] for name in one.keys() - left_out} for one in plain]


def _view(view: TaskView) -> dict[str, Any]:  # Any: any field of the view
    steps = {
        ordinal: {name: getattr(step, name) for name in step.__struct_fields__} for ordinal, step in view.steps.items()
    }
    plain = {name: getattr(view, name) for name in view.__struct_fields__ if name != "steps"}
    return {**plain, "steps": steps}


def _text(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value, str_keys=True), sort_keys=True)
