"""Connections that the journals of many agents share: one pool of psycopg-pool for each database.

A connection serves any journal of its database, because nothing is kept in it (place.py) but statements by name. Each
transaction has one for itself and gives it back; whether it was lost while committing is seen here and by nobody else,
so a commit in doubt is what it is over a connection of one's own (links.py).

Three uses have a share of the pool each. Commits wait for the server's standby: while it is gone they may all hang, and
then looks must still tell of it. Renewals of leases wait behind neither. And an agent has few connections of a share at
a time, so one that has much to do leaves the rest to the others: they are given in the order they are asked for.

Leases that are renewed at the same moment share a transaction: one wake-up, one round trip, one commit for all of them.
If it fails, because of one journal or of the connection, each is renewed by itself.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Semaphore
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import NamedTuple

import psycopg
from psycopg_pool import AsyncConnectionPool

from holdfast.journal.postgres.links import BEGIN, LOCK_WAIT_MS, SETTINGS, Link, Links, Use
from holdfast.journal.postgres.place import STATELESS, Known, PostgresPlace, Row, Wire

SHARES = {Use.COMMIT: 20, Use.LOOK: 8, Use.LEASE: 4}
AGENT_MAX = 3  # of one share: two lanes, and one for all else
WAIT_S = 5.0  # for a connection; the caller tries again
IDLE_S = 5.0  # after so long a connection that was not needed is closed: each keeps what it knows of every journal
GATHER_S = 0.02  # engines renew at the same ticks of the clock
TOGETHER_WAIT_MS = 200  # a journal whose session is locked keeps the others waiting no longer
_PLAN_ONCE = b"SET LOCAL plan_cache_mode = force_generic_plan"
_SETTINGS_TOGETHER = SETTINGS.replace(f"'{LOCK_WAIT_MS}'", f"'{TOGETHER_WAIT_MS}'")

# It warns of every connection that a server closes; what comes of that is ours to say.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())
logging.getLogger("psycopg.pool").propagate = False


class Pool:
    """The connections to one database."""

    def __init__(self, place: PostgresPlace) -> None:
        self._place = place
        self._known: Known | None = None
        self._shares = {use: Semaphore(most) for use, most in SHARES.items()}
        self._checking: asyncio.Task[None] | None = None
        self.renewals = Renewals(self)
        self._pool = AsyncConnectionPool(
            lambda: place.asking(self._known),
            connection_class=Wire,
            kwargs=STATELESS,
            min_size=1,
            max_size=sum(SHARES.values()),
            open=False,
            timeout=WAIT_S,
            max_idle=IDLE_S,
            reconnect_timeout=WAIT_S,  # the caller asks again: no attempt waits for minutes
        )

    @asynccontextmanager
    async def connection(self, use: Use) -> AsyncGenerator[Wire]:
        """Raises psycopg.Error."""
        async with self._shares[use]:
            if self._pool.closed:
                await self._pool.open()
            db = await self._pool.getconn()
            try:
                yield db
            except BaseException:  # a cancel too: what is under way on it must not reach the next one
                if db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    await db.close()
                raise
            finally:
                self._note(db)
                await self._pool.putconn(db)

    def _note(self, db: Wire) -> None:
        """A connection that is lost is seldom the only one: look at the others before they are given away."""
        self._known = Known(db.address, answers=not db.closed)
        if db.closed and (self._checking is None or self._checking.done()):
            self._checking = asyncio.get_running_loop().create_task(self._pool.check())

    async def close(self) -> None:
        await self.renewals.close()
        if self._checking is not None:
            await asyncio.wait((self._checking,))
        await self._pool.close()


class Renewal(NamedTuple):
    """One lease, to be extended with others."""

    place: PostgresPlace
    text: str  # with {} for each value
    values: tuple[int, ...]
    rows: asyncio.Future[list[Row] | None]  # None: it is to be done alone

    def plain(self) -> bytes:
        return self.place.sql(self.text.format(*self.values))

    def prepared(self, known: set[bytes]) -> list[bytes]:
        """By its name; the first time on a connection with what the name means. To plan the statement costs the server
        three times what it costs to run it. Statistics that change make the server plan it again."""
        given = [f"${number}" for number in range(1, len(self.values) + 1)]
        sql = self.place.sql(self.text.format(*given))
        name = b"holdfast_" + sha256(sql).hexdigest()[:16].encode()
        run = b"EXECUTE %s(%s)" % (name, ", ".join(map(str, self.values)).encode())
        if name in known:
            return [run]
        known.add(name)
        return [b"PREPARE %s(%s) AS %s" % (name, b", ".join([b"bigint"] * len(given)), sql), run]


class Renewals:
    """Leases of one database that are extended together."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._asked: list[Renewal] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._kept: AsyncExitStack | None = None
        self._db: Wire | None = (
            None  # one connection, so that the server plans a statement once and not on each of many
        )
        self._known: set[bytes] | None = None  # None: behind a pooler

    async def extend(self, place: PostgresPlace, text: str, values: Sequence[int]) -> list[Row] | None:
        """What the statement gives; None where nothing was done."""
        loop = asyncio.get_running_loop()
        asked = Renewal(place, text, tuple(map(int, values)), loop.create_future())
        self._asked.append(asked)
        if len(self._asked) == 1:
            sending = loop.create_task(self._send())
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        return await asked.rows

    async def _send(self) -> None:
        await asyncio.sleep(GATHER_S)
        together, self._asked = self._asked, []
        found: list[list[Row]] = []
        try:
            found = await self._commit(together)
        except (psycopg.Error, OSError):
            pass  # each says itself what is wrong
        finally:  # a cancel too: whoever waits goes on
            for one, rows in zip(together, found or [None] * len(together), strict=True):
                if not one.rows.done():
                    one.rows.set_result(rows)

    async def _commit(self, together: list[Renewal]) -> list[list[Row]]:
        if self._turn.locked():  # the commit before waits, for the standby or for a lock
            async with self._pool.connection(Use.LEASE) as db:
                return await _extend_on(db, together, None)
        async with self._turn:
            try:
                db = self._db or await self._keep()
                return await _extend_on(db, together, self._known)
            except BaseException:  # what the server knows is open now
                await self._give_back()
                raise

    async def _keep(self) -> Wire:
        self._kept = AsyncExitStack()
        self._db = db = await self._kept.enter_async_context(self._pool.connection(Use.LEASE))
        row = await (await db.execute("SELECT pg_backend_pid()")).fetchone()
        self._known = set() if row is not None and row[0] == db.info.backend_pid else None
        return db

    async def _give_back(self) -> None:
        if self._db is not None:
            await self._db.close()
        if self._kept is not None:
            await self._kept.aclose()
        self._kept = self._db = None

    async def close(self) -> None:
        await asyncio.gather(*self._sending)
        await self._give_back()


async def _extend_on(db: Wire, together: list[Renewal], known: set[bytes] | None) -> list[list[Row]]:
    each = [[one.plain()] if known is None else one.prepared(known) for one in together]
    db.warned = ""
    text = b"; ".join((BEGIN, _PLAN_ONCE, *(part for parts in each for part in parts), b"COMMIT"))
    cursor, found = await db.execute(text), list[list[Row]]()
    more: bool | None = True
    while more:
        if cursor.description is not None:
            found.append(await cursor.fetchall())
        more = cursor.nextset()
    await Link(together[0].place, db).make_durable()
    return found


class PooledLinks(Links):
    """One journal's share of a pool."""

    shared = True

    def __init__(self, place: PostgresPlace, pool: Pool) -> None:
        self.place = place
        self._pool = pool
        self._own = {use: Semaphore(AGENT_MAX) for use in Use}
        self.commits = 0

    def take_idle(self) -> None:
        """A batch is not sent before its turn: the event loop is the others' too."""

    @asynccontextmanager
    async def borrowed(self, use: Use = Use.COMMIT, *, taken: Link | None = None) -> AsyncGenerator[Link]:
        async with self._own[use], self._pool.connection(use) as db:
            yield Link(self.place, db)

    async def extend(self, statement: str, values: Sequence[int]) -> list[Row]:
        # Simple protocol, which takes several statements at once and no values: these are whole numbers.
        text = statement.replace(SETTINGS, _SETTINGS_TOGETHER).replace("%b", "{}")
        rows = await self._pool.renewals.extend(self.place, text, values)
        if rows is None:
            return await super().extend(statement, values)
        self.commits += 1
        return rows

    async def close(self) -> None:
        """The pool goes on: it is the others' too."""


class Pools:
    """Of one process: a pool for each database that its agents have."""

    def __init__(self) -> None:
        self._all: dict[str, Pool] = {}

    def links(self, place: PostgresPlace) -> PooledLinks:
        pool = self._all.get(place.conninfo)
        if pool is None:
            pool = self._all[place.conninfo] = Pool(place)
        return PooledLinks(place, pool)

    async def close(self) -> None:
        for pool in self._all.values():
            await pool.close()
