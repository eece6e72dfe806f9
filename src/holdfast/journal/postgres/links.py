"""Connections, and transactions over them whose outcome is three-valued.

True of every transaction here: it says again what its commit must be (BEGIN), because a pooler may have given the
connection to others before. Its failure means one of three things:

* the server reported an error, or the connection was lost before COMMIT was sent: *aborted*. What may succeed the next
  time (a deadlock, a standby that is being promoted, a server that restarts) is tried again;
* the connection was lost after COMMIT was sent: *in doubt*. `InDoubt` is raised, and whoever asked settles it by a
  locking read or by repeating what may be repeated;
* COMMIT returned with a warning (SQLSTATE 01000): the wait for the synchronous standby was broken off, so the rows are
  on this server alone. They count only after a later write has come back without one (`make_durable`): the log is
  ordered, so what that one proves of itself it proves of everything before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from enum import Enum
from typing import Any, TypeVar

import psycopg

from holdfast.errors import CommitUnknown, HoldfastError
from holdfast.journal.postgres.place import WARNING, Known, PostgresPlace, Row, Wire
from holdfast.journal.postgres.sql_errors import AGAIN, translated

T = TypeVar("T")

LINKS_MAX = 4
LOCK_WAIT_MS = 10_000
# A process that is stopped or cut off inside a transaction holds its locks until then, and nobody can take over the
# tasks in it, also after a lease of 3 s. When the process goes on, it does the same again.
IDLE_MS = 2_000
BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = on; SET LOCAL client_min_messages = warning; "
    f"SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {LOCK_WAIT_MS}; "
    f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}; SET LOCAL search_path = pg_catalog"
).encode()
# The same in a statement that is its own transaction. Without its warning a wait that was broken off looks like none.
_SYNCED = "set_config('synchronous_commit', 'on', true)"
_WARNS = "set_config('client_min_messages', 'warning', true)"
_WAITS = f"set_config('lock_timeout', '{LOCK_WAIT_MS}', true)"
SETTINGS = f"SELECT {_SYNCED} AS synced, {_WARNS} AS warns, {_WAITS} AS waits"
_SYNCED_HOLDS = f"{_SYNCED} <> '' AND {_WARNS} <> ''"  # in a WHERE
SETTINGS_HOLD = f"{_SYNCED_HOLDS} AND {_WAITS} <> ''"
_SYNCED_WRITE = f"UPDATE $s.counter SET value = value WHERE name = 'inbox' AND {_SYNCED_HOLDS}"
# For what may be lost with a server, and must be said while its standby is gone: notices, and whether it is gone.
BEGIN_LOCAL = BEGIN.replace(b"synchronous_commit = on", b"synchronous_commit = local")
# Reading everything may take long, and so may what is computed between two parts of it.
BEGIN_READING = (
    b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0; "
    b"SET LOCAL idle_in_transaction_session_timeout = 0"
)
AGAIN_S = 0.1
TRY_S = 20.0


class Use(Enum):
    """What a connection is borrowed for."""

    COMMIT = "commit"  # waits for the server's standby, perhaps for long
    LOOK = "look"  # waits for no standby
    LEASE = "lease"  # a renewal: waits for no other connection


class InDoubt(Exception):
    """The connection was lost with a commit under way."""


class Link:
    """One connection, for the statements of one journal."""

    __slots__ = ("db", "place")

    def __init__(self, place: PostgresPlace, db: Wire) -> None:
        self.place = place
        self.db = db

    @classmethod
    async def open(cls, place: PostgresPlace, *, known: Known | None = None) -> Link:
        return cls(place, await place.connect(known=known))

    async def run(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        done = await self.db.execute(self.place.sql(text), values or None, binary=bool(values))
        return await done.fetchall() if done.description is not None else []

    async def one(self, text: str, values: Sequence[Any] = ()) -> Row | None:
        rows = await self.run(text, values)
        return rows[0] if rows else None

    async def parts(self, query: str, *, rows: int) -> AsyncGenerator[list[Row]]:
        """A query's rows, so many at a time, in a transaction of the caller's. The cursor ends with that transaction:
        the driver's own would have to be closed by a message, which a cancel may keep from being sent."""
        await self.run(f"DECLARE part NO SCROLL CURSOR FOR {query}")
        while found := await (await self.db.execute(f"FETCH {rows} FROM part".encode(), binary=True)).fetchall():
            yield found
        await self.run("CLOSE part")

    async def change(self, text: str, values: Sequence[Any] = ()) -> int:
        """How many rows it changed."""
        return (await self.db.execute(self.place.sql(text), values or None)).rowcount

    @property
    def lost(self) -> bool:
        return self.db.closed

    async def close(self) -> None:
        with suppress(psycopg.Error, OSError):
            await self.db.close()

    async def commit(self) -> None:
        """Raises InDoubt."""
        self.db.warned = ""
        try:
            await self.db.execute(b"COMMIT")
        except psycopg.Error as error:
            if self.lost:
                raise InDoubt(str(error)) from error
            raise
        await self.make_durable()

    async def make_durable(self) -> None:
        """Where the last commit came back with a warning: write until one comes back without. Like every other it says
        itself what its commit must be: a server or a user may be set to wait for no standby."""
        while self.db.warned:
            self.db.warned = ""
            await self.run(_SYNCED_WRITE)
            if self.db.warned:
                await asyncio.sleep(AGAIN_S)

    async def roll_back(self) -> None:
        try:
            await self.db.execute(b"ROLLBACK")
        except psycopg.Error:
            await self.close()


class Links:
    """A few connections for one journal, given in the order they are asked for."""

    shared = False  # with the journals of other agents (pool.py)

    def __init__(self, first: Link, *, limit: int = LINKS_MAX) -> None:
        self.place = first.place
        self._limit = limit
        self._open = 1
        self._idle: list[Link] = [first]
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._known = Known(first.db.address, answers=True)
        self.commits = 0

    @asynccontextmanager
    async def borrowed(self, use: Use = Use.COMMIT, *, taken: Link | None = None) -> AsyncGenerator[Link]:
        """A connection for the block, or the one that was taken before. Raises psycopg.Error."""
        link = taken or await self._take(use is Use.LEASE)
        try:
            yield link
        except BaseException:  # a cancel too: what is under way on it must not reach the next one
            if link.db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                await link.close()
            raise
        finally:
            self.give(link)

    def take_idle(self) -> Link | None:
        """A connection that is idle now; the caller gives it back, or has it `taken`."""
        return self._idle.pop() if self._idle and not self._idle[-1].lost else None

    async def _take(self, urgent: bool) -> Link:
        while not (urgent or self._idle) and self._open >= self._limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()
                raise
        while self._idle:
            link = self._idle.pop()
            if not link.lost:
                return link
            self._known = Known(link.db.address, answers=False)
            self._open -= 1
        self._open += 1
        try:
            link = await Link.open(self.place, known=self._known)
        except BaseException:  # a cancel too: nobody waits for a connection that does not come
            self._open -= 1
            self._wake()
            raise
        self._known = Known(link.db.address, answers=True)
        return link

    def give(self, link: Link) -> None:
        lost = link.lost
        if lost:
            self._known = Known(link.db.address, answers=False)
        if lost or self._closed or self._open > self._limit:
            self._open -= 1
            link.db.pgconn.finish()
        else:
            self._idle.append(link)
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def read(self, act: Callable[[Link], Awaitable[T]]) -> T:
        """Look; again where the connection was lost meanwhile."""

        async def once() -> T:
            async with self.borrowed(Use.LOOK) as link:
                return await act(link)

        return await repeated(once)

    async def write(self, act: Callable[[Link], Awaitable[T]], *, begin: bytes = BEGIN) -> T:
        """One transaction that may be repeated: what is in doubt is done once more, which settles it. Raises what the
        act raises; JournalBusy, JournalFull; CommitUnknown."""

        async def once() -> T:
            async with self.borrowed(Use.LOOK if begin is BEGIN_LOCAL else Use.COMMIT) as link:
                result = await transact(link, act, begin=begin)
                self.commits += 1
                return result

        return await repeated(once)

    async def extend(self, statement: str, values: Sequence[int]) -> list[Row]:
        """A statement that extends a lease, and is its own transaction; done again where the connection was lost."""

        async def once() -> list[Row]:
            async with self.borrowed(Use.LEASE) as link:
                link.db.warned = ""
                rows = await link.run(statement, values)
                await link.make_durable()
                self.commits += 1
                return rows

        return await repeated(once)

    async def close(self) -> None:
        self._closed = True
        for link in self._idle:
            await link.close()


@contextmanager
def at_once(place: PostgresPlace, begin: bytes = BEGIN) -> Generator[psycopg.Connection[Row]]:
    """One transaction for the block, from outside any session; blocks. Raises psycopg.Error."""
    warned: list[str | None] = []
    with closing(place.connect_at_once()) as db:
        db.add_notice_handler(lambda said: warned.append(said.sqlstate))
        db.execute(begin)
        yield db
        warned.clear()
        db.execute(b"COMMIT")
        while WARNING in warned:  # as `Link.make_durable`
            warned.clear()
            time.sleep(AGAIN_S)
            db.execute(place.sql(_SYNCED_WRITE))


async def transact(link: Link, act: Callable[[Link], Awaitable[T]], *, begin: bytes = BEGIN) -> T:
    """Raises InDoubt, psycopg.Error, and what the act raises: then nothing was written."""
    await link.db.execute(begin)
    try:
        result = await act(link)
    except BaseException:  # whatever it is, no transaction may stay open
        await link.roll_back()
        raise
    await link.commit()
    return result


async def repeated(once: Callable[[], Awaitable[T]], *, seconds: float = TRY_S) -> T:
    """Until it succeeds, or fails in a way that will not pass. Raises JournalBusy and its like: nothing was written;
    CommitUnknown: it may have been."""
    loop = asyncio.get_running_loop()
    until, in_doubt = loop.time() + seconds, False
    while True:
        try:
            return await once()
        except InDoubt as error:
            in_doubt, trouble = True, CommitUnknown(f"the connection was lost while committing: {error}")
        except psycopg.Error as error:
            trouble: HoldfastError = translated(error, live=True)
            if not may_pass(error):
                raise (CommitUnknown(trouble.message) if in_doubt else trouble) from error
        if loop.time() >= until:
            raise CommitUnknown(trouble.message) if in_doubt else trouble
        await asyncio.sleep(AGAIN_S)


def may_pass(error: psycopg.Error) -> bool:
    """Whether the same may succeed a little later: the connection was lost, or the server said so."""
    if isinstance(error, AGAIN):
        return True
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "53")
    )
