"""Scopes and what befalls them: a death inside a call, two who want the same, a person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import FarEnd
from holdfast.errors import Misuse, ScopeBusy, SessionLost, TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, look_dead, program, wait_state, wait_step, wait_until

Get = Callable[..., Awaitable[FarEnd]]
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0)
ONCE = holdfast.Unrepeatable(max_delay_s=0)


async def killed_inside(lab: Lab, script: Path, there: FarEnd, kind: str) -> str:
    """A process dies inside a scope's call, after the far end has done it; the scope's task."""
    await there.faults(Fault(kind=FaultKind.HOLD, when="after"))
    async with program(script, lab.journal, there.url, kind, "call") as first:
        task_id = await first.hear("inside ")
        await there.wait_inside()
        await first.kill()
    await there.release()
    return task_id


async def test_the_next_one_to_open_the_scope_reconciles_what_was_left(
    lab: Lab, script: Callable[[str], Path], far_end: Get
) -> None:
    there = await far_end("keyed")
    await killed_inside(lab, script("scoped"), there, "keyed")
    async with program(script("scoped"), lab.journal, there.url, "keyed", "call") as second:
        assert "'n': 1" in await second.hear("result ")
    page = await there.ledger()
    assert (page.count, page.duplicates) == (1, 0)


async def test_a_worker_that_knows_the_tools_settles_an_orphaned_scope(
    lab: Lab, script: Callable[[str], Path], far_end: Get
) -> None:
    """Nobody opens it again, and yet no doubt stays silent."""
    there = await far_end("keyed")
    task_id = await killed_inside(lab, script("scoped"), there, "keyed")
    async with program(script("scoped"), lab.journal, there.url, "keyed", "settle"), lab.open(serve=False) as hf:
        handle = hf.task(task_id)
        await wait_step(handle, "@send-1", StepState.SUCCEEDED)
        await wait_state(handle, TaskState.WAITING)
    page = await there.ledger()
    assert (page.count, page.duplicates) == (1, 0)


async def test_an_unrepeatable_call_of_a_dead_process_is_parked(
    lab: Lab, script: Callable[[str], Path], far_end: Get
) -> None:
    there = await far_end("unrepeatable")
    task_id = await killed_inside(lab, script("scoped"), there, "unrepeatable")
    async with program(script("scoped"), lab.journal, there.url, "unrepeatable", "call") as second:
        assert await second.hear("parked ") == "@send-1"
        await second.hear("left")
    async with lab.open(serve=False) as hf:
        assert await hf.task(task_id).state() is TaskState.PARKED
        await hf.settle(task_id, "@send-1", "done", result="by hand")
    async with program(script("scoped"), lab.journal, there.url, "unrepeatable", "call") as third:
        assert await third.hear("result ") == "by hand"
    assert (await there.ledger()).count == 1


async def test_a_scope_with_a_tool_that_nobody_knows_is_parked_and_told(
    lab: Lab, script: Callable[[str], Path], far_end: Get
) -> None:
    there = await far_end("keyed")
    task_id = await killed_inside(lab, script("scoped"), there, "keyed")
    other = Scripted(KEYED, name="other")
    async with lab.open(tools=[other.tool]) as hf:
        handle = hf.task(task_id)
        with pytest.raises(TaskParked, match="No worker here has the tool send"):
            await handle.result(20)
        (notice,) = await hf.journal.pending_notices(limit=10)
        assert (notice.kind, notice.ordinal) == ("parked", "@send-1")


async def test_two_processes_do_not_hold_one_scope(lab: Lab, script: Callable[[str], Path], far_end: Get) -> None:
    there = await far_end("keyed")
    async with program(script("scoped"), lab.journal, there.url, "keyed", "hold") as holder:
        await holder.hear("inside ")
        async with lab.open() as hf:
            with pytest.raises(ScopeBusy, match="thread-7"):
                async with hf.scope("thread-7"):
                    pass
            async with hf.scope("thread-8"):
                pass
            await holder.kill()
            async with hf.scope("thread-7") as scope:
                assert scope.task_id


async def test_a_scope_waits_for_its_turn_in_the_same_program(lab: Lab) -> None:
    order: list[int] = []

    async def use(hf: holdfast.Holdfast, n: int) -> None:
        async with hf.scope("one"):
            order.append(n)
            await asyncio.sleep(0.01)
            order.append(n)

    async with lab.open() as hf:
        await asyncio.gather(*(use(hf, n) for n in range(3)))
    assert sorted(order[::2]) == [0, 1, 2]
    assert order[::2] == order[1::2]


async def test_a_call_cut_off_by_its_caller_is_settled_in_the_background(lab: Lab) -> None:
    """The web client went away: the call's outcome is known all the same, and kept."""
    tool = Scripted(KEYED, after(asyncio.Event()), "paid")
    async with lab.open(tools=[tool.tool]) as hf:

        async def handler() -> None:
            async with hf.scope("request-1") as scope:
                await scope.call(tool.tool, slot="pay")

        serving = asyncio.create_task(handler())
        await tool.entered.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await wait_until(lambda: _called(tool, 2))
        async with hf.scope("request-1") as scope:
            assert await scope.call(tool.tool, slot="pay") == "paid"
            handle = hf.task(scope.task_id)
            assert (await handle.view()).steps["@pay"].state is StepState.SUCCEEDED
    assert len(set(tool.keys)) == 1


async def _called(tool: Scripted, times: int) -> bool:
    return len(tool.calls) >= times


async def test_a_cancel_while_the_scope_is_being_opened_gives_it_back(lab: Lab) -> None:
    async with lab.open() as hf:
        for _ in range(10):

            async def use() -> None:
                async with hf.scope("one"):
                    await asyncio.sleep(10)

            opening = asyncio.create_task(use())
            await asyncio.sleep(0.002)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        async with asyncio.timeout(10), hf.scope("one"):
            pass


async def test_a_parked_call_of_a_scope_is_raised_and_settled(lab: Lab) -> None:
    tool = Scripted(ONCE, ConnectionError("reset"))
    async with lab.open() as hf:
        async with hf.scope("s") as scope:
            with pytest.raises(TaskParked) as parked:
                await scope.call(tool.tool, slot="a")
            assert parked.value.ordinal == "@a"
            await hf.settle(scope.task_id, "@a", "done", result=5)
            await wait_until(lambda: _heard(hf, scope.task_id))
            assert await scope.call(tool.tool, slot="a") == 5
        async with hf.scope("s") as scope:
            assert await scope.call(tool.tool, slot="a") == 5
    assert len(tool.calls) == 1


async def _heard(hf: holdfast.Holdfast, task_id: Any) -> bool:
    return hf.engine is not None and bool(hf.engine._writers[task_id].inbox)


async def test_a_session_that_is_over_ends_its_scopes(lab: Lab) -> None:
    tool = Scripted(ONCE, "sent")
    async with lab.open(lease_ttl_s=0.6, renew_every_s=0.15) as hf, hf.scope("s") as scope, lab.open() as other:
        look_dead(hf)
        async with other.scope("s"):
            with pytest.raises(SessionLost):
                await scope.call(tool.tool, slot="a")
    assert tool.calls == []


async def test_a_scope_needs_a_session_and_a_name(lab: Lab) -> None:
    async with lab.open(serve=False) as hf:
        with pytest.raises(Misuse) as refused:
            async with hf.scope("s"):
                pass
        assert "serve=True" in refused.value.hint
    async with lab.open() as hf, hf.scope("s") as scope:
        for slot in ("", "a b", "x" * 65, "ü"):
            with pytest.raises(Misuse, match="slot"):
                await scope.call(Scripted(ONCE, "sent").tool, slot=slot)
