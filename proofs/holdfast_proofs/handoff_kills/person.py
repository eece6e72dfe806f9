"""The person: submits, answers and settles, and writes down when."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

from holdfast.app.holdfast import Holdfast
from holdfast.core.step import StepState
from holdfast.errors import HoldfastError
from holdfast.journal.contract import Filter
from holdfast.journal.records import ENDED, TaskState
from holdfast.views.unfinished import list_approvals
from holdfast_proofs.handoff_kills.truth import Truth, What

OPEN_MAX = 8
LOOK_EVERY_S = 0.03
STALL_LOOK_S = 0.01
STALL_WINDOW_S = 3.0
STALLS_KEPT = 1_000


class Person:
    def __init__(self, hf: Holdfast, truth: Truth, *, seed: int) -> None:
        self._hf = hf
        self._truth = truth
        self._random = random.Random(seed)
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS_KEPT)

    def stall_ms(self) -> int:
        """The longest time for which this process, which does little, was not let run lately.

        The worker shares the machine: it can be no quicker.
        """
        since = time.monotonic() - STALL_WINDOW_S
        return round(1000 * max((late for at, late in self._stalls if at >= since), default=0.0))

    async def watch(self) -> None:
        """Note how late a sleep of an instant ends."""
        while True:
            begun = time.monotonic()
            await asyncio.sleep(STALL_LOOK_S)
            now = time.monotonic()
            self._stalls.append((now, now - begun - STALL_LOOK_S))

    async def live(self) -> None:
        while True:
            await self._submit()
            await self._answer()
            await self._settle()
            await self._look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def ended(self) -> set[str]:
        rows = await self._hf.journal.list_tasks(Filter(states=ENDED, limit=10_000))
        return {row.task_id for row in rows}

    async def _submit(self) -> None:
        counts = await self._hf.journal.count_tasks()
        open_now = sum(count for state, count in counts.items() if state not in ENDED)
        if open_now >= OPEN_MAX or self._random.random() < 0.5:
            return
        handle = await self._hf.submit(
            "errand",
            what=self._random.choice(("bread", "tea", "a map")),
            takes_s=round(self._random.uniform(0.0, 0.4), 2),
            ask=self._random.random() < 0.6,
            once=self._random.random() < 0.4,
        )
        self._note(What.SUBMITTED, handle.id)

    async def _answer(self) -> None:
        for waiting in await list_approvals(self._hf.journal):
            place = f"{waiting.task_id}/{waiting.ordinal}"
            if self._truth.knows(What.ANSWERED, place):
                continue
            self._note(What.ASKED, place)
            if self._random.random() < 0.1:
                await self._hf.approve(waiting.task_id, waiting.ordinal, granted=self._random.random() < 0.9, by="eve")
                self._note(What.ANSWERED, place)

    async def _settle(self) -> None:
        states = frozenset((TaskState.PARKED,))
        for row in await self._hf.journal.list_tasks(Filter(states=states)):
            view = await self._hf.journal.read_task(row.task_id)
            for step in view.steps.values():
                place = f"{row.task_id}/{step.ordinal}"
                if step.state is not StepState.PARKED or self._truth.knows(What.SETTLED, place):
                    continue
                self._note(What.PARKED, place)
                if self._random.random() < 0.1:
                    try:
                        await self._hf.settle(row.task_id, step.ordinal, "skip", by="eve")
                    except HoldfastError:
                        continue  # not now: it may still be under way
                    self._note(What.SETTLED, place)

    async def _look(self) -> None:
        for task_id in await self.ended():
            self._note(What.ENDED, task_id)

    def _note(self, what: What, place: str) -> None:
        self._truth.note(what, place, time.time_ns() // 1_000_000)
