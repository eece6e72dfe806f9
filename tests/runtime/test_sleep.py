"""Sleeping tasks: they leave memory, wake once, on whichever worker, also late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import Misuse
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, SkewedClock, program, wait_state, wait_until

DAY_MS = 86_400_000
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


def sleeper(seconds: float) -> tuple[holdfast.TaskType, Scripted]:
    rang = Scripted(KEYED, "rang", name="ring")

    @holdfast.task(name="nap")
    async def nap(run: holdfast.Run) -> Any:
        await run.sleep(seconds)
        return await run.call(rang.tool)

    return nap, rang


async def test_a_short_sleep_is_waited_out(lab: Lab) -> None:
    nap, rang = sleeper(0.2)
    async with lab.open(nap) as hf:
        began = time.monotonic()
        handle = await hf.submit(nap)
        assert await handle.result(10) == "rang"
        assert time.monotonic() - began >= 0.2
        view = await handle.view()
        assert view.notes["1"].answer is not None
        assert len(view.claims) == 1
    assert len(rang.calls) == 1


async def test_a_long_sleep_leaves_memory_and_wakes_once(lab: Lab) -> None:
    """The run ends; nothing of the task is held until it is due."""
    nap, rang = sleeper(2.2)
    async with lab.open(nap) as hf:
        handle = await hf.submit(nap)
        row = await wait_state(handle, TaskState.SLEEPING)
        assert 2_200 <= row.due_ms - row.created_ms < 4_000
        assert hf.engine is not None
        await wait_until(lambda: _is_idle(hf))
        assert rang.calls == []
        assert await handle.result(10) == "rang"
        assert len((await handle.view()).claims) == 2
    assert len(rang.calls) == 1


async def _is_idle(hf: holdfast.Holdfast) -> bool:
    return hf.engine is not None and hf.engine.active == 0


async def test_a_sleep_of_a_year_outlives_its_process_and_wakes_late_once(lab: Lab) -> None:
    """Due while nobody ran: the first worker afterwards wakes it, once."""
    nap, rang = sleeper(300 * 86_400)
    async with lab.open(nap) as hf:
        handle = await hf.submit(nap)
        await wait_state(handle, TaskState.SLEEPING)
    async with lab.open(nap) as hf:
        await asyncio.sleep(0.1)
        assert await hf.task(handle.id).state() is TaskState.SLEEPING
    late = SkewedClock(400 * DAY_MS)
    async with lab.open(nap, clock=late) as hf:
        assert await hf.task(handle.id).result(10) == "rang"
    assert len(rang.calls) == 1


async def test_another_process_wakes_what_this_one_put_to_sleep(lab: Lab, script: Callable[[str], Path]) -> None:
    async with program(script("napper"), lab.journal, "sleep") as first:
        task_id = await first.hear("sleeping ")
        await first.kill()
    async with program(script("napper"), lab.journal, "wake") as second:
        assert await second.hear("awake ") == task_id
        assert await second.hear("rang ") == "1"


async def test_a_clock_set_back_makes_no_sleep_ring_twice_or_for_ever(lab: Lab) -> None:
    """A day back while a short sleep runs: it ends by its own time."""
    nap, rang = sleeper(0.4)
    clock = SkewedClock()
    async with lab.open(nap, clock=clock) as hf:
        handle = await hf.submit(nap)
        await wait_until(lambda: _has_note(handle))
        clock.skew_ms = -DAY_MS
        assert await handle.result(10) == "rang"
    async with lab.open(nap, clock=clock) as hf:
        assert await hf.task(handle.id).result(10) == "rang"
        again = await hf.submit(nap)
        assert await again.result(10) == "rang"
    assert len(rang.calls) == 2


async def _has_note(handle: holdfast.TaskHandle) -> bool:
    return bool((await handle.view()).notes)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 400 * 86_400])
async def test_a_time_that_is_none_is_refused(lab: Lab, seconds: float) -> None:
    @holdfast.task
    async def nap(run: holdfast.Run) -> str:
        try:
            await run.sleep(seconds)
        except Misuse:
            return "refused"
        return "slept"

    async with lab.open(nap) as hf:
        assert await (await hf.submit(nap)).result(10) == "refused"


async def test_a_wake_by_a_fact_is_no_wake_of_the_sleep(lab: Lab) -> None:
    """Evidence, a retry: the task looks, and sleeps on until it is due."""
    nap, rang = sleeper(3_600)
    async with lab.open(nap) as hf:
        handle = await hf.submit(nap)
        row = await wait_state(handle, TaskState.SLEEPING)
        await hf.retry(handle.id)
        await wait_until(lambda: _claimed(handle, 2))
        again = await wait_state(handle, TaskState.SLEEPING)
        assert again.due_ms == row.due_ms
    assert rang.calls == []


async def _claimed(handle: holdfast.TaskHandle, times: int) -> bool:
    return len((await handle.view()).claims) >= times
