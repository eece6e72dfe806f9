"""Who waits for tasks: one look for all handles, woken at once by the engine; submits of one turn share a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app import handle as handles
from holdfast.core.ids import TaskId
from holdfast.errors import HoldfastError, TaskParked, TaskUnfinished
from holdfast.journal.records import TaskState

FAST = holdfast.Settings(pace=0.01, concurrency=200)
OFTEN = 100


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.01))
async def doubtful(call: holdfast.Call) -> None:
    raise ConnectionResetError("gone")


@holdfast.task
async def sleepy(run: holdfast.Run) -> None:
    await run.sleep(3_600)


@holdfast.task
async def quick(run: holdfast.Run, n: int) -> int:
    return n


@holdfast.task
async def doubting(run: holdfast.Run) -> None:
    await run.call(doubtful)


TASKS = [sleepy, quick, doubting]


def count_looks(journal: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:  # Any: whichever journal it is
    counts = {"find_task": 0, "find_over": 0}
    find_task, find_over = journal.find_task, journal.find_over

    async def one(task_id: TaskId) -> object:
        counts["find_task"] += 1
        return await find_task(task_id)

    async def many(task_ids: Collection[TaskId]) -> list[TaskId]:
        counts["find_over"] += 1
        return await find_over(task_ids)

    monkeypatch.setattr(journal, "find_task", one)
    monkeypatch.setattr(journal, "find_over", many)
    return counts


async def test_however_many_wait_the_journal_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "LOOK_ANYWAY_S", 1e9)
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST) as hf:
        sleeping = await asyncio.gather(*(hf.submit(sleepy) for _ in range(OFTEN)))
        waiting = [asyncio.create_task(one.result()) for one in sleeping]
        while (await hf.journal.count_tasks()).get(TaskState.SLEEPING, 0) < OFTEN:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * handles.LOOK_S)
        counts = count_looks(hf.journal, monkeypatch)
        await asyncio.sleep(6 * handles.LOOK_S)
        assert counts["find_task"] == 0
        assert counts["find_over"] <= 2
        await (await hf.submit(quick, n=1)).result()
        assert counts["find_task"] <= 4
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)


async def test_the_engine_wakes_a_waiter_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "LOOK_S", 30.0)
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST) as hf, asyncio.timeout(20):
        submitted = await asyncio.gather(*(hf.submit(quick, n=n) for n in range(20)))
        assert await asyncio.gather(*(one.result() for one in submitted)) == list(range(20))
        same = await hf.submit(doubting)
        for found in await asyncio.gather(*(same.result() for _ in range(3)), return_exceptions=True):
            assert isinstance(found, TaskParked)


async def test_what_another_process_ends_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with holdfast.open(path, tasks=TASKS, settings=FAST, serve=False) as client, asyncio.timeout(20):
        submitted = await asyncio.gather(*(client.submit(quick, n=n) for n in range(20)))
        waiting = [asyncio.create_task(one.result()) for one in submitted]
        await asyncio.sleep(0.2)
        async with holdfast.open(path, tasks=TASKS, settings=FAST):
            assert await asyncio.gather(*waiting) == list(range(20))


async def test_a_wait_that_is_given_up_leaves_the_others_waiting(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST, serve=False) as hf:
        one = await hf.submit(quick, n=1)
        other = asyncio.create_task(one.result())
        with pytest.raises(TaskUnfinished, match=r"within 0\.05 s"):
            await one.result(timeout_s=0.05)
        assert not other.done()
        other.cancel()
        await asyncio.wait([other])
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "holdfast handles"] == []


async def test_the_error_that_ended_the_engine_reaches_everyone_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST) as hf, asyncio.timeout(20):
        waiting = [asyncio.create_task((await hf.submit(sleepy)).result()) for _ in range(3)]
        await asyncio.sleep(0.1)
        monkeypatch.setattr(hf, "_failed", HoldfastError("the disk is gone"))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(one) for one in found] == ["the disk is gone"] * 3
        monkeypatch.setattr(hf, "_failed", None)


async def test_submits_of_one_turn_share_a_commit(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "journal.db", tasks=TASKS, settings=FAST, serve=False) as hf:
        before = getattr(hf.journal, "commits", 0)
        await asyncio.gather(*(hf.submit(quick, n=n) for n in range(OFTEN)))
        assert getattr(hf.journal, "commits", 0) - before <= 3
        assert (await hf.journal.count_tasks())[TaskState.QUEUED] == OFTEN
