"""The memory journal keeps the contract."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from holdfast.core.ids import TaskId
from holdfast.journal.contract import Journal, Session
from holdfast.testing.clocks import ManualClock, SeededEntropy
from holdfast.testing.journal_contract import JournalContract, World
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


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()
