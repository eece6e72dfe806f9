"""A lane: batches of acts of this process, committed one after the other.

Acts that wait at the same moment share a transaction, and so one wait for the server's disk and its standby. Every
batch moves the lane's own row of `tally`: its share of the running total over all tasks (`journal/total.py`), and a
stamp, one more each time. No other lane or process writes that row, so nobody waits for it.

The stamp settles a batch that is in doubt. After the connection was lost with a commit under way, the row is read again
on a new connection, *locking* it: the read waits for a commit that still waits for its standby, where a plain one would
show the row of before. The row was there before the batch and the batch updated it; a locking read does not wait for a
row that a transaction inserted. The new stamp: committed. The old one: aborted. It is used up in the same transaction,
because a batch of one statement may not even have reached the server: arriving later, it finds another stamp and fails.
Then the batch is made again, with the same bytes. A lower one: the server has lost what it had acknowledged, and is an
older copy; this process writes no more. No row: retention has folded it into another, so the batch took place before
that or never will, and whoever asked looks for the record itself (`confirm`). What was found committed counts only
after one more synced write has returned: that a row can be read on this server says nothing about its standby.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import msgspec
import psycopg

from holdfast.errors import CommitUnknown, HoldfastError, JournalOlderCopy
from holdfast.journal.postgres.links import AGAIN_S, TRY_S, InDoubt, Link, Links, may_pass, transact
from holdfast.journal.postgres.place import DATABASE_TIME
from holdfast.journal.postgres.sql_errors import translated
from holdfast.journal.postgres.verbs.guards import OLDER_HINT
from holdfast.journal.total import NONCE_BYTES, RunningTotal

TallyRow = tuple[bytes, int, str, int]  # the new total, the time, which row, its stamp before

COUNT_IN = (
    "UPDATE $s.tally SET stamp = stamp + 1, total = %b, at_ms = greatest(at_ms, %s), last = greatest(last, %s) "
    "WHERE w = %s AND stamp = %s RETURNING stamp"
)
GIVE_WAY_S = 0.005
GIVE_UP_S = 0.5
TOGETHER = 64  # batches until it is tried again whether a part of one is better sent early
USED_UP = 2  # added to the stamp of a batch that is not there; one more would say that it is
TURNS_EACH = 4  # turns of the event loop for each act of an agent among many
_NO_RESULT = object()


class Act(msgspec.Struct, eq=False):
    """Something to be done in a lane. `result` is set before the commit, or read back after it."""

    result: Any = _NO_RESULT  # Any: what the act gives; each verb knows its own
    error: BaseException | None = None
    decided: bool = False
    future: asyncio.Future[None] | None = None
    move: int = 0  # what it adds to the total
    given_up: bool = False  # the caller waits no more

    def decide(self) -> None:
        self.decided = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    @property
    def has_result(self) -> bool:
        return self.result is not _NO_RESULT

    def forget(self) -> None:
        self.result, self.error = _NO_RESULT, None


A = TypeVar("A", bound=Act)


@dataclass(slots=True)
class Tally:
    """The lane's row, as it is in the database."""

    running: RunningTotal
    w: str = field(default_factory=lambda: os.urandom(8).hex())
    stamp: int = 0
    total: int = 0
    last: int = 0
    at_ms: int = 0  # of the newest commit
    asked_ms: int = 0  # of the one under way

    def moved(self, by: int, *, at_ms: int) -> TallyRow:
        """The values of COUNT for a batch that moves the total by so much."""
        self.asked_ms = at_ms
        stored = self.running.hide(self.total + by, self.w.encode(), os.urandom(NONCE_BYTES))
        return (stored, at_ms, self.w, self.stamp)


class Lane(ABC, Generic[A]):
    def __init__(self, links: Links, running: RunningTotal, raise_mark: Callable[[int], None]) -> None:
        self._links = links
        self._raise_mark = raise_mark  # after a commit: this host remembers how far the journal is
        self.newest = 0  # the highest record number of the batch under way
        self.tally = Tally(running)
        self._queue: deque[A] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._letting: asyncio.Task[None] | None = None
        self._made = False  # its row of `tally`
        self._doubt: int | None = None  # by how much the batch in doubt moves the total
        self._in_doubt: Sequence[A] = ()
        self.commits = 0
        self._batch: list[A] = []  # under way
        self._begun: tuple[list[A], Link] | None = None  # sent, its answer not yet awaited
        self._under_way = False
        self._queued_at = self._began_at = 0.0
        self.together = 0  # so many batches are not sent before the turn of the loop is over
        self._gave_way = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.broken = ""
        self.trouble: HoldfastError | None = None  # why the last attempt to commit has failed

    async def do(self, act: A, *, patient: bool = True) -> Any:
        """Commit it; on return it is durable. A cancel waits until it is decided; if not `patient` only for a moment,
        and then it is not known whether it took place."""
        if self.broken:
            raise JournalOlderCopy(self.broken, hint=OLDER_HINT)
        loop = self._loop or self._find_loop()
        self._queue.append(act)
        self._queued_at = loop.time()
        if self._begun is None and not self._under_way:
            self._began_at = self._queued_at
            self._begun = self.begin(self._queue)
            if act.decided:
                self.ended(act)
                # A task whose acts are decided at once would never let the lease be renewed: yield now and then.
                if loop.time() - self._gave_way > GIVE_WAY_S:
                    await asyncio.sleep(0)
                    self._gave_way = loop.time()
                return act.result
        act.future = loop.create_future()
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        cancelled = None
        while not act.decided:
            try:
                await act.future
            except asyncio.CancelledError as error:
                if act.future.cancelled():
                    act.future = loop.create_future()
                cancelled = error
                if not patient:
                    loop.call_later(GIVE_UP_S, self._give_up, act)
        if cancelled is not None:
            self.ended(act)
            raise cancelled
        if act.error is not None:
            raise act.error
        self.ended(act)
        return act.result

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        """Asked once: each time costs a system call."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    def begin(self, queue: deque[A]) -> tuple[list[A], Link] | None:
        """Before the turn of the loop is over: may take a batch from the queue, and commit and decide it. Or send it:
        then it is returned, with the connection over which `write` finds it under way."""
        return None

    def may_begin(self, link: Link) -> bool:
        """Nothing is in doubt, and the tally was seen over this connection."""
        return self._doubt is None and self.tally.w in link.db.looked_at

    def _give_up(self, act: A) -> None:
        """Break off a commit that only those wait for who have given up: it may wait for a standby that is gone. The
        driver tells the server, so that no connection is left behind there."""
        act.given_up = True
        if act in self._queue:
            self._queue.remove(act)
            act.decide()
        elif not act.decided and self._pump is not None and all(one.given_up for one in self._batch):
            self._pump.cancel()

    def ended(self, act: A) -> None:
        """It is decided: also where whoever asked was cancelled meanwhile."""

    def busy(self) -> bool:
        return bool(self._queue) or (self._pump is not None and not self._pump.done())

    async def close(self) -> None:
        for task in (self._pump, self._letting):
            if task is not None:
                await asyncio.wait((task,))

    @abstractmethod
    def next_batch(self, queue: deque[A]) -> list[A]:
        """Take from the queue what may share a transaction."""

    @abstractmethod
    async def write(self, link: Link, acts: list[A]) -> int:
        """The whole transaction; by how much it moved the total. Calls `committing` before its commit is sent, sets
        results and errors. Raises InDoubt, psycopg.Error."""

    async def recover(self, link: Link, act: A) -> None:
        """Set the result of an act that was found committed."""
        raise InDoubt("its result is not known")

    async def count(self, link: Link, move: int, *, newest: int, at_ms: int) -> None:
        """Move the tally in the transaction that is under way. Raises JournalOlderCopy where the row is older than this
        lane left it."""
        self.newest = newest
        stored, at_ms, w, stamp = self.tally.moved(move, at_ms=at_ms)
        if not await link.run(COUNT_IN, (stored, at_ms, newest, w, stamp)):
            await link.roll_back()
            await self._find_row(link)
            raise psycopg.OperationalError("the row of the tally was folded: again with a new one")

    def committing(self, move: int | None) -> None:
        """From now on a lost connection leaves this batch in doubt; None: no more."""
        self._doubt = move

    # the pump

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        if self._begun is None or len(self._begun[0]) > 1:
            await asyncio.sleep(0)  # what others ask for in this turn of the loop shares the commit
        self._under_way = True
        while self._begun is not None or self._queue:
            if self._begun is None:
                self._began_at = loop.time()
            acts, taken = self._begun or (self.next_batch(self._queue), None)
            self._begun, self._batch = None, acts
            try:
                await self._decide(acts, taken)
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                for act in acts:
                    act.error = act.error or error
            if self._links.shared:
                if self._letting is not None:
                    await asyncio.wait((self._letting,))
                self._letting = asyncio.get_running_loop().create_task(_let_go(acts))
            else:
                for act in acts:
                    act.decide()
            if self._is_far(loop.time()):
                await asyncio.sleep(0)
        self._under_way = False

    def _is_far(self, now: float) -> bool:
        """Whether those that were not in the batch waited longer for its answer than they had computed meanwhile. Then
        it is better that all of them share a commit: for a while nothing is sent early."""
        self.together = max(0, self.together - 1)
        computed = self._queued_at - self._began_at
        if not 0 < computed < now - self._queued_at:
            return False
        self.together = TOGETHER
        return True

    async def _decide(self, acts: list[A], taken: Link | None) -> None:
        """Commit the batch, or set the error of every act. `taken`: the connection over which it is under way."""
        loop = asyncio.get_running_loop()
        until, in_doubt = loop.time() + TRY_S, False
        while True:
            try:
                link, taken = taken, None
                async with self._links.borrowed(taken=link) as link:
                    await self._prepare(link)
                    if self._doubt is not None and await self._settle(link) and self._in_doubt is acts:
                        return
                    self._in_doubt = acts
                    for act in acts:
                        act.forget()
                    await self._commit(link, acts)
                self.trouble = None
                return
            except HoldfastError as error:
                self._fail(acts, error)
                return
            except InDoubt as error:
                in_doubt = True
                trouble: HoldfastError = CommitUnknown(f"the connection was lost while committing: {error}")
            except (psycopg.Error, OSError) as error:
                in_doubt = in_doubt or self._doubt is not None
                passes = not isinstance(error, psycopg.Error) or may_pass(error)
                trouble = translated(
                    error if isinstance(error, psycopg.Error) else psycopg.OperationalError(str(error)), live=True
                )
                if not passes:
                    self._fail(acts, CommitUnknown(trouble.message) if self._doubt is not None else trouble)
                    return
            self.trouble = trouble
            if loop.time() >= until:
                self._fail(acts, CommitUnknown(trouble.message) if in_doubt else trouble)
                return
            await asyncio.sleep(AGAIN_S)

    async def _commit(self, link: Link, acts: list[A]) -> None:
        try:
            move = await self.write(link, acts)
        except psycopg.Error as error:
            if link.lost and self._doubt is not None:
                raise InDoubt(str(error)) from error
            await self._abort(link)  # the server said no, or nothing of a commit had been sent
            raise
        except HoldfastError:
            await self._abort(link)
            raise
        if self._doubt is None:
            return  # every act was refused: nothing was written
        await link.make_durable()
        self.committed(move)

    async def _abort(self, link: Link) -> None:
        self._doubt = None
        if not link.lost and link.db.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            await link.roll_back()

    def committed(self, move: int) -> None:
        self.tally.stamp += 1
        self.tally.total += move
        self.tally.last = max(self.tally.last, self.newest)
        self.tally.at_ms = self.tally.asked_ms
        self._raise_mark(self.tally.last)
        self._doubt = None
        self.commits += 1

    async def _settle(self, link: Link) -> bool:
        """Whether the batch in doubt is committed, and durable; or its acts have errors. It may be one that was given
        up."""
        move = cast(int, self._doubt)

        async def look(link: Link) -> int:
            row = await link.one("SELECT stamp FROM $s.tally WHERE w = %s FOR UPDATE", (self.tally.w,))
            found = -1 if row is None else int(row[0])
            # A synced write: only with it is what was found known to be on the standby too.
            by = USED_UP if found == self.tally.stamp else 0
            await link.change("UPDATE $s.tally SET stamp = stamp + %s WHERE w = %s", (by, self.tally.w))
            return found + by

        found = await transact(link, look)
        if found == self.tally.stamp + 1:
            for act in self._in_doubt:
                if act.error is None and not act.has_result:
                    await self.recover(link, act)
            self.committed(move)
            return True
        self._doubt = None
        if found < 0:
            await self._find_row(link)
            self._fail(self._in_doubt, CommitUnknown("the row that would show whether it took place was folded"))
            return True
        if found < self.tally.stamp:
            self.refuse_older()
        self.tally.stamp = found
        return False

    def refuse_older(self) -> None:
        """Raises JournalOlderCopy, from now on for every act."""
        self.broken = (
            f"{self._links.place.shown}: the database has lost commits that it had acknowledged to this process: "
            "it was promoted with loss, or an older copy was put back"
        )
        raise JournalOlderCopy(self.broken, hint=OLDER_HINT)

    async def _prepare(self, link: Link) -> None:
        """Over a new connection, look first whether the database still has what this lane has committed."""
        if self.tally.w in link.db.looked_at:
            return
        if self._made and self._doubt is None:
            await self._find_row(link)
        if not self._made:
            stored = self.tally.running.hide(0, self.tally.w.encode(), os.urandom(NONCE_BYTES))
            await link.run(
                "INSERT INTO $s.tally (w, stamp, total, last, at_ms) "
                f"VALUES (%s, 0, %b, 0, {DATABASE_TIME}) ON CONFLICT DO NOTHING",
                (self.tally.w, stored),
            )
            self._made = True
        link.db.looked_at.add(self.tally.w)

    async def _find_row(self, link: Link) -> None:
        """Look whether the database still has what this lane has committed. A row that retention has folded is gone,
        and its numbers are in another one: then a new one is begun. Raises JournalOlderCopy."""
        row = await link.one(
            "SELECT (SELECT stamp FROM $s.tally WHERE w = %s), coalesce(max(last), 0) FROM $s.tally", (self.tally.w,)
        )
        stamp, newest = row or (None, 0)
        if newest < self.tally.last or (stamp is not None and stamp < self.tally.stamp):
            self.refuse_older()
        if stamp is None:
            self.tally, self._made = Tally(self.tally.running, last=self.tally.last), False

    @staticmethod
    def _fail(acts: Sequence[A], error: HoldfastError) -> None:
        for act in acts:
            act.error = act.error or error


async def _let_go(acts: Sequence[Act]) -> None:
    """One after the other: of an agent with much to do, those who waited for a commit do not all go on at once, and in
    most turns of the loop other agents of this process find it free."""
    for act in acts:
        act.decide()
        for _ in range(TURNS_EACH):
            await asyncio.sleep(0)
