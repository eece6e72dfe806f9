"""The memory journal keeps the contract."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec
import pytest

from holdfast.core.ids import TaskId
from holdfast.journal.contract import Journal, Session
from holdfast.testing.clocks import ManualClock, SeededEntropy
from holdfast.testing.journal_contract import JournalContract, SeveralHosts, World
from holdfast_proofs.memory_journal.journal import MemoryStore


class MemoryWorld(World):
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.opened = 0

    async def connect(self) -> Journal:
        self.opened += 1
        return self.store.connect(self.clock, SeededEntropy(self.opened))

    async def kill(self, session: Session) -> None:
        self.store.kill_session(session.session_id)

    async def damage(self, task_id: TaskId, *, seq: int) -> None:
        self.store.damage(task_id, seq=seq)

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        db: Any = self.store.db
        try:
            return list(db.execute(sql))
        except apsw.SQLError:
            return []


class SharedMemoryWorld(MemoryWorld):
    """Two machines, and a server with a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.server, self.there = ManualClock(), ManualClock(boot_ms=10**9, boot_id="boot-9")
        self.store = MemoryStore(server=self.server)
        self.hosts = SeveralHosts(
            elsewhere=self.there,
            connect_elsewhere=self._connect_elsewhere,
            let_pass=self._let_pass,
            step=lambda by_ms: self.server.set_wall_ms(self.server.wall_ms() + by_ms),
            promote=self._promote,
            renew_as_before=self._renew_as_before,
        )
        self.clock = _Together(self.server)

    async def connect(self) -> Journal:
        self.opened += 1
        return self.store.connect(self.clock, SeededEntropy(self.opened), host_id="here")

    def set_time(self, wall_ms: int) -> None:
        self.server.set_wall_ms(wall_ms)

    async def _connect_elsewhere(self) -> Journal:
        self.opened += 1
        return self.store.connect(self.there, SeededEntropy(self.opened), host_id="there")

    def _let_pass(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.there.advance(milliseconds)

    def _promote(self, by_ms: int) -> None:
        self.store.timeline += "+"
        self.server.set_wall_ms(self.server.wall_ms() + by_ms)

    async def _renew_as_before(self, session: Session) -> None:
        cell = self.store.sessions[session.session_id]
        cell.lease = msgspec.structs.replace(cell.lease, until_ms=self.server.wall_ms() + session.ttl_ms)


class _Together(ManualClock):
    """The first machine's clock: while a test lets it run, the server's runs too."""

    def __init__(self, server: ManualClock) -> None:
        super().__init__()
        self._server = server

    def advance(self, milliseconds: int) -> None:
        super().advance(milliseconds)
        self._server.advance(milliseconds)


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()


class TestSharedMemoryJournal(JournalContract):
    """The same promises where several hosts share the journal."""

    @pytest.fixture
    def world(self) -> World:
        return SharedMemoryWorld()
