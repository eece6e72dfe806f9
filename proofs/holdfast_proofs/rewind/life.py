"""The two lives of a case, each in a process of its own.

The first one copies the journal inside one of its calls, or before all of them, and dies inside a
later one or comes to its end. The second one finds the restored copy and another plan. The plan is
read from where code reads such things: a value of the environment, or the model's answer.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

import holdfast
from holdfast.app.handle import TaskHandle
from holdfast.journal.records import ENDED, StepView, TaskState
from holdfast.layout.engine_settings import Settings
from holdfast_proofs.rewind.cases import Case, Kind, Planned, Side
from holdfast_proofs.rewind.tools import TOOLS, Moments

JOURNAL, COPY, FOUND, SUBMITTED = "journal.db", "copy.db", "found.json", "submitted"
PLAN, MODEL_URL = "REWIND_PLAN", "REWIND_MODEL"
SETTINGS = Settings(pace=0.02, sweep_every_s=0.05, check_after_crash=False)
_RESTS = ENDED | {TaskState.PARKED}


class SeenStep(msgspec.Struct, frozen=True, kw_only=True):
    ordinal: str
    tool: str
    state: str
    number: int | None
    result: Any  # Any: the far end's JSON
    by: str  # who said that it was done, where that was not its own call
    other: bool  # done with other arguments than asked for
    why: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The task in the end, as its journal has it."""

    task_id: str
    state: str
    question: str
    steps: tuple[SeenStep, ...]


@holdfast.task(name="rewound")
async def rewound(run: holdfast.Run) -> list[list[Any]]:
    """Call what the plan says; one that was done otherwise is taken as it was done."""
    told: list[list[Any]] = []
    for one in msgspec.json.decode(os.environ[PLAN], type=tuple[Planned, ...]):
        try:
            told.append([one.tool, await run.call(TOOLS[one.tool], number=one.number)])
        except holdfast.DoneWithOtherArguments as error:
            told.append([one.tool, error.result, error.args_done])
    return told


async def first_life(case: Case, folder: Path) -> None:
    """Until it dies, or the task has come to its end."""
    journal = folder / JOURNAL
    if case.kind is Kind.FORGOTTEN:
        async with holdfast.open(journal, serve=False, settings=SETTINGS):
            pass
        copy_journal(journal, folder / COPY)
    Moments.reached = _Script(case, folder).reached
    await _live(case, folder, copies=case.copy_at == 0 and case.kind is not Kind.FORGOTTEN)


async def second_life(case: Case, folder: Path) -> None:
    """Until the task has come to its end, or to a person."""
    await _live(case, folder)


async def _live(case: Case, folder: Path, *, copies: bool = False) -> None:
    work = _agent() if case.kind is Kind.AGENT else rewound
    request: dict[str, Any] = {"request": "do it"} if case.kind is Kind.AGENT else {}
    journal = folder / JOURNAL
    async with holdfast.open(journal, serve=False, settings=SETTINGS) as hf:
        handle = await hf.submit(work, request_id=case.name, **request)
    (folder / SUBMITTED).write_text(handle.id)
    if copies:
        copy_journal(journal, folder / COPY)
    async with holdfast.open(journal, tasks=[work], tools=TOOLS.values(), settings=SETTINGS) as hf:
        handle = hf.task(handle.id)
        async for row in handle.watch():
            if row.state in _RESTS:
                break
        found = await look(handle)
    (folder / FOUND).write_bytes(msgspec.json.encode(found))


def copy_journal(journal: Path, copy: Path) -> None:
    """By SQLite's backup API, while others may write: as a backup does."""
    fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(fd)
    source = apsw.Connection(str(journal), flags=apsw.SQLITE_OPEN_READONLY)
    target = apsw.Connection(str(copy))
    with target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(100)
    target.close()
    source.close()


async def look(handle: TaskHandle) -> Found:
    row, view = await handle.row(), await handle.view()
    return Found(
        task_id=handle.id,
        state=row.state.value,
        question=view.rest.question,
        steps=tuple(_step(one) for one in view.steps.values() if one.tool in TOOLS),
    )


def _step(step: StepView) -> SeenStep:
    args = cast("dict[str, int]", step.args)
    return SeenStep(
        ordinal=step.ordinal,
        tool=step.tool,
        state=step.state.value,
        number=args.get("number"),
        result=step.result,
        by=step.by,
        other=(found := step.found_at) is not None and found.with_others,
        why=step.question,
    )


class _Script:
    """Copies in one call and dies in a later one; calls are counted as they are sent."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._folder = folder
        self._count = 0

    async def reached(self, side: Side) -> None:
        case = self._case
        if side == "before":
            self._count += 1
        if (self._count, side) == (case.copy_at, case.copy_side):
            copy_journal(self._folder / JOURNAL, self._folder / COPY)
        if (self._count, side) == (case.kill_at, case.kill_side):
            os.kill(os.getpid(), signal.SIGKILL)


def _agent() -> holdfast.Agent:
    endpoint = holdfast.Endpoint(name="scripted", url=os.environ[MODEL_URL], wire="openai")
    model = holdfast.Model("model-1", endpoint, price=holdfast.Price(input=1, output=10), settings={"max_tokens": 100})
    return holdfast.Agent(
        name="rewound-agent", instructions="Do it.", model=model, tools=tuple(TOOLS.values()), plan=False
    )
