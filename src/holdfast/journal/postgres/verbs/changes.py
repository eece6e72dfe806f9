"""Waiting for changes that other processes have made, and telling them of ours.

The database is asked, ever more rarely while nothing happens: that alone is what anybody relies on. NOTIFY is a hint on
top of it, which brings the next look forward. It is sent after a commit, in a transaction of its own that waits for no
disk: inside the commit it would make all commits of the server wait for one another. Who may have been told at the same
moment is told once more a little later; a hint that is lost costs nothing but the time until the next look.

Hints are heard over one connection of this process for all journals in a database, and only where that connection leads
to the server itself. A pooler may give the server's end of it to others: it is recognized by the number of the server's
process, which it cannot know when it greets us. Behind one, `direct=HOST:PORT` in the url says where the server is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import AsyncConnection

from holdfast.core.waiting import wait_event
from holdfast.errors import HoldfastError
from holdfast.journal.postgres import totals
from holdfast.journal.postgres.links import Link, Links, Use
from holdfast.journal.postgres.place import Row

POLL_S = 0.05
POLL_MAX_S = 0.5
LOOK_EVERY_S = 0.01  # at most, however many hints come
HINT_EVERY_S = 0.05
# Of an agent among many: each renewal of its lease is a look too. A hint that does not come costs that long.
HEARD_S, UNHEARD_S = 60.0, 1.0
LISTEN_AGAIN_S = 5.0
CHANNEL = "holdfast"
_HINT = "BEGIN; SET LOCAL synchronous_commit = off; SELECT pg_catalog.pg_notify('{}', '{}'); COMMIT"


class Changes:
    """Of one journal, for one process; `own_id` is a word that no other process has. `own_lane`: whose commits are no
    change, because what others may wait for is noted. They come with every step, and each would make everybody look.
    Not where agents share the process: there a renewal of the lease is the look, and it counts all lanes."""

    def __init__(self, links: Links, own_id: str, own_lane: Callable[[], str]) -> None:
        self._links = links
        self._schema, self._own_id, self._own_lane = links.place.schema, own_id, own_lane
        self._changed, self._count, self._waiting = asyncio.Event(), 0, 0
        self.seen: Row | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._hinted, self._closed = asyncio.Event(), asyncio.Event()
        self._hinting: asyncio.Task[None] | None = None
        self._hint_again = False
        self.listener: Listener | None = None

    async def wait(self, *, timeout_s: float, seen: int | None) -> int:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        if seen is None:
            await self._look()
        before = self._count if seen is None else seen
        self._waiting += 1
        try:
            while self._count == before and (left := end - loop.time()) > 0:
                if self._watcher is None or self._watcher.done():
                    self._watcher = loop.create_task(self._watch())
                await wait_event(self._changed, left)
        finally:
            self._waiting -= 1
        return self._count

    async def _watch(self) -> None:
        """One look for all who wait, as long as somebody does; the longer nothing happens, the rarer."""
        if self.listener is None:
            self.listener = Listener.shared(self._links.place.direct)
            self.listener.hearers[self] = self._hear
        pause_s, hinted = POLL_S, False
        while self._waiting and not self._closed.is_set():
            before = self._count
            self._hinted.clear()
            try:
                await self._look(hinted=hinted)
            except HoldfastError:
                self._wake()  # those who wait look themselves, and so get the error
            await asyncio.sleep(LOOK_EVERY_S)
            if self._links.shared:
                pause_s = HEARD_S if self.listener.hears else UNHEARD_S
            else:
                pause_s = POLL_S if self._count != before else min(POLL_MAX_S, pause_s * 1.2)
            hinted = await wait_event(self._hinted, pause_s)

    async def _look(self, *, hinted: bool = False) -> None:
        """After a hint those who wait are woken first: they look themselves. What comes after their look brings its own
        hint, or is found by the next renewal of a lease."""
        if hinted:
            self._wake()
            self.seen = await self._links.read(self.version)
        else:
            self._found(await self._links.read(self.version))

    async def version(self, link: Link) -> Row | None:
        return await totals.version(link, but="" if self._links.shared else self._own_lane())

    def renewed(self, version: Row, *, rouse: bool) -> None:
        """A renewal of the lease has read the version, of all lanes. `rouse`: those who wait have something to do even
        if it is the same as before."""
        self._found(version if self._links.shared else self.seen, rouse=rouse)

    def _found(self, version: Row | None, *, rouse: bool = False) -> None:
        if rouse or version != self.seen:
            self.seen = version
            self._wake()

    def _wake(self) -> None:
        """All who wait. Each has its own count of what it has seen, so nobody takes another's wake-up."""
        self._count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _hear(self, said: str) -> None:
        schema, _, own_id = said.partition(" ")
        if schema == self._schema and own_id != self._own_id:
            self._hinted.set()

    def note(self) -> None:
        """This process has committed something that others may wait for."""
        self._wake()
        self._hint_again = True
        if self._hinting is None or self._hinting.done():
            self._hinting = asyncio.get_running_loop().create_task(self._hint())

    async def _hint(self) -> None:
        while self._hint_again:
            self._hint_again = False
            with suppress(psycopg.Error, OSError):
                async with self._links.borrowed(Use.LOOK) as link:
                    await link.db.execute(_HINT.format(CHANNEL, f"{self._schema} {self._own_id}").encode())
            await wait_event(self._closed, HINT_EVERY_S)

    async def close(self) -> None:
        self._closed.set()
        if self._hinting is not None:  # a command that ends at once still tells the workers
            await asyncio.wait((self._hinting,), timeout=1.0)
            self._hinting.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self.listener is not None:
            await self.listener.leave(self)


class Listener:
    """One connection on which this process hears hints of a server, for as long as a journal of it is open."""

    _all: dict[tuple[asyncio.AbstractEventLoop, str], Listener] = {}  # noqa: RUF012 - of the process, on purpose

    def __init__(self, key: tuple[asyncio.AbstractEventLoop, str]) -> None:
        self._key = key
        self.hearers: dict[object, Callable[[str], None]] = {}
        self.hears = False
        self._task = key[0].create_task(self._run())

    @classmethod
    def shared(cls, conninfo: str) -> Listener:
        key = (asyncio.get_running_loop(), conninfo)
        if key not in cls._all:
            cls._all[key] = cls(key)
        return cls._all[key]

    async def leave(self, hearer: object) -> None:
        self.hearers.pop(hearer, None)
        if not self.hearers and self._all.pop(self._key, None) is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pooled = False
        while not pooled:
            with suppress(psycopg.Error, OSError):
                db = await AsyncConnection.connect(self._key[1], autocommit=True, prepare_threshold=None)
                try:
                    pooled = await self._listen(db)
                finally:
                    self.hears = False
                    db.pgconn.finish()
            await asyncio.sleep(LISTEN_AGAIN_S)

    async def _listen(self, db: AsyncConnection) -> bool:
        """Until the connection is lost; True at once where it leads to a pooler."""
        row = await (await db.execute("SELECT pg_backend_pid()")).fetchone()
        if row is None or row[0] != db.info.backend_pid:
            return True
        await db.execute(f"LISTEN {CHANNEL}")
        self.hears = True
        async for one in db.notifies():
            for hear in [*self.hearers.values()]:
                hear(one.payload)
        return False
