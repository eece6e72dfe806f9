"""Breaches that the crash suites have found, each in its smallest form, kept for ever."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.app.places import open_file_journal
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import task_id_from_bytes
from holdfast.journal.contract import Submission
from holdfast.journal.sqlite import opening, writer
from holdfast.journal.sqlite.db import open_db
from holdfast.journal.sqlite.high_water import HighWater, high_water


@holdfast.task
async def nothing(run: holdfast.Run) -> str:
    return "done"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    return folder / "journal.db"


async def test_opening_while_another_process_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by races of 16 resumers: the sequence was read before the mark.

    Whoever committed between the two made a healthy journal look like an older copy.
    """
    async with holdfast.open(path, tasks=[nothing], serve=False) as other:
        await other.submit(nothing)

        def commit_then_read(folder: Path) -> HighWater:
            submission = Submission(
                task_id=task_id_from_bytes(SystemEntropy().bytes(16)), name="nothing", args={},
                args_fingerprint=b"",
            )  # fmt: skip
            submitting = other.journal.submit(submission)
            with contextlib.suppress(StopIteration):  # it commits at once; it may yield once after
                for _ in range(3):
                    submitting.send(None)
            return high_water(folder)

        monkeypatch.setattr(opening, "high_water", commit_then_read)
        journal, _ = await open_file_journal(path, clock=SystemClock(), entropy=SystemEntropy())
        await journal.close()


async def test_engine_outlives_a_busy_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by races beside a stopped program: the engine of `holdfast.open` ended for good.

    A journal that is busy for longer than the writer waits made opening a session fail, and
    whoever awaited a result in that process waited for ever.
    """
    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        task = await hf.submit(nothing)
    monkeypatch.setattr(writer, "BUSY_MAX_S", 0.05)
    blocker = open_db(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    blocker.execute("BEGIN IMMEDIATE")
    async with holdfast.open(path, tasks=[nothing]) as hf:
        await asyncio.sleep(0.3)
        blocker.execute("ROLLBACK")
        blocker.close()
        assert await hf.task(task.id).result(timeout_s=10) == "done"
