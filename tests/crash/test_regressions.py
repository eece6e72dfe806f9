"""Breaches that the crash suites have found, each in its smallest form, kept for ever."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.app.binder import open_journal
from holdfast.app.doctor import Level, examine
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ids import task_id_from_bytes
from holdfast.core.journal_address import file_at
from holdfast.errors import JournalDamaged
from holdfast.host.sqlite import open_db
from holdfast.journal.contract import Filter, Submission
from holdfast.journal.sqlite import writer
from holdfast.journal.sqlite.host.high_water import HighWater, high_water
from holdfast.journal.sqlite.opening import open as opening
from holdfast.journal.sqlite.verbs import tasks


@holdfast.task
async def nothing(run: holdfast.Run) -> str:
    return "done"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    return folder / "journal.db"


async def test_opening_while_another_process_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by races of 16 resumers: the sequence was read before the mark.

    Whoever committed between the two made a healthy journal look like an older copy.
    """
    async with holdfast.open(path, tasks=[nothing], serve=False) as other:
        await other.submit(nothing)

        def commit_then_read(folder: Path) -> HighWater:
            submission = Submission(
                task_id=task_id_from_bytes(SystemEntropy().bytes(16)), name="nothing", args={}, args_fingerprint=b""
            )
            with ThreadPoolExecutor(1) as pool:  # this loop waits here: it commits on one of its own
                pool.submit(asyncio.run, other.journal.submit(submission)).result()
            return high_water(folder)

        monkeypatch.setattr(opening, "high_water", commit_then_read)
        journal, _ = await open_journal(file_at(path), clock=SystemClock(), entropy=SystemEntropy())
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


async def furnished(path: Path) -> None:
    """A closed journal with one task that waits for a worker."""
    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        await hf.submit(nothing)


@pytest.mark.parametrize("change", ["state = 'punning'", "name = CAST(x'6ef6' AS TEXT)", "state = CAST(x'f1' AS TEXT)"])
async def test_a_row_that_nobody_wrote_is_told_as_damage(path: Path, change: str) -> None:
    """Found by flipped bits: readers, `doctor` and the engine ended with a ValueError."""
    await furnished(path)
    db = open_db(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    db.pragma("ignore_check_constraints", 1)
    db.execute(f"UPDATE task SET {change}")
    db.close()

    async with holdfast.open(path, tasks=[nothing], serve=False) as hf:
        with pytest.raises(JournalDamaged):
            await hf.journal.list_tasks(Filter())
    findings = [one async for one in examine(file_at(path), settings=holdfast.Settings(), deep=True)]
    assert Level.DAMAGE in {finding.level for finding in findings}


async def test_an_index_that_is_broken_is_told_as_damage(path: Path) -> None:
    """Found by flipped bits: a claim ended the engine with SQLite's error instead of ours."""
    await furnished(path)
    db = open_db(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    row = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'task_due'").fetchone()
    db.close()
    assert row is not None
    raw = bytearray(path.read_bytes())
    page = (row[0] - 1) * 4_096
    raw[page : page + 8] = b"\xff" * 8
    path.write_bytes(raw)

    async with holdfast.open(path, tasks=[nothing]) as hf:
        (task,) = await hf.journal.list_tasks(Filter())
        with pytest.raises(JournalDamaged):
            await hf.task(task.task_id).result(timeout_s=10)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("task", "'running'", "'runnynG'"),
        ("epoch_only_rises", "NEW.epoch < OLD.epoch", "NEW.epoch > OLD.epoch"),
        ("record", "boot_ms     INTEGER", "boot_ms     INTEGFR"),
    ],
)
async def test_a_definition_that_was_changed_is_refused(path: Path, name: str, old: str, new: str) -> None:
    """Found by flipped bits: a changed rule failed tasks, or guarded nothing, unseen."""
    await furnished(path)
    raw = path.read_bytes()
    assert old.encode() in raw
    path.write_bytes(raw.replace(old.encode(), new.encode()))

    with pytest.raises(JournalDamaged, match=name):
        async with holdfast.open(path, tasks=[nothing], serve=False):
            pass


@holdfast.task
async def reads(run: holdfast.Run) -> str:
    return await run.call(read)


@holdfast.tool(effect=holdfast.Read())
async def read(call: holdfast.Call) -> str:
    return "read"


async def test_a_journal_that_breaks_in_a_run_fails_no_task(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by flipped bits: what the journal refused was recorded as the task's own failure."""
    async with holdfast.open(path, tasks=[reads], serve=False) as hf:
        task = await hf.submit(reads)

    write, refused = tasks.Addition.write, 0

    def refuse_once(*args: Any, **rest: Any) -> Any:  # Any: handed through unread
        nonlocal refused
        refused += 1
        if refused == 1:
            raise JournalDamaged("the journal file is damaged")
        return write(*args, **rest)

    monkeypatch.setattr(tasks.Addition, "write", refuse_once)
    async with holdfast.open(path, tasks=[reads]) as hf:
        with pytest.raises(JournalDamaged):
            await hf.task(task.id).result(timeout_s=10)
    async with holdfast.open(path, tasks=[reads]) as hf:
        assert await hf.task(task.id).result(timeout_s=10) == "read"
