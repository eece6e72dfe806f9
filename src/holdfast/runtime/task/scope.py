"""Scopes: durable calls from a foreign loop (a web handler, another agent framework).

A scope is a task whose steps are named by the caller. The weaker rule: the caller must name
slots stably, because nothing replays its code. Each call is recorded, keyed and reconciled like
a step of a task; asked for again under the same slot it gives the recorded answer.

A scope that is given back while one of its calls is in doubt goes to the queue, where a worker
that knows the tool settles it; one that does not know it parks it: no doubt is silent.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from holdfast.core.ordinal import slot_ordinal
from holdfast.core.ports import Notice
from holdfast.core.step import StepState
from holdfast.errors import (
    Cancelled,
    Misuse,
    RequestConflict,
    RunFenced,
    SessionLost,
    Signal,
    Suspended,
    TaskCancelled,
    TaskParked,
)
from holdfast.journal.contract import Change, InboxKind
from holdfast.journal.records import Body, Entry, Kind, StepView, TaskState
from holdfast.runtime.session.task_writer import Book
from holdfast.runtime.step.steps import Steps
from holdfast.runtime.task.execute import approval_notice
from holdfast.runtime.tool.tool import Tool, check_tool


class Scope:
    """An open scope. Calls of different slots may run at the same time."""

    def __init__(self, name: str, book: Book, steps: Steps) -> None:
        self.name = name
        self._book = book
        self._steps = steps
        self._turns: dict[str, asyncio.Lock] = {}
        book.may_rest = False  # the caller waits for the answer

    @property
    def task_id(self) -> str:
        return self._book.view.task_id

    @property
    def scratch(self) -> NoReturn:
        raise Misuse(
            "a scope has no scratch folder: nothing replays the code around it",
            hint="use run.scratch in a task, or a folder of your own",
        )

    async def call(self, tool: Tool[..., Any], /, *, slot: str, **args: Any) -> Any:  # Any: JSON
        """The tool's result under this slot: done now, or recorded before.

        Raises RequestConflict where the slot was used with another tool or other arguments,
        TaskParked where a person must decide.
        """
        check_tool(tool)
        args = self._steps.taken(tool, args)
        ordinal = slot_ordinal(slot)
        if self._book.secrets.active:
            self._book.secrets.check_input(slot, what="the name of the slot")
        turn = self._turns.setdefault(ordinal, asyncio.Lock())
        async with turn:
            try:
                result = await self._steps.perform(tool, ordinal, args)
                await self._book.flush()
                return result
            except Suspended as signal:
                raise self._explained(signal, slot, ordinal) from None
            except RunFenced:
                raise SessionLost(f"scope {self.name}: this session is over") from None
            except Signal:
                raise TaskCancelled(task_id=self.task_id) from None

    def _explained(self, signal: Suspended, slot: str, ordinal: str) -> Exception:
        if signal.reason.startswith("diverged"):
            return RequestConflict(task_id=self.task_id, request_id=slot, name=f"scope {self.name}")
        step = self._book.step(ordinal)
        asked = step.question if step is not None else ""
        if signal.reason == "approval":
            asked = "it waits for a person's yes (`holdfast approval list`)"
        return TaskParked(task_id=self.task_id, ordinal=ordinal, question=asked or signal.reason)

    async def release(self) -> None:
        """Give the scope back, for another process or a later day."""
        if not self._book.fenced:
            state = TaskState.QUEUED if _in_doubt(self._book) else None
            await _rest(self._book, state)


async def settle_scope(book: Book, steps: Steps, tools: dict[str, Tool[..., Any]]) -> TaskState | None:
    """A scope whose process died: bring what it left open to its end, so no doubt is silent."""
    book.may_rest = False
    try:
        for step in list(book.view.steps.values()):
            tool = tools.get(step.tool)
            if tool is not None and not step.closed and step.state is not StepState.PLANNED:
                await _settle_one(steps, step, tool)
        doubtful = _in_doubt(book)
        strange = next((step for step in doubtful if step.tool not in tools), None)
        if strange is not None:
            return await _rest(book, TaskState.PARKED, strange)
        # With its tool at hand it is in doubt only because this worker stops: another goes on.
        return await _rest(book, TaskState.QUEUED if doubtful else None)
    except RunFenced:
        return None


async def _settle_one(steps: Steps, step: StepView, tool: Tool[..., Any]) -> None:
    try:
        await steps.settle_open(tool, step)
    except (Suspended, Cancelled):
        return


def _in_doubt(book: Book) -> list[StepView]:
    """Steps that may have had an effect and are neither closed nor parked."""
    return [
        step
        for step in book.view.steps.values()
        if step.step is not None and not step.closed and step.state is not StepState.PARKED and step.step.maybe_sent > 0
    ]


async def _rest(book: Book, state: TaskState | None, strange: StepView | None = None) -> TaskState | None:
    parked = [s for s in book.view.steps.values() if s.step and s.state is StepState.PARKED]
    state = state or (TaskState.PARKED if parked else TaskState.WAITING)
    asks = any(s.step and s.state is StepState.PLANNED for s in book.view.steps.values())
    body: Body = {"state": state.value, "why": "approval" if asks else "released"}
    notice = approval_notice(book) if asks else None
    if parked:
        body |= {"ordinal": parked[0].ordinal, "question": parked[0].question}
    elif strange is not None:
        question = f"was it done? No worker here knows the tool {strange.tool}"
        body |= {"ordinal": strange.ordinal, "question": question}
        notice = _unknown_tool_notice(book, strange, question)
    # What woke it is answered by its having run; unanswered it would be read again for ever.
    retries = [item.number for item in book.inbox if item.kind is InboxKind.RETRY]
    change = Change(state=state, notice=notice)
    try:
        await book.write([Entry(kind=Kind.RESTED, body=body)], change=change, applied=retries)
    except RunFenced:
        return None
    return state


def _unknown_tool_notice(book: Book, step: StepView, question: str) -> Notice:
    task_id = book.view.task_id
    return Notice(
        notice_id=f"parked/{task_id}/{step.ordinal}/{book.hold.epoch}",
        kind="parked",
        task_id=task_id,
        ordinal=step.ordinal,
        text=f"task {task_id} step {step.ordinal} ({step.tool}) is parked: {question}",
        hint=f"serve it with the tool, or `holdfast effect show {task_id}/{step.ordinal}`",
        at_ms=book.journal.now_ms(),
    )
