"""Many tasks, several workers, limited room: everything is done, once, in the order it came."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.downstream.process import FarEnd
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, program, wait_state, wait_until

Get = Callable[..., Awaitable[FarEnd]]
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


async def test_processes_share_a_journal_and_do_everything_once(
    lab: Lab, script: Callable[[str], Path], far_end: Get
) -> None:
    there = await far_end("unrepeatable")
    tasks = 60
    async with (
        program(script("sharer"), lab.journal, there.url) as one,
        program(script("sharer"), lab.journal, there.url) as two,
    ):
        await one.hear("serving")
        await two.hear("serving")
        async with lab.open(serve=False) as hf:
            handles = [await hf.submit("work", n=n) for n in range(tasks)]
            for handle in handles:
                assert len(await handle.result(60)) == 2
        runs: list[int] = []
        for process in (one, two):
            await process.tell("end")
            runs.append(int(await process.hear("runs ")))
    assert all(runs)
    page = await there.ledger()
    assert (page.count, page.duplicates) == (2 * tasks, 0)
    assert set(page.by_base.values()) == {1}


async def test_tasks_run_in_the_order_they_became_due(lab: Lab) -> None:
    """With room for two, nobody overtakes."""
    began: list[int] = []
    gates = [asyncio.Event() for _ in range(6)]

    @holdfast.task
    async def wait(run: holdfast.Run, n: int) -> int:
        began.append(n)
        await gates[n].wait()
        return n

    async with lab.open(wait, concurrency=2) as hf:
        handles = [await hf.submit(wait, n=n) for n in range(6)]
        for n, gate in enumerate(gates):
            await wait_until(lambda n=n: _reached(began, min(n + 2, 6)))
            assert sorted(began) == list(range(min(n + 2, 6)))
            assert hf.engine is not None
            assert hf.engine.active <= 2
            gate.set()
            await handles[n].result(10)


async def _reached(began: list[int], count: int) -> bool:
    return len(began) >= count


async def test_a_task_that_waits_for_a_person_takes_no_room(lab: Lab) -> None:
    tool = Scripted(KEYED, "done")

    @holdfast.task
    async def ask(run: holdfast.Run) -> bool:
        return bool(await run.approve("go?"))

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(ask, work, concurrency=1) as hf:
        asking = [await hf.submit(ask) for _ in range(3)]
        assert await (await hf.submit(work)).result(10) == "done"
        for handle in asking:
            await wait_state(handle, TaskState.WAITING)
            await hf.approve(handle.id, "1", granted=True)
            assert await handle.result(10) is True


async def test_a_task_that_always_times_out_harms_nobody(lab: Lab) -> None:
    never = Scripted(KEYED, after(asyncio.Event()), name="never", timeout_s=0.05, attempts=3)
    tool = Scripted(KEYED, "done", name="quick")

    @holdfast.task
    async def bad(run: holdfast.Run) -> Any:
        return await run.call(never.tool)

    @holdfast.task
    async def good(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(bad, good) as hf:
        stuck = await hf.submit(bad)
        for handle in [await hf.submit(good) for _ in range(20)]:
            assert await handle.result(10) == "done"
        await wait_state(stuck, TaskState.PARKED)
    assert never.attempts == [1, 2, 3]


async def test_memory_does_not_grow_with_the_tasks_that_were_done(lab: Lab) -> None:
    """An engine keeps what it runs and nothing else."""
    tool = Scripted(KEYED, "x" * 10_000)

    @holdfast.task
    async def work(run: holdfast.Run) -> Any:
        for _ in range(3):
            await run.call(tool.tool)

    async with lab.open(work, concurrency=20) as hf:
        await _work_off(hf, work, 60)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await _work_off(hf, work, 240)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        await wait_until(lambda: _is_idle(hf))
        assert hf.engine is not None
        assert hf.engine.views() == []
        counts = await hf.journal.count_tasks()
        assert counts == {TaskState.SUCCEEDED: 300}
    assert grown_kib < 240 * 3 * 10 / 2  # half of what the results alone would take


async def _is_idle(hf: holdfast.Holdfast) -> bool:
    return hf.engine is not None and hf.engine.active == 0


async def _work_off(hf: holdfast.Holdfast, task: holdfast.TaskType, count: int) -> None:
    for handle in [await hf.submit(task) for _ in range(count)]:
        await handle.result(60)


async def test_a_worker_leaves_alone_what_it_does_not_serve(lab: Lab) -> None:
    """A queue of somebody else's tasks costs it no busy loop."""

    @holdfast.task
    async def mine(run: holdfast.Run) -> str:
        return "mine"

    async with lab.open(mine, sweep_every_s=0.2) as hf:
        for _ in range(20):
            await hf.submit("somebody_elses")
        claims = 0
        original = hf.journal.claim

        async def counted(*args: Any, **more: Any) -> Any:
            nonlocal claims
            claims += 1
            return await original(*args, **more)

        hf.journal.claim = counted
        await asyncio.sleep(1)
        assert claims < 25
        assert await (await hf.submit(mine)).result(10) == "mine"
        rows = await hf.journal.list_tasks(Filter(name="somebody_elses"))
        assert {row.state for row in rows} == {TaskState.QUEUED}
