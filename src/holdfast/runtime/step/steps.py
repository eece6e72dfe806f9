"""Performing a step: plan, start, call, record; what is found open is reconciled.

`perform` is what `run.call` awaits. A new step is planned and started in one commit and called; an open one, found on
resume, goes through reconcile.py until it is closed or parked. Every record is checked by `next_step` before it is
written, so that a mistake here is refused rather than recorded.

What a crash leaves, line by line of `_begin_new`: before the commit nothing; after it a started step whose slot says
whether a byte can have left; after the call the same until the result's commit. There is no line at which an effect
exists without its intent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from holdfast.core.clock import Clock
from holdfast.core.ids import EffectKeys, fingerprint
from holdfast.core.ordinal import retry_slot
from holdfast.core.rest import BrokenOff, Diverged, Suspended
from holdfast.core.step import Event, Facts, Step, StepState, next_step
from holdfast.core.values import checked_forms, decode
from holdfast.errors import Cancelled, InvariantViolated, JournalDamaged, JournalStopped, Misuse, ReadOnly, Signal
from holdfast.journal.own_view import BEGIN, left_out
from holdfast.journal.records import Body, NewRecord, RecordKind, StepView
from holdfast.runtime.scratch.scratch import Scratch
from holdfast.runtime.secrets import pinned_fingerprint
from holdfast.runtime.session.task_writer import TaskWriter
from holdfast.runtime.step.attempt import Args, Caller
from holdfast.runtime.step.code_changes import HeadChanges
from holdfast.runtime.step.facts import check_same, outcome_of
from holdfast.runtime.step.lost_timeline import opens_slots
from holdfast.runtime.step.reconcile import Reconciler
from holdfast.runtime.step.sending import Sender, args_of, check_allowed
from holdfast.runtime.tool.tool import Tool

if TYPE_CHECKING:
    from holdfast.runtime.gate.guard import Guard
    from holdfast.runtime.step.plan import PlanItem

_Asked = tuple[Tool[..., Any], str, object, Body | None]  # tool, ordinal, arguments, extra


class Chain(Protocol):
    """Steps of the task's code that follow one another."""

    busy_with: str  # the ordinal of its open step

    def end_by(self, error: BaseException) -> None: ...  # remember what ends it


class Awaited(Protocol):
    """Something that the task's code makes and has to await."""

    @property
    def what(self) -> str: ...  # how the code names it


class Steps:
    """Performs the steps of one task under one hold."""

    def __init__(
        self,
        *,
        writer: TaskWriter,
        caller: Caller,
        clock: Clock,
        effect_keys: EffectKeys,
        fingerprint_key: bytes,
        pace: float = 1.0,
        open_scratch: Callable[..., Scratch] | None = None,
    ) -> None:
        self.writer = writer
        self.memory = caller.memory  # of an agent's folder
        self._post = caller.post
        self.guard: Guard | None = None  # of a task that has a gate
        self.plan: dict[int, PlanItem] = {}
        self.plan_changes = 0  # as far as this run has come
        self.changes: HeadChanges | None = None  # the policy for changed heads, of tasks
        self.not_awaited: dict[Awaited, tuple[str, int]] = {}  # what the code made, and at which file and line
        self._open_scratch = open_scratch
        self._loop = asyncio.get_running_loop()  # asked once: each time costs a system call
        self._left_out: dict[tuple[str, object], StepView] = {}
        self._broken_off: list[_Asked] = []
        self._keys = effect_keys
        self._fingerprint_key = fingerprint_key
        self._new_facts = Facts(epoch=writer.hold.epoch, owner=True, previous_closed=True, quiet=True)
        self._may_plan: set[str] = set()  # letters of tools: it is the same for every new step of this run
        self._performing: dict[asyncio.Task[Any], None] = {}  # Any: the code's own tasks, in order
        self._sender = Sender(writer=writer, caller=caller, pace=pace)
        self._reconciler = Reconciler(
            writer=writer,
            sender=self._sender,
            caller=caller,
            clock=clock,
            fingerprint_key=fingerprint_key,
            key_of=self._key,
            pace=pace,
        )

    def taken(self, tool: Tool[..., Any], args: Args) -> Args:
        """The arguments with those that the tool gives. Raises Misuse where it would not take them;
        where there is a gate, that is the gate's to say: it records the refusal."""
        return tool.check_args(args) if self.guard is None else {**tool.given, **args}

    async def perform(
        self, tool: Tool[..., Any], ordinal: str, args: Args, extra: Body | None = None, chain: Chain | None = None
    ) -> object:
        """The step's result, or what it failed with; Suspended where a person is needed. `chain`: what it is the next
        step of; it is busy with it until then, and does not ask for it again."""
        kept, raw, canonical = checked_forms(args, what=tool.args_title)
        task = asyncio.current_task(self._loop)
        if task is None:
            raise InvariantViolated("I10", f"step {ordinal} is performed outside a task")
        self._performing[task] = None
        if chain is not None:
            chain.busy_with = ordinal
        try:
            step = None
            if self.writer.scratch is None and ordinal not in self.writer.view.steps:
                mark = fingerprint(self._fingerprint_key, tool=tool.name, canonical_args=canonical)
                step = await self._new(tool, ordinal, kept, extra, mark, raw)
            if step is None or step.state is StepState.FAILED:
                # The arguments as they were: the tool may have changed those that it got.
                step = await self._carry_out(tool, ordinal, decode(raw), extra)
        except _OF_THE_JOURNAL as error:
            self.writer.end(error)
            raise
        except BaseException as error:  # a cancel of the code's own too; passed on
            if self._left_open(ordinal, error):
                # A timeout of the code's own: it may not continue after a call in doubt (I5).
                self._broken_off.append((tool, ordinal, decode(raw), extra))
                self.writer.end(Suspended(BrokenOff()))
            if chain is not None:
                chain.end_by(error)
            raise
        finally:
            self._performing.pop(task, None)
            if chain is not None:
                chain.busy_with = ""
        if chain is not None and self._is_left_out(step, ordinal) and not (step.unkept or self.writer.secrets.active):
            return step.result  # nobody else holds it
        return outcome_of(step)

    def _is_left_out(self, step: StepView, ordinal: str) -> bool:
        """Keep no payload of a step that this run has just closed, where nothing can ask for one. In an agent's folder
        the hand-off does: it names the newest steps of every task that runs, as this view has them."""
        view = self.writer.view
        if step.ending is not Event.SUCCEED or self.memory is not None or self.guard is not None or view.restored_ms:
            return False
        if step.ordinal != ordinal or "after" in step.body:
            return False  # a retry slot: few, and kept; or a message of a thread, which the next one's plan names
        kind = (step.tool, step.body.get("window_ms"))
        same = self._left_out.get(kind)
        if same is None:
            same = self._left_out[kind] = left_out(step)
        if step.attempts[0].at_ms > same.attempts[0].at_ms:
            same.attempts = step.attempts
        view.steps[ordinal] = same
        return True

    def scratch(self) -> Scratch:
        """The task's scratch folder; made, and empty, when it is first asked for in a run."""
        if self.writer.scratch is None:
            if self._open_scratch is None:
                raise Misuse("this journal has no folder for scratch files")
            self.writer.scratch = self._open_scratch(writer=self.writer)
        return self.writer.scratch

    async def end_all(self) -> None:
        """The code has ended: bring what it has left under way to its end; nothing begins. Calls that it began and did
        not await, because an attempt must not run on once the task belongs to another worker. Calls that it broke off:
        here and not in the next run, where the code may break them off again and again; then it runs again, because
        what it has made of the break does not count."""
        self.writer.ended = True
        await self._end_strays()
        if not self._broken_off:
            return
        if not self.writer.stopping:
            self.writer.signal = None
            await self._settle_broken_off()
        raise Suspended(BrokenOff())

    async def _end_strays(self) -> None:
        strays = [task for task in self._performing if task is not asyncio.current_task()]
        if not strays:
            return
        try:
            await asyncio.wait(strays)
        except asyncio.CancelledError:
            for stray in strays:
                stray.cancel()
            await asyncio.wait(strays)
            raise

    async def _settle_broken_off(self) -> None:
        rests: Suspended | None = None
        while self._broken_off:
            try:
                await self._carry_out(*self._broken_off.pop())
            except Suspended as signal:
                rests = signal
        if rests is not None:
            raise rests

    async def settle_open(self, tool: Tool[..., Any], step: StepView) -> StepView:
        """Bring an open step to its end with its recorded arguments."""
        if self.guard is not None:
            self.guard.check_recorded(tool, step)
        return await self._reconciler.drive(tool, step, args_of(step))

    async def _carry_out(self, tool: Tool[..., Any], ordinal: str, args: object, extra: Body | None) -> StepView:
        """The closed step: under this ordinal, or under the last of its retry slots."""
        mark = self._reconciler.fingerprint(tool, args)
        number = 0
        slot_name = ordinal
        while True:
            step = self.writer.view.steps.get(slot_name)
            scratch = self.writer.scratch
            if step is None:
                if scratch is not None and not self.writer.cancelled:
                    await scratch.before(slot_name)
                step = await self._new(tool, slot_name, args, extra, mark)
            else:
                if step.ordinal != slot_name:
                    raise InvariantViolated("I8", f"step {slot_name} is performed twice in one run")
                check_same(step, tool, pinned_fingerprint(mark, step.planned.secrets), args)
                if scratch is not None:
                    await scratch.replay(step)
                step = step if step.closed else await self.settle_open(tool, step)
            again = opens_slots(tool) and number < tool.retries  # with a key of its own
            if step.state is not StepState.FAILED or not again or not step.failure.proven:
                if scratch is not None:
                    scratch.check_kept(step)
                return step
            number += 1
            slot_name = retry_slot(ordinal, number)
            if self.writer.step(slot_name) is None:
                await self._reconciler.pause_before_retry(tool, step)

    def _left_open(self, ordinal: str, error: BaseException) -> bool:
        """Whether the code leaves a call that is not at its end, recorded or not."""
        if isinstance(error, asyncio.CancelledError):
            return True
        step = self.writer.step(ordinal)
        return step is not None and not step.closed and not isinstance(error, Signal)

    def _new(
        self, tool: Tool[..., Any], ordinal: str, args: object, extra: Body | None, mark: bytes, raw: bytes = b""
    ) -> Awaitable[StepView]:
        """A step that the journal does not know; awaited, it comes to its end. `raw`: the JSON of the arguments, where
        nobody else holds them: the tool may then have them as they are."""
        writer = self.writer
        if (note := writer.view.notes.get(ordinal)) is not None:
            raise Suspended(Diverged(f"step {ordinal}: the journal has {note.what}, the code now has {tool.name}"))
        if writer.cancelled:
            raise Cancelled
        pins = None
        if tool.secrets or writer.secrets.active:
            pins = writer.secrets.pin(tool, ordinal, cast(Args, args))
            mark = pinned_fingerprint(mark, pins)
        if tool.needs_child:
            _ = tool.target  # a tool that no child can find is refused before it is planned
        body: Body = {"tool": tool.name, "letter": tool.letter, "args": args, "v": tool.version}
        if self.plan_changes:
            body["plan"] = self.plan_changes
        if pins:
            body["secrets"] = pins
        if tool.window_ms:
            body["window_ms"] = tool.window_ms
        if extra:
            body.update(extra)
        if tool.plans_more is not None:
            body.update(tool.plans_more(writer.view, cast(Args, args)))
        if self.guard is not None and (events := self.guard.judge(tool, ordinal, body)):
            return self._open_slot(tool, ordinal, body, mark, *events)
        if writer.view.restored_ms and not tool.effect.changes_nothing:
            # Rule 7: this slot may have been used in the timeline that a restore has lost. A
            # Fenced or Idempotent one is simply sent again, but a refusal is then no proof while
            # the lost timeline's request may be under way: a refusal raises no fence.
            body["lost_after_ms"] = writer.view.restored_ms
            return self._open_slot(tool, ordinal, body, mark, Event.RESTORE)
        if tool.needs_approval:
            return self._open_slot(tool, ordinal, body, mark, Event.PLAN)
        if raw:
            body["args"] = msgspec.Raw(raw)
        if tool.asks_first is not None:
            return self._begin_asked(tool, ordinal, args, body, mark)
        return self._begin_new(tool, ordinal, args, body, mark)

    async def _begin_asked(self, tool: Tool[..., Any], ordinal: str, args: Any, body: Body, mark: bytes) -> StepView:
        """Nobody is asked for a call that a gate or a person may forbid."""
        if tool.asks_first is not None:
            body.update(await tool.asks_first(args, self._post))
        if self.writer.cancelled:
            raise Cancelled
        return await self._begin_new(tool, ordinal, args, body, mark)

    async def _begin_new(self, tool: Tool[..., Any], ordinal: str, args: Any, body: Body, mark: bytes) -> StepView:
        """Plan and start in one commit, then call."""
        key = self._keys.raw(self.writer.view.task_id, ordinal)
        if tool.letter not in self._may_plan:
            check_allowed(next_step(None, Event.PLAN, self._new_facts, letter=tool.letter), ordinal)
            self._may_plan.add(tool.letter)
        slot = self._sender.take_slot(tool, key, 1)
        entry = NewRecord(
            kind=RecordKind.STEP,
            ordinal=ordinal,
            events=BEGIN,
            body=body,
            effect_key=key,
            fingerprint=mark,
            slot=slot,
            quiet=True,
        )
        await self._sender.begin(entry, slot)
        step = self.writer.get_step(ordinal)
        await self._sender.call(tool, step, args, slot, own=type(body["args"]) is msgspec.Raw)
        return step if step.closed else await self._reconciler.drive(tool, step, args_of(step))

    async def _open_slot(self, tool: Tool[..., Any], ordinal: str, body: Body, mark: bytes, *events: Event) -> StepView:
        """Record the step without starting it; what may follow is decided by its row."""
        row: Step | None = None
        for event in events:
            following = next_step(row, event, self._new_facts, letter=tool.letter)
            check_allowed(following, ordinal)
            row = cast(Step, following)
        if Event.SKIP in events and self.writer.scratch is not None:
            await self.writer.scratch.after_late(ordinal)
        key = self._key(ordinal)
        entry = NewRecord(
            kind=RecordKind.STEP, ordinal=ordinal, events=events, body=body, effect_key=key, fingerprint=mark
        )
        await self.writer.write([entry])
        return await self._reconciler.drive(tool, self.writer.get_step(ordinal), body["args"])

    def _key(self, ordinal: str) -> bytes:
        return self._keys.raw(self.writer.view.task_id, ordinal)


_OF_THE_JOURNAL = (InvariantViolated, JournalStopped, JournalDamaged, ReadOnly)
