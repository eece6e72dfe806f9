"""Scopes: durable calls from a foreign loop (a web handler, another agent framework).

A scope is a task whose steps are named by the caller. The weaker rule: the caller must name
slots stably, because nothing replays its code. Each call is recorded, keyed and reconciled like
a step of a task; asked for again under the same slot it gives the recorded answer.

A scope that is given back while one of its calls is in doubt goes to the queue, where a worker
that knows the tool settles it; one that does not know it parks it: no doubt is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NoReturn

from holdfast import errors
from holdfast.core.notices import step_parked_notice
from holdfast.core.ordinal import slot_ordinal
from holdfast.core.rest import Diverged, Suspended, WaitsForApproval
from holdfast.core.step import StepState
from holdfast.journal.contract import Change, InboxKind
from holdfast.journal.records import Body, NewRecord, RecordKind, StepView, TaskState
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step.steps import Steps
from holdfast.runtime.task.execute import waits_for_approval
from holdfast.runtime.tool.tool import Tool, check_tool


class Scope:
    """An open scope. Calls of different slots may run at the same time."""

    def __init__(self, name: str, writer: TaskWriter, steps: Steps) -> None:
        self.name = name
        self._writer = writer
        self._steps = steps
        self._turns: dict[str, asyncio.Lock] = {}
        writer.may_rest = False  # the caller waits for the answer

    @property
    def task_id(self) -> str:
        return self._writer.view.task_id

    @property
    def scratch(self) -> NoReturn:
        raise errors.Misuse(
            "a scope has no scratch folder: Holdfast does not run its code, so it cannot restore its files",
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
        if self._writer.secrets.active:
            self._writer.secrets.check_input(slot, what="the name of the slot")
        turn = self._turns.setdefault(ordinal, asyncio.Lock())
        async with turn:
            try:
                result = await self._steps.perform(tool, ordinal, args)
                await self._writer.flush()
                return result
            except Suspended as signal:
                raise self._explained(signal, slot, ordinal) from None
            except errors.RunFenced:
                raise errors.SessionLost(f"scope {self.name}: its session has ended") from None
            except errors.Signal:
                raise errors.TaskCancelled(task_id=self.task_id) from None

    def _explained(self, signal: Suspended, slot: str, ordinal: str) -> Exception:
        if isinstance(signal.rest, Diverged):
            return errors.RequestConflict(task_id=self.task_id, request_id=slot, name=f"scope {self.name}")
        step = self._writer.step(ordinal)
        asked = step.question if step is not None else ""
        if isinstance(signal.rest, WaitsForApproval):
            asked = "it waits for approval (`holdfast approval list`)"
        return errors.TaskParked(task_id=self.task_id, ordinal=ordinal, question=asked or signal.rest.text)

    async def release(self) -> None:
        """Release the scope, so that another process can hold it."""
        if not self._writer.fenced:
            state = TaskState.QUEUED if _in_doubt(self._writer) else None
            await _rest(self._writer, state)


async def settle_scope(writer: TaskWriter, steps: Steps, tools: dict[str, Tool[..., Any]]) -> TaskState | None:
    """A scope whose process died: bring what it left open to its end, so no doubt is silent."""
    writer.may_rest = False
    try:
        for step in list(writer.view.steps.values()):
            tool = tools.get(step.tool)
            if tool is not None and not step.closed and step.state is not StepState.PLANNED:
                with contextlib.suppress(Suspended, errors.Cancelled):
                    await steps.settle_open(tool, step)
        doubtful = _in_doubt(writer)
        strange = next((step for step in doubtful if step.tool not in tools), None)
        if strange is not None:
            return await _rest(writer, TaskState.PARKED, strange)
        # With its tool at hand it is in doubt only because this worker stops: another one settles it.
        return await _rest(writer, TaskState.QUEUED if doubtful else None)
    except errors.RunFenced:
        return None


def _in_doubt(writer: TaskWriter) -> list[StepView]:
    """Steps that may have had an effect and are neither closed nor parked."""
    return [
        step
        for step in writer.view.steps.values()
        if step.step is not None and not step.closed and step.state is not StepState.PARKED and step.step.maybe_sent > 0
    ]


async def _rest(writer: TaskWriter, state: TaskState | None, strange: StepView | None = None) -> TaskState | None:
    parked = [s for s in writer.view.steps.values() if s.step and s.state is StepState.PARKED]
    state = state or (TaskState.PARKED if parked else TaskState.WAITING)
    asks = any(s.step and s.state is StepState.PLANNED for s in writer.view.steps.values())
    body: Body = {"state": state.value, "why": WaitsForApproval().text if asks else "released"}
    notice = waits_for_approval(writer) if asks else None
    if parked:
        body |= {"ordinal": parked[0].ordinal, "question": parked[0].question}
    elif strange is not None:
        question = f"was it done? No worker here has the tool {strange.tool}"
        body |= {"ordinal": strange.ordinal, "question": question}
        task_id, where = writer.view.task_id, f"{writer.view.task_id}/{strange.ordinal}"
        notice = step_parked_notice(
            task_id,
            strange.ordinal,
            strange.tool,
            question,
            epoch=writer.hold.epoch,
            now_ms=writer.journal.now_ms(),
            hint=f"start a worker that has the tool, or decide yourself: `holdfast effect show {where}`",
        )
    # What woke it is answered by its having run; unanswered it would be read again for ever.
    retries = [item.number for item in writer.inbox if item.kind is InboxKind.RETRY]
    change = Change(state=state, notice=notice)
    try:
        await writer.write([NewRecord(kind=RecordKind.RESTED, body=body)], change=change, applied=retries)
    except errors.RunFenced:
        return None
    return state
