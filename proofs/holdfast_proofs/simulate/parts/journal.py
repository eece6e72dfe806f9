"""The memory journal as a process meets it: slow, at times full, at times silent about a commit.

Between any two of its acts the process may die or be paused (`Process.point`): before a commit,
after it, and before its answer arrives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from holdfast.core.clock import Entropy
from holdfast.core.ids import TaskId
from holdfast.errors import CommitUnknown, JournalFull
from holdfast.journal.builds import NO_BUILD, Build
from holdfast.journal.contract import (
    Change,
    Claimed,
    CommitOutcome,
    DropCheck,
    Hold,
    InboxItem,
    Session,
    Statement,
    Submission,
    Submitted,
    Taker,
    TaskNames,
)
from holdfast.journal.records import NewRecord
from holdfast_proofs.memory_journal.journal import MemoryJournal

if TYPE_CHECKING:
    from holdfast_proofs.simulate.parts.process import Process
    from holdfast_proofs.simulate.world import World

COMMIT_S = 0.003
SLOW_COMMIT_S = 3.0
STILL_UNKNOWN = 0.5  # how often a question about a silent commit is not answered either


class ClientJournal(MemoryJournal):
    """The handle of whoever only submits, looks and decides: nothing goes wrong with it."""

    def __init__(self, world: World, entropy: Entropy) -> None:
        super().__init__(world.store, world.clock, entropy)
        self._world = world

    async def submit(self, submission: Submission, *, taker: Taker | None = None) -> Submitted:
        found = await super().submit(submission, taker=taker)
        if found.created:
            self._world.store.suspect(found.task_id, now_ms=self.now_ms())
        return found


class SimJournal(ClientJournal):
    """One worker process's handle."""

    def __init__(self, process: Process, entropy: Entropy) -> None:
        super().__init__(process.world, entropy)
        self._process = process

    async def open_session(
        self, *, worker: str, ttl_ms: int, serves: TaskNames = None, build: Build = NO_BUILD
    ) -> Session:
        await self._process.point("before its session")
        session = await super().open_session(worker=worker, ttl_ms=ttl_ms, serves=serves, build=build)
        self._world.sessions[session.session_id] = self._process
        self._world.trace.note(self._process.name, f"session {session.session_id[:6]}")
        return session

    async def renew(self, session: Session) -> None:
        self._check_space(begins=False)
        await self._process.point("before a renewal", delay_s=self._delay())
        await super().renew(session)

    async def claim(
        self,
        session: Session,
        *,
        names: Collection[str] | None,
        limit: int,
        task_id: TaskId | None = None,
        alone: bool = False,
    ) -> list[Claimed]:
        self._check_space(begins=False)
        claimed = await super().claim(session, names=names, limit=limit, task_id=task_id, alone=alone)
        if claimed:
            await self._process.point("after a claim", delay_s=self._delay())
        return claimed

    async def append(
        self,
        hold: Hold,
        entries: Sequence[NewRecord],
        *,
        change: Change | None = None,
        applied: Sequence[int] = (),
        statements: Sequence[Statement] = (),
        begins: bool = False,
    ) -> list[int]:
        await self._process.point("before a commit", delay_s=self._delay())
        self._check_space(begins=begins)
        silent = self._world.dice.hits(self._world.profile.commit_unknown)
        if silent and self._world.dice.coin():
            self._world.trace.note(self._process.name, "commit unknown: aborted")
            raise CommitUnknown("the answer to the commit was lost")
        known = (hold.seq, hold.head, hold.last)
        numbers = await super().append(
            hold, entries, change=change, applied=applied, statements=statements, begins=begins
        )
        if silent:
            hold.seq, hold.head, hold.last = known  # the process has not heard of it
            self._world.trace.note(self._process.name, "commit unknown: committed")
            raise CommitUnknown("the answer to the commit was lost")
        await self._process.point("after a commit", delay_s=self._delay(), sends=begins)
        return numbers

    async def confirm(self, hold: Hold, *, seq: int) -> CommitOutcome:
        await self._process.point("before a confirmation", delay_s=self._delay())
        if self._world.dice.hits(STILL_UNKNOWN):
            return CommitOutcome.UNKNOWN
        return await super().confirm(hold, seq=seq)

    async def drop(self, item: InboxItem, *, check: DropCheck | None = None) -> int:
        await self._process.point("before a drop", delay_s=self._delay())
        self._check_space(begins=False)
        return await super().drop(item, check=check)

    def _check_space(self, *, begins: bool) -> None:
        full = self._world.full
        if full == "all" or (full == "begins" and begins):
            raise JournalFull("no space left in the simulated world")

    def _delay(self) -> float:
        slow = self._world.dice.hits(self._world.profile.slow_commit)
        return self._world.dice.seconds(0.0, SLOW_COMMIT_S if slow else COMMIT_S)
