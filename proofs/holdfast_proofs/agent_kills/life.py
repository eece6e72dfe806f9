"""A program of a trial: opens the journal, submits, answers what a person is asked, waits.

Killed or not, it is the same program; the second one has a scratch folder of its own and finds
nothing in it. A person is played by the program itself: every question is granted, and granted
again by the next program where the answer died with the first.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.app.handle import TaskHandle
from holdfast.app.loading import App
from holdfast.errors import HoldfastError, NotNow
from holdfast.host import manifest as manifests
from holdfast.journal.contract import Journal
from holdfast.journal.records import ENDED, TaskState, TaskView
from holdfast.runtime.task.content import NO_PREFIX, content_bytes, digest_of, link
from holdfast.runtime.task.talk import asked_of, asks_of, messages_of
from holdfast.views.unfinished import list_approvals
from holdfast_proofs.crash.sweep import SETTINGS

JOURNAL = "journal.db"
_RESTS = ENDED | {TaskState.PARKED}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The task in the end."""

    task_id: str
    state: str
    question: str = ""
    answer: Any = None  # Any: the task's JSON result
    files: dict[str, tuple[str, ...]] = {}  # digests of the chunks, by path
    asks: int = 0
    claims: int = 0
    torn: tuple[str, ...] = ()  # model steps whose prefix is not what is recorded


async def live(app: App, request: dict[str, Any], name: str, folder: Path, scratch: Path, found: Path | None) -> None:
    """Bring the task to its end, or to a person who has to decide about an effect.

    The name is the trial's: journals of one template have one key, and another request id makes
    another task with effect keys of its own.
    """
    settings = replace(SETTINGS, scratch_folder=str(scratch))
    tasks, tools = app.tasks.values(), app.tools.values()
    async with holdfast.open(folder / JOURNAL, tasks=tasks, tools=tools, settings=settings) as hf:
        handle = await hf.submit(next(iter(tasks)), request_id=name, **request)
        while (await handle.state()) not in _RESTS:
            for one in await list_approvals(hf.journal):
                with contextlib.suppress(NotNow):
                    await hf.approve(one.task_id, one.ordinal, granted=True, by="the trial")
            await hf.journal.wait_change(timeout_s=0.05)
        if found is not None:
            found.write_bytes(msgspec.json.encode(await look(hf.journal, handle)))


async def look(journal: Journal, handle: TaskHandle) -> Found:
    row, view = await handle.row(), await handle.view()
    return Found(
        task_id=handle.id,
        state=row.state.value,
        question=view.rest.question,
        answer=view.end.result,
        files=await _files(journal, view),
        asks=len(asks_of(view)),
        claims=len(view.claims),
        torn=tuple(_torn(view)),
    )


async def _files(journal: Journal, view: TaskView) -> dict[str, tuple[str, ...]]:
    if view.files is None or not view.files.newest:
        return {}
    manifest = manifests.decode(await journal.get_blob(view.files.newest))
    return {file.path: file.chunks for file in manifest.files}


def _torn(view: TaskView) -> list[str]:
    """Model steps whose recorded prefix is not that of the messages they name."""
    wrong: list[str] = []
    for step in asks_of(view):
        try:
            asked = asked_of(step)
            prefix, count = NO_PREFIX, 0
            for message, _ in messages_of(view, step.ordinal):
                prefix = link(prefix, digest_of(content_bytes(message)))
                count += 1
            if (prefix, count) != (asked.prefix, asked.count):
                wrong.append(step.ordinal)
        except HoldfastError as error:
            wrong.append(f"{step.ordinal}: {error.message}")
    return wrong
