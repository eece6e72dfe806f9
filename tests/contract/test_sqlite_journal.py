"""The embedded journal keeps the contract: real files, one handle per process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from holdfast.core.clock import SystemEntropy
from holdfast.core.ids import TaskId, task_id_bytes
from holdfast.core.journal_address import file_at
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Claimed, Journal, Session
from holdfast.journal.records import TaskState
from holdfast.journal.sqlite.verbs.sessions import SqliteSession
from holdfast.testing.clocks import ManualClock
from holdfast.testing.journal_contract import Administered, JournalContract, World


class FixedKeys:
    current_journal_key = 1

    def __init__(self, effect: bytes = b"e") -> None:
        self.k_effect = effect * 32

    def journal_key(self, key_id: int) -> bytes:
        return bytes([key_id]) * 32


class SqliteWorld(World):
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.folder = folder
        self.path = folder / "journal.db"
        self.opened: list[Journal] = []
        self.administered = Administered(
            keys=FixedKeys(),
            other_keys=FixedKeys(b"o"),
            place=file_at(self.path),
            never=file_at(folder / "never"),
            copies=folder,
            put_back=self._put_back,
            lose=self._lose,
            delete=self._delete,
        )

    async def connect(self) -> Journal:
        journal = await journal_at(file_at(self.path)).open(keys=FixedKeys(), clock=self.clock, entropy=SystemEntropy())
        self.opened.append(journal)
        return journal

    async def kill(self, session: Session) -> None:
        # The kernel closes the page's descriptor; nobody folds or deletes the page.
        cast("SqliteSession", session).page.close(delete=False)

    async def damage(self, task_id: TaskId, *, seq: int) -> None:
        db = self._raw()
        (trigger,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'record_never_changes'").fetchone()
        db.execute("BEGIN IMMEDIATE; DROP TRIGGER record_never_changes")
        where = "t = (SELECT t FROM task WHERE task_id = ?) AND seq = ?"
        place = (task_id_bytes(task_id), seq)
        (body,) = db.execute(f"SELECT body FROM record WHERE {where}", place).fetchone()
        changed = bytearray(body)
        changed[len(changed) // 2] ^= 1
        db.execute(f"UPDATE record SET body = ? WHERE {where}", (bytes(changed), *place))
        db.execute(f"{trigger}; COMMIT")
        db.close()

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        db = self._raw()
        try:
            return list(db.execute(sql))
        except apsw.SQLError:
            return []
        finally:
            db.close()

    def _raw(self) -> Any:  # Any: apsw's own types can only be read from Python 3.12 on
        db = apsw.Connection(str(self.path))
        db.set_busy_timeout(5_000)
        return db

    def _put_back(self, copy: Path) -> None:
        self._lose()
        shutil.copy(copy, self.path)

    def _lose(self) -> None:
        for path in self.folder.glob("journal.db*"):
            path.unlink()

    def _delete(self, task_id: TaskId) -> None:
        db = self._raw()
        (trigger,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'record_kept'").fetchone()
        db.execute("BEGIN IMMEDIATE; DROP TRIGGER record_kept")
        db.execute("DELETE FROM record WHERE t = (SELECT t FROM task WHERE task_id = ?)", (task_id_bytes(task_id),))
        db.execute("DELETE FROM task WHERE task_id = ?", (task_id_bytes(task_id),))
        db.execute(f"{trigger}; COMMIT")
        db.close()

    async def close(self) -> None:
        for journal in self.opened:
            await journal.close()


class TestSqliteJournal(JournalContract):
    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[World]:
        folder = tmp_path / "agent"
        folder.mkdir(mode=0o700)
        world = SqliteWorld(folder)
        yield world
        await world.close()

    async def test_a_task_is_claimed_in_the_commit_that_accepts_it(self, world: World) -> None:
        worker, other = await world.process(), await world.connect()
        given: list[Claimed] = []
        before, submission = worker.journal.commits, world.submission()
        await worker.journal.submit(submission, taker=(worker.session, given.append))
        assert worker.journal.commits == before + 1
        row = await other.find_task(submission.task_id)
        assert row is not None
        assert (row.state, row.session_id) == (TaskState.RUNNING, worker.session.session_id)
        assert [one.hold.task_id for one in given] == [submission.task_id]

    async def test_a_claim_with_a_submission_is_given_when_the_caller_has_been_cancelled(self, world: World) -> None:
        """Else nobody would run the task until the session ends."""
        worker = await world.process()
        given: list[Claimed] = []
        submission = world.submission()
        asking = asyncio.create_task(worker.journal.submit(submission, taker=(worker.session, given.append)))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [one.hold.task_id for one in given] == [submission.task_id]

    async def test_a_session_that_has_ended_claims_nothing_and_the_task_is_accepted(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        await worker.journal.end_session(worker.session)
        given: list[Claimed] = []
        submission = world.submission()
        assert (await worker.journal.submit(submission, taker=(worker.session, given.append))).created
        assert given == []
        assert (await other.take(submission.task_id)).crashes == 0

    async def test_the_death_of_who_claimed_a_task_with_its_submission_is_counted(self, world: World) -> None:
        worker, other = await world.process(), await world.process()
        given: list[Claimed] = []
        submission = world.submission()
        await worker.journal.submit(submission, taker=(worker.session, given.append))
        await worker.die()
        claimed = await other.take(submission.task_id)
        assert (claimed.crashes, claimed.hold.epoch > given[0].hold.epoch) == (1, True)
