"""The person and the client: they submit, look, decide by what they see, and never lie.

A decision about a parked step is what the far end shows at that moment, no sooner than the
journal allows one. Evidence is what the far end says by webhook. Both go through
`holdfast.app`'s own verbs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.app.holdfast import Holdfast
from holdfast.core.ids import TaskId
from holdfast.core.step import StepState
from holdfast.errors import ApprovalNotFound, HoldfastError, NotNow, NotSettleable
from holdfast.journal.records import ENDED, StepView, TaskState, TaskView
from holdfast.runtime.task.task import TaskType
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.simulate.parts.far_end import Request
from holdfast_proofs.simulate.parts.journal import ClientJournal
from holdfast_proofs.simulate.workload import Plan, work

if TYPE_CHECKING:
    from holdfast_proofs.simulate.world import World

LOOK_EVERY_S = (0.5, 2.0)
SUBMIT_WITHIN_S = 2.0
RETRIES_MAX = 3


class Person:
    """Acts on one world from outside its worker processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._retries: dict[TaskId, int] = {}
        entropy = SeededEntropy(world.entropy_seed("person"))
        tasks: list[TaskType] = [work]
        self.hf = Holdfast(
            journal=ClientJournal(world, entropy),
            keys=world.keys,
            clock=world.clock,
            entropy=entropy,
            tasks=tasks,
            tools=(),
            settings=world.settings("person"),
        )
        world.far_end.on_effect = self._hear

    def submit_again(self, plans: list[Plan]) -> None:
        """After a restore the clients ask for everything again, under the same request ids."""
        self._world.loop.start(self.submit(plans), None)

    async def submit(self, plans: list[Plan]) -> None:
        dice = self._world.dice
        for number, plan in enumerate(plans):
            handle = await self.hf.submit(work, plan=plan, request_id=f"order-{number}")
            self._world.trace.note("client", f"submits {handle.id[-4:]}: {plan}")
            if dice.hits(self._world.profile.cancel):
                self._world.loop.at(dice.seconds(0.0, 5.0), self._cancel, handle.id)
            await asyncio.sleep(dice.seconds(0.0, SUBMIT_WITHIN_S))
        self._world.submitted = True

    async def look(self) -> None:
        """Decide whatever waits for a person, again and again."""
        while not self._world.dice.stopped:
            await asyncio.sleep(self._world.dice.seconds(*LOOK_EVERY_S))
            for cell in list(self._world.store.tasks.values()):
                if cell.state in (TaskState.PARKED, TaskState.WAITING):
                    await self._decide(cell.task_id)

    async def _decide(self, task_id: TaskId) -> None:
        view = await self.hf.journal.read_task(task_id)
        parked = [step for step in view.steps.values() if step.state is StepState.PARKED]
        for step in parked:
            with suppress(NotNow, NotSettleable):
                await self._settle(task_id, step)
        for ordinal in _questions(view):
            with suppress(ApprovalNotFound):
                granted = self._world.dice.coin(0.7)
                await self.hf.approve(task_id, ordinal, granted=granted, by="person")
                if granted:
                    self._world.granted.add((task_id, ordinal))
        if not parked and view.rest.state == TaskState.PARKED:
            await self._retry(task_id)

    async def _settle(self, task_id: TaskId, step: StepView) -> None:
        decision = self._world.dice.pick(("run", "skip"))
        results = self._world.results(task_id, step.ordinal)
        result = results[0] if results else None
        if step.letter == "T" and self._world.store.count_effects(task_id, step.ordinal):
            results = [None]
        if results:
            decision = "done"
        await self.hf.settle(task_id, step.ordinal, decision, result=result, by="person")
        self._world.trace.note("person", f"decides {task_id[-4:]}/{step.ordinal}: {decision}")

    async def _retry(self, task_id: TaskId) -> None:
        """A task that is parked as a whole, for example as poison, is tried a few times more."""
        self._retries[task_id] = self._retries.get(task_id, 0) + 1
        if self._retries[task_id] <= RETRIES_MAX:
            await self.hf.retry(task_id, by="person")
            self._world.trace.note("person", f"retries {task_id[-4:]}")

    def _hear(self, request: Request, result: object) -> None:
        """The far end tells of an effect by webhook, now and then, and late."""
        dice = self._world.dice
        if dice.hits(self._world.profile.evidence):
            self._world.loop.at(dice.seconds(0.0, 3.0), self._tell, request, result)

    def _tell(self, request: Request, result: object) -> None:
        async def tell() -> None:
            with suppress(HoldfastError):
                await self.hf.evidence(effect_key=request.effect_key, result=result, source="webhook")

        self._world.trace.note("webhook", f"{request}: {result}")
        self._world.loop.start(tell(), None)

    def _cancel(self, task_id: TaskId) -> None:
        self._world.trace.note("person", f"cancels {task_id[-4:]}")
        self._world.loop.start(self.hf.cancel(task_id, by="person"), None)


def _questions(view: TaskView) -> list[str]:
    """Ordinals that wait for an approval."""
    if view.finished in ENDED:
        return []
    asked = [o for o, note in view.notes.items() if note.what == "approve" and note.answer is None]
    planned = [o for o, step in view.steps.items() if step.state is StepState.PLANNED]
    return [*asked, *planned]
