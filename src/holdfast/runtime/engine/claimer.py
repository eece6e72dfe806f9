"""Which tasks an engine takes, and how many at a time; beside the engines of other agents it leaves them room.

Engines of one process share its places for running tasks (`Room`). An engine may add tasks while it runs fewer than
there are free places. So one that has much to do takes half of them and leaves the other half free, two take a third
each, and so on: an agent that begins to have something to do finds a place, however long the tasks of the others take.
Where all places are taken, those who wait get them in the order they asked.

A task that killed its process is a suspect (suspects.py). In a process that serves many agents it kills the tasks of
all of them, so one suspect at a time runs in the whole process: it can make no other task a suspect that was not one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, nullcontext

from holdfast.core.waiting import Pacing, wait_event
from holdfast.journal.contract import Claimed, Journal, Session, Submission, Submitted
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.engine.suspects import Suspects

CLAIM_EVERY_S = 0.01  # two claims are at least so far apart


class Room:
    """The places of one process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved = 0
        self._members: list[Claimer] = []
        self._freed = asyncio.Event()
        self._suspect_asked = False

    def join(self, claimer: Claimer) -> None:
        self._members.append(claimer)

    def leave(self, claimer: Claimer) -> None:
        self._members.remove(claimer)

    def places(self, own: int) -> int:
        """How many tasks an engine that runs `own` may add now."""
        free = self._limit - self._reserved - sum(one.active() for one in self._members)
        return max(0, (free - own + 1) // 2)

    @contextmanager
    def reserved(self, places: int) -> Generator[int]:
        """Nobody else gets these places until the block is left; tasks that were begun count by themselves then."""
        self._reserved += places
        try:
            yield places
        finally:
            self._reserved -= places

    def freed(self) -> None:
        """A task has ended."""
        self._freed.set()
        self._freed = asyncio.Event()

    async def wait_places(self, own: Callable[[], int], *, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while not self.places(own()) and (left := end - loop.time()) > 0:
            await wait_event(self._freed, left)

    @contextmanager
    def suspect_turn(self, claimer: Claimer) -> Generator[bool]:
        """Whether this engine may take a suspect, until the block is left."""
        mine = not self._suspect_asked and not any(one.suspects.runs_one() for one in self._members if one != claimer)
        self._suspect_asked = self._suspect_asked or mine
        try:
            yield mine
        finally:
            self._suspect_asked = self._suspect_asked and not mine


class Claimer:
    """Claims for one engine; `active` says how many tasks it runs."""

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        suspects: Suspects,
        *,
        names: Collection[str],
        active: Callable[[], int],
        room: Room | None,
        pace: Pacing,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self.names = names
        self.suspects = suspects
        self.active = active
        self.took_all = False  # the last claim gave fewer tasks than there were places: hardly anything is left
        self._is_first = False  # a task that is submitted now: the last claim left none, and none was left since
        self._submitting = 0  # tasks that may begin with their commit
        self._left = self._leaving = 0  # tasks that were left to a claim so far; of them, not committed yet
        self._room, self._pacing = room, pace

    def join(self) -> None:
        """This engine begins to serve."""
        self._is_first = False
        if self._room is not None:
            self._room.join(self)

    def leave(self) -> None:
        if self._room is not None:
            self._room.leave(self)
            self._room.freed()

    def freed(self) -> None:
        """A task has ended here."""
        if self._room is not None:
            self._room.freed()

    def lacks_places(self) -> bool:
        """Whether the tasks of other agents keep this engine from taking more."""
        return self._room is not None and not self._room.places(self.active())

    async def wait_places(self) -> None:
        """Not for longer than the usual pause: the tasks that run here may have got something."""
        if self._room is not None:
            await self._room.wait_places(self.active, timeout_s=self._settings.sweep_every_s)

    async def submit(
        self, session: Session | None, submission: Submission, begin: Callable[[Claimed], None]
    ) -> Submitted:
        """Claimed with its submission if it would be the next one: no other task waits, and there is a place for it.
        `session`: of an engine that may claim now."""
        if session is not None and self._may_begin(submission):
            return await self._submit_and_begin(session, submission, begin)
        self._is_first = False
        self._left += 1
        self._leaving += 1
        try:
            return await self._journal.submit(submission)
        finally:
            self._leaving -= 1

    def _may_begin(self, submission: Submission) -> bool:
        if not self._is_first or self._journal.capabilities.hosts or submission.name not in self.names:
            return False
        with self.places() as places:
            return places > 0 and not self.suspects.one_runs_alone()

    async def _submit_and_begin(
        self, session: Session, submission: Submission, begin: Callable[[Claimed], None]
    ) -> Submitted:
        begun = False

        def give(claimed: Claimed) -> None:
            nonlocal begun
            begun = True
            begin(claimed)

        self._submitting += 1
        try:
            with nullcontext() if self._room is None else self._room.reserved(1):
                return await self._journal.submit(submission, taker=(session, give))
        finally:
            self._submitting -= 1
            if not begun:
                self.freed()

    @contextmanager
    def places(self) -> Generator[int]:
        """How many tasks may be begun inside the block."""
        own = min(self._settings.concurrency - self.active() - self._submitting, self._settings.claim_batch)
        if self._room is None:
            yield max(0, own)
            return
        with self._room.reserved(max(0, min(own, self._room.places(self.active() + self._submitting)))) as places:
            yield places

    async def pause_s(self, claimed: int) -> float:
        """Until the journal is looked at again, where nothing changes in it."""
        most_s, due = self._settings.sweep_every_s, await self._journal.find_due_ms()
        most_s = most_s if claimed else self._pacing.idle_s(most_s)  # after a claim one may be left that others held
        if due is None or self.active() >= self._settings.concurrency:
            return most_s
        left = (due - self._journal.now_ms()) / 1000
        if left <= 0:  # due, and not claimed a moment ago: it is not for us, or not now
            return most_s
        return min(most_s, max(left, CLAIM_EVERY_S))

    async def claim(self, session: Session, places: int) -> list[Claimed]:
        self.took_all = self._is_first = False
        if not places or not self.names or self.suspects.one_runs_alone():
            return []
        left = self._left
        claimed = await self._claim_suspect(session)
        if claimed:
            return claimed
        claimed = await self._journal.claim(session, names=self.names, limit=places)
        self.took_all = 0 < len(claimed) < places
        if not claimed and self._is_idle():
            claimed = await self._claim_any(session)
            if claimed and claimed[0].crashes:
                self.suspects.runs_alone(claimed[0].hold.task_id)
                return claimed
        # Last: what is submitted before this waits for the next claim.
        self._is_first = len(claimed) < places and not self._leaving and self._left == left
        return claimed

    def _is_idle(self) -> bool:
        return not self.active() and not self._submitting

    async def _claim_suspect(self, session: Session) -> list[Claimed]:
        """The longest waiting task, suspect or not, where this engine is never idle."""
        if not self.suspects.may_claim(idle=self._is_idle()):
            return []
        claimed = await self._claim_any(session)
        self.suspects.took(claimed[0] if claimed else None)
        return claimed

    async def _claim_any(self, session: Session) -> list[Claimed]:
        if self._room is None:
            return await self._journal.claim(session, names=self.names, limit=1, alone=True)
        with self._room.suspect_turn(self) as mine:
            return await self._journal.claim(session, names=self.names, limit=1, alone=mine)
