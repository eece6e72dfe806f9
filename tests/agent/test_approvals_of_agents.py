"""A call that needs a yes beside one that is slow: it is seen and answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, wait_step
from holdfast.views.unfinished import list_approvals

MakeAgent = Callable[..., holdfast.Agent]
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


@holdfast.tool(effect=KEYED, needs_approval=True)
async def transfer(cents: int) -> str:
    return f"moved {cents}"


@pytest.mark.parametrize(("granted", "answer"), [(True, "Moved."), (False, "Then not.")])
async def test_an_approval_is_listed_and_answered_while_a_sibling_runs(
    lab: Lab, agent: MakeAgent, granted: bool, answer: str
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @holdfast.tool(effect=KEYED)
    async def slow() -> str:
        entered.set()
        await go_on.wait()
        return "at last"

    ada = agent(slow, transfer)
    async with lab.open(ada) as hf:
        handle = await hf.submit(ada, request="beside a slow one")
        await entered.wait()
        await wait_step(handle, "2.2.1", StepState.PLANNED)
        (asked,) = await list_approvals(hf.journal)
        assert (asked.ordinal, asked.details) == ("2.2.1", {"cents": 5})
        assert await handle.state() is TaskState.RUNNING
        await hf.approve(handle.id, "2.2.1", granted=granted, by="ada")
        assert await list_approvals(hf.journal) == []
        go_on.set()
        assert await handle.result(20) == answer
