"""Scopes: durable calls from a foreign loop (a web handler, another agent framework).

A scope is a task whose steps are named by the caller. The weaker rule: the caller must name
slots stably, because nothing replays its code. Each call is recorded, keyed and reconciled like
a step of a task; asked for again under the same slot it gives the recorded answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.ordinal import slot_ordinal
from holdfast.core.step import StepState
from holdfast.errors import (
    Fenced,
    RequestConflict,
    SessionLost,
    Signal,
    Suspended,
    TaskCancelled,
    TaskParked,
)
from holdfast.journal.contract import Change, InboxKind
from holdfast.journal.records import Entry, Kind, StepView, TaskState
from holdfast.runtime.book import Book
from holdfast.runtime.execute import approval_notice
from holdfast.runtime.steps import Steps
from holdfast.runtime.tool import Tool


class Scope:
    """An open scope. Calls of different slots may run at the same time."""

    def __init__(self, name: str, book: Book, steps: Steps) -> None:
        self.name = name
        self._book = book
        self._steps = steps
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def task_id(self) -> str:
        return self._book.view.task_id

    async def call(self, tool: Tool[..., Any], /, *, slot: str, **args: Any) -> Any:  # Any: JSON
        """The tool's result under this slot: done now, or recorded before.

        Raises RequestConflict where the slot was used with another tool or other arguments,
        TaskParked where a person must decide.
        """
        tool.check_args(args)
        ordinal = slot_ordinal(slot)
        turn = self._turns.setdefault(ordinal, asyncio.Lock())
        async with turn:
            try:
                result = await self._steps.perform(tool, ordinal, args)
                await self._book.flush()
                return result
            except Suspended as signal:
                raise self._explained(signal, slot, ordinal) from None
            except Fenced:
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
            await rest_scope(self._book)


async def settle_scope(
    book: Book, steps: Steps, tools: dict[str, Tool[..., Any]]
) -> TaskState | None:
    """A scope whose process died: bring what it left open to its end, so no doubt is silent."""
    try:
        for step in list(book.view.steps.values()):
            if not step.closed and step.state is not StepState.PARKED:
                await _settle_one(steps, step, tools)
        return await rest_scope(book)
    except Fenced:
        return None


async def _settle_one(steps: Steps, step: StepView, tools: dict[str, Tool[..., Any]]) -> None:
    tool = tools.get(step.tool)
    if tool is None or step.state is StepState.PLANNED:
        return
    try:
        await steps.settle_open(tool, step)
    except Suspended:
        return


async def rest_scope(book: Book) -> TaskState | None:
    parked = [s for s in book.view.steps.values() if s.step and s.state is StepState.PARKED]
    asks = any(s.step and s.state is StepState.PLANNED for s in book.view.steps.values())
    state = TaskState.PARKED if parked else TaskState.WAITING
    body = {"state": state.value, "why": "approval" if asks else "released"}
    if parked:
        body |= {"ordinal": parked[0].ordinal, "question": parked[0].question}
    notice = approval_notice(book) if asks else None
    # What woke it is answered by its having run; unanswered it would be read again for ever.
    applied = tuple(item.number for item in book.inbox if item.kind is InboxKind.RETRY)
    entry = Entry(kind=Kind.RESTED, body=body)
    try:
        await book.write([entry], change=Change(state=state, notice=notice), applied=applied)
    except Fenced:
        return None
    return state
