"""An engine inside somebody's program, held past its lease: it fences itself and goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, fast, look_dead, program, wait_state, wait_until

Get = Callable[..., Awaitable[FarEnd]]
SHORT: dict[str, Any] = {"lease_ttl_s": 0.6, "renew_every_s": 0.15}


@pytest.mark.parametrize("kind", ["unrepeatable", "keyed"])
async def test_a_program_that_was_stopped_past_its_lease_does_nothing_twice(
    lab: Lab, script: Callable[[str], Path], far_end: Get, kind: Any
) -> None:
    """SIGSTOP inside a call; another process takes over; SIGCONT: its write is refused, the
    program lives, begins a new session and serves on."""
    there = await far_end(kind)
    await there.faults(Fault(kind=FaultKind.HOLD, when="after"))
    async with (
        program(script("zombie"), lab.journal, there.url, kind) as zombie,
        program(script("zombie"), lab.journal, there.url, kind) as other,
    ):
        task_id = await zombie.hear("serving ")
        await other.hear("serving ")
        await there.wait_inside()
        async with lab.open(serve=False) as hf:
            handle = hf.task(task_id)
            first = (await handle.row()).session_id
            pids = {row.session_id: row.pid for row in await hf.journal.list_sessions()}
            holder, taker = (zombie, other) if pids[first] == zombie.pid else (other, zombie)
            holder.signal(signal.SIGSTOP)
            await wait_until(lambda: _moved(handle, first))
            await there.release()
            row = await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED)
            assert row.state is (TaskState.PARKED if kind == "unrepeatable" else TaskState.SUCCEEDED)
            holder.signal(signal.SIGCONT)
            await holder.hear('{"at"')
            await wait_until(lambda: _serves_again(hf, holder.pid, first))
            if kind == "unrepeatable":
                # Its request was answered while it stood still: what it saw is not lost.
                await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED)
            await holder.tell("alive")
            assert await holder.hear("state ")
            await taker.tell("alive")
            assert await taker.hear("state ")
    page = await there.ledger()
    assert (page.count, page.duplicates) == (1, 0)


async def _moved(handle: holdfast.TaskHandle, session_id: str) -> bool:
    return (await handle.row()).session_id != session_id


async def _serves_again(hf: holdfast.Holdfast, pid: int, first: str) -> bool:
    rows = await hf.journal.list_sessions()
    return any(row.alive and row.pid == pid and row.session_id != first for row in rows)


async def test_an_engine_that_is_declared_dead_begins_anew_and_goes_on(lab: Lab) -> None:
    """Another session has taken its tasks: its write is refused, then it serves as before."""
    gate = asyncio.Event()
    tool = Scripted(holdfast.Idempotent(), after(gate, "first"), "second")

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one, **SHORT) as stale:
        handle = await stale.submit(one)
        await tool.entered.wait()
        assert stale.engine is not None
        assert stale.engine.lease is not None
        before = stale.engine.lease.session.session_id
        async with lab.open(one, **SHORT) as owner:
            look_dead(stale)
            assert await owner.task(handle.id).result(20) == "second"
        gate.set()
        await wait_until(lambda: _has_new_session(stale, before))
        assert await (await stale.submit(one)).result(20) == "second"
    assert [call.fence for call in tool.calls] == sorted(call.fence for call in tool.calls)


async def _has_new_session(hf: holdfast.Holdfast, before: str) -> bool:
    lease = None if hf.engine is None else hf.engine.lease
    return lease is not None and lease.ok() and lease.session.session_id != before


async def test_opening_the_journal_twice_in_one_program_is_fine(lab: Lab) -> None:
    tool = Scripted(holdfast.Idempotent(), "done")

    @holdfast.task
    async def one(run: holdfast.Run, n: int) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one) as first, lab.open(one) as second:
        handles = [await hf.submit(one, n=n) for n, hf in enumerate((first, second) * 10)]
        for handle in handles:
            assert await handle.result(20) == "done"
    assert len(tool.calls) == 20


async def test_a_journal_that_was_closed_cleanly_says_so(lab: Lab) -> None:
    @holdfast.task
    async def one(run: holdfast.Run) -> str:
        return "done"

    async with lab.open(one) as hf:
        await (await hf.submit(one)).result(10)
    async with lab.open(serve=False) as hf:
        assert all(row.ended for row in await hf.journal.list_sessions())
        assert await hf.journal.list_sessions()
        assert not getattr(hf.journal, "unclean", False)
        assert [finding async for finding in hf.journal.check()] == []


async def test_an_engine_waits_out_a_journal_that_cannot_take_its_session(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busy or full at the wrong moment is no end: whoever waits here waits for this engine."""
    from holdfast.errors import JournalFull
    from holdfast.journal.sqlite.journal import SqliteJournal

    original, failures = SqliteJournal.open_session, [3]

    async def open_session(self: Any, **more: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise JournalFull("no space")
        return await original(self, **more)

    monkeypatch.setattr(SqliteJournal, "open_session", open_session)

    @holdfast.task
    async def one(run: holdfast.Run) -> str:
        return "done"

    async with lab.open(one) as hf:
        assert await (await hf.submit(one)).result(10) == "done"
    assert failures == [0]


async def test_whoever_waits_learns_that_the_engine_has_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect ends the engine, not silently: submit and result raise it."""
    from holdfast.journal.sqlite.journal import SqliteJournal

    async def claim(self: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(SqliteJournal, "claim", claim)

    @holdfast.task
    async def one(run: holdfast.Run) -> str:
        return "done"

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        with pytest.raises(RuntimeError, match="a defect"):
            await handle.result(10)
        with pytest.raises(RuntimeError, match="a defect"):
            await hf.submit(one)


def test_short_leases_are_for_tests_alone() -> None:
    assert fast().lease_ttl_s == holdfast.Settings().lease_ttl_s
