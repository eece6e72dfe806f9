"""A task that kills its process: found out after three deaths, and nobody else pays for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Program, program, wait_state


@contextlib.asynccontextmanager
async def kept_alive(script: Path, journal: Path) -> AsyncGenerator[list[Program]]:
    """A supervisor: starts the program again whenever it dies."""
    lives: list[Program] = []

    async def keep() -> None:
        while True:
            async with program(script, journal) as life:
                lives.append(life)
                await life.wait_end(timeout_s=120)

    keeping = asyncio.create_task(keep())
    try:
        yield lives
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping


@pytest.mark.parametrize("how", ["exit", "kill", "abort"])
async def test_a_poison_task_is_parked_and_the_others_finish(lab: Lab, script: Callable[[str], Path], how: str) -> None:
    async with lab.open(serve=False) as hf:
        poison = await hf.submit("poison", how=how)
        others = [await hf.submit("work", n=n) for n in range(6)]
        async with kept_alive(script("poison"), lab.journal) as lives:
            row = await wait_state(poison, TaskState.PARKED, timeout_s=60)
            assert row.crashes >= 3
            with pytest.raises(TaskParked, match="what kills the process"):
                await poison.result(1)
            for n, other in enumerate(others):
                assert await other.result(60) == n
            assert len(lives) == 4
        notices = await hf.journal.pending_notices(limit=20)
        assert [(one.kind, one.task_id) for one in notices] == [("poison", poison.id)]
        assert "holdfast task retry" in notices[0].hint


async def test_a_task_that_makes_progress_may_die_often(lab: Lab, script: Callable[[str], Path]) -> None:
    """A long life on a shaky machine is no poison: a closed step forgives the deaths before."""
    async with lab.open(serve=False) as hf:
        handle = await hf.submit("work", n=1)
        for death in range(3):
            async with program(script("poison"), lab.journal) as life:
                await life.hear("serving")
                while len((await handle.view()).steps) <= death:
                    await hf.journal.wait_change(timeout_s=0.05)
                await asyncio.sleep(0.02)
                await life.kill()
        async with program(script("poison"), lab.journal):
            assert await handle.result(30) == 1
        assert len((await handle.view()).claims) >= 3


async def test_a_parked_poison_task_can_be_cancelled_or_tried_again(lab: Lab) -> None:
    """A retry forgets the deaths; a cancel runs nothing."""
    ran: list[str] = []

    @holdfast.task
    async def tame(run: holdfast.Run, name: str) -> str:
        ran.append(name)
        return name

    async with lab.open(tame, serve=False) as hf:
        handles = [await hf.submit(tame, name=name) for name in ("again", "never")]
        for _ in range(3):
            session = await hf.journal.open_session(worker="dies", ttl_ms=60_000)
            for handle in handles:
                await hf.journal.claim(session, names=None, limit=1, task_id=handle.id, alone=True)
            await hf.journal.end_session(session, orderly=False)
    async with lab.open(tame) as hf:
        again, never = (hf.task(handle.id) for handle in handles)
        await wait_state(again, TaskState.PARKED)
        await wait_state(never, TaskState.PARKED)
        await never.cancel()
        await wait_state(never, TaskState.CANCELLED)
        await hf.retry(again.id)
        await wait_state(again, TaskState.SUCCEEDED)
    assert ran == ["again"]


async def test_a_suspect_gets_its_turn_while_the_worker_is_never_idle(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under steady load no process is without neighbours: a suspect must not wait for that."""
    monkeypatch.setattr("holdfast.runtime.engine.suspects.PATIENCE_S", 0.2)

    @holdfast.task
    async def busy(run: holdfast.Run) -> None:
        await asyncio.Event().wait()

    @holdfast.task
    async def tame(run: holdfast.Run) -> str:
        return "ran"

    async with lab.open(serve=False) as hf:
        suspects = [await hf.submit("tame") for _ in range(2)]
        for _ in range(2):
            session = await hf.journal.open_session(worker="dies", ttl_ms=60_000)
            for one in suspects:
                await hf.journal.claim(session, names=None, limit=1, task_id=one.id, alone=True)
            await hf.journal.end_session(session, orderly=False)
        await hf.submit("busy")
    async with lab.open(busy, tame) as hf:
        for one in suspects:
            assert await hf.task(one.id).result(20) == "ran"
