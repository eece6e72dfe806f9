"""The shared journal keeps the contract: over the oldest and the newest PostgreSQL, and through a pooler."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest

from holdfast.core.clock import Clock, SystemEntropy
from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.journal_address import JournalAddress
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.contract import Journal, Session
from holdfast.journal.postgres.admin import PostgresAdmin
from holdfast.journal.postgres.place import PostgresPlace
from holdfast.journal.postgres.verbs.sessions import PagedSession
from holdfast.testing.clocks import ManualClock
from holdfast.testing.journal_contract import Administered, JournalContract, SeveralHosts, World
from holdfast_proofs.support.postgres import NEWEST, Pgbouncer, Server, find_oldest, pooled, started

_NUMBERS = itertools.count(1)


class FixedKeys:
    current_journal_key = 1

    def __init__(self, effect: bytes = b"e") -> None:
        self.k_effect = effect * 32

    def journal_key(self, key_id: int) -> bytes:
        return bytes([key_id]) * 32


class PostgresWorld(World):
    """A schema of its own, whose clock is a row that the test turns."""

    def __init__(self, server: Server, url: str, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._schema = f"w{next(_NUMBERS)}"
        self._db = server.connect()
        self._run(f"CREATE SCHEMA {self._schema}_test")
        self._run(f"CREATE TABLE {self._schema}_test.clock (ms bigint, timeline text)")
        self._run(f"INSERT INTO {self._schema}_test.clock VALUES (0, '00000001')")
        self.place = replace(
            PostgresPlace.read(f"{url}&schema={self._schema}"),
            time=f"(SELECT ms FROM {self._schema}_test.clock)",
            timeline=f"(SELECT timeline FROM {self._schema}_test.clock)",
        )
        self.clock = _Together(self)
        self.there = ManualClock(boot_ms=10**9, boot_id="boot-9")
        self._server_ms = self.clock.wall_ms()
        self.let_server_pass(0)
        self.opened: list[Journal] = []
        self.url = f"{url}&schema={self._schema}"
        folder.mkdir(exist_ok=True)
        self.administered = _Administered(
            world=self,
            keys=FixedKeys(),
            other_keys=FixedKeys(b"o"),
            place=JournalAddress(folder=folder / "here", url=self.url),
            never=JournalAddress(folder=folder / "here", url=f"{url}&schema={self._schema}_never"),
            copies=folder,
            put_back=self._put_back,
            lose=self._lose,
            delete=self._delete,
        )
        self.hosts = SeveralHosts(
            elsewhere=self.there,
            connect_elsewhere=lambda: self._connect(self.there, "there"),
            let_pass=self._let_pass,
            step=self.let_server_pass,
            promote=self._promote,
            renew_as_before=self._renew_as_before,
        )

    def _run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        done = self._db.execute(cast(LiteralString, sql), values or None)
        return done.fetchall() if done.description else []

    async def connect(self) -> Journal:
        return await self._connect(self.clock, "here")

    async def _connect(self, clock: Clock, host: str) -> Journal:
        journal = await self.admin(host).open(keys=FixedKeys(), clock=clock, entropy=SystemEntropy())
        self.opened.append(journal)
        return journal

    def admin(self, host: str = "here") -> PostgresAdmin:
        return PostgresAdmin(self.url, self._folder / host / "instance", place=self.place)

    def keep_aside(self) -> None:
        """What a dump of this moment holds."""
        own, aside = self._schema, f"{self._schema}_aside"
        self._run(f"CREATE SCHEMA {aside}")
        for table in self._tables():
            self._run(f"CREATE TABLE {aside}.{table} AS TABLE {own}.{table}")
        self._run(f"CREATE TABLE {aside}.drawn AS SELECT last_value FROM {own}.record_number")

    def _lose(self) -> None:
        self._run(f"DROP SCHEMA {self._schema} CASCADE")

    def _put_back(self, _copy: Path) -> None:
        own, aside = self._schema, f"{self._schema}_aside"
        for table in self._tables():
            self._run(f"DELETE FROM {own}.{table}")
            self._run(f"INSERT INTO {own}.{table} OVERRIDING SYSTEM VALUE TABLE {aside}.{table}")
        self._run(f"SELECT setval('{own}.record_number', last_value) FROM {aside}.drawn")

    def _tables(self) -> list[str]:
        return [row[0] for row in self._run("SELECT tablename FROM pg_tables WHERE schemaname = %s", self._schema)]

    def _delete(self, task_id: TaskId) -> None:
        own, raw = self._schema, task_id_bytes(task_id)
        self._run(f"DELETE FROM {own}.record WHERE t = (SELECT t FROM {own}.task WHERE task_id = %s)", raw)
        self._run(f"DELETE FROM {own}.task WHERE task_id = %s", raw)

    def set_time(self, wall_ms: int) -> None:
        self.clock.set_wall_ms(wall_ms)
        self.let_server_pass(wall_ms - self._server_ms)

    def let_server_pass(self, milliseconds: int) -> None:
        self._server_ms += milliseconds
        self._run(f"UPDATE {self._schema}_test.clock SET ms = {self._server_ms}")

    def _let_pass(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.there.advance(milliseconds)

    def _promote(self, by_ms: int) -> None:
        # Without loss: a standby was known to have every commit.
        self._run(f"UPDATE {self._schema}.meta SET value = 'standby' WHERE key = 'standby'")
        self._run(f"UPDATE {self._schema}_test.clock SET timeline = timeline || '+'")
        self.let_server_pass(by_ms)

    async def _renew_as_before(self, session: Session) -> None:
        until_ms = self._server_ms + session.ttl_ms
        self._run(f"UPDATE {self._schema}.session SET until_ms = {until_ms} WHERE session_id = '{session.session_id}'")

    async def kill(self, session: Session) -> None:
        # The kernel closes the page's descriptor; nobody folds or deletes the page.
        cast("PagedSession", session).page.close(delete=False)

    async def damage(self, task_id: TaskId, *, seq: int) -> None:
        where = f"t = (SELECT t FROM {self._schema}.task WHERE task_id = %s) AND seq = {seq}"
        middle = "(length(body) / 2, get_byte(body, length(body) / 2) # 1)"
        self._run(
            f"UPDATE {self._schema}.record SET body = set_byte(body, {middle[1:-1]}) WHERE {where}",
            task_id_bytes(task_id),
        )

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        self._run(f"SET search_path = {self._schema}_tools")
        try:
            return self._run(sql)
        except psycopg.Error:
            return []

    async def close(self) -> None:
        for journal in self.opened:
            await journal.close()
        self._db.close()


@dataclass(frozen=True, kw_only=True)
class _Administered(Administered):
    world: PostgresWorld

    @property
    def at_place(self) -> JournalAdmin:
        return self.world.admin()

    def new_copy(self) -> Path:
        self.world.keep_aside()
        return super().new_copy()


class _Together(ManualClock):
    """The first machine's clock: while a test lets it run, the server's runs too."""

    def __init__(self, world: PostgresWorld) -> None:
        super().__init__()
        self._world = world

    def advance(self, milliseconds: int) -> None:
        super().advance(milliseconds)
        self._world.let_server_pass(milliseconds)


class _OverPostgres(JournalContract):
    @pytest.fixture
    async def world(self, url: str, server: Server, tmp_path: Path) -> AsyncIterator[World]:
        for host in ("here", "there"):
            (tmp_path / host).mkdir(mode=0o700)
        world = PostgresWorld(server, url, tmp_path)
        yield world
        await world.close()


@pytest.fixture(scope="module")
def oldest() -> Iterator[Server]:
    with started(find_oldest()) as server:
        yield server


@pytest.fixture(scope="module")
def newest() -> Iterator[Server]:
    with started(NEWEST) as server:
        yield server


@pytest.fixture(scope="module")
def pooler(oldest: Server) -> Iterator[Pgbouncer]:
    with pooled(oldest) as pooler:
        yield pooler


class TestOldestPostgres(_OverPostgres):
    @pytest.fixture
    def server(self, oldest: Server) -> Server:
        return oldest

    @pytest.fixture
    def url(self, oldest: Server) -> str:
        return oldest.url()


class TestNewestPostgres(_OverPostgres):
    @pytest.fixture
    def server(self, newest: Server) -> Server:
        return newest

    @pytest.fixture
    def url(self, newest: Server) -> str:
        return newest.url()


class TestThroughPgbouncer(_OverPostgres):
    @pytest.fixture
    def server(self, oldest: Server) -> Server:
        return oldest

    @pytest.fixture
    def url(self, pooler: Pgbouncer) -> str:
        return pooler.url()
