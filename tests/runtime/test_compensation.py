"""A compensation is a step of its own, and it waits its turn like every other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


async def test_a_broken_off_call_is_not_undone_while_it_is_in_doubt(tmp_path: Path) -> None:
    """Code that gives up waiting may not refund what may still be charged (I5)."""
    done: list[str] = []

    @holdfast.tool(effect=KEYED)
    async def charge(call: holdfast.Call) -> str:
        if call.attempt == 1:
            await asyncio.Event().wait()
        done.append("charge")
        return "charged"

    @holdfast.tool(effect=KEYED)
    async def refund(call: holdfast.Call) -> str:
        done.append("refund")
        return "refunded"

    @holdfast.task
    async def pay(run: holdfast.Run) -> str:
        charged = run.call(charge)
        try:
            return await asyncio.wait_for(charged, 0.05)
        except TimeoutError:
            return await run.compensate(charged, refund)

    async with holdfast.open(tmp_path / "journal.db", tasks=[pay]) as hf:
        task = await hf.submit(pay)
        assert await task.result(20) == "charged"
    assert done == ["charge"]


async def test_a_compensation_has_an_ordinal_and_key_of_its_own(tmp_path: Path) -> None:
    @holdfast.tool(effect=KEYED)
    async def charge(call: holdfast.Call) -> str:
        return call.effect_key

    @holdfast.tool(effect=KEYED)
    async def refund(call: holdfast.Call) -> list[str]:
        return [call.ordinal, call.effect_key]

    @holdfast.task
    async def pay(run: holdfast.Run) -> list[object]:
        charged = run.call(charge)
        return [await charged, await run.compensate(charged, refund)]

    async with holdfast.open(tmp_path / "journal.db", tasks=[pay]) as hf:
        key, (ordinal, other) = await (await hf.submit(pay)).result(20)
    assert ordinal == "1.c1"
    assert key != other


async def test_a_long_question_that_changes_at_its_end_is_another_question(tmp_path: Path) -> None:
    """An answer is bound to every byte of what was asked."""
    ending = "x"

    @holdfast.task
    async def ask(run: holdfast.Run) -> bool:
        return bool(await run.approve("pay?", text="y" * 10_000 + ending))

    async with holdfast.open(tmp_path / "journal.db", tasks=[ask]) as hf:
        task = await hf.submit(ask)
        async for row in task.watch():
            if row.state == "waiting":
                break
        ending = "z"
        await hf.approve(task.id, "1", granted=True)
        with pytest.raises(holdfast.TaskParked, match="step 1: the question for approval is not the recorded one"):
            await task.result(20)
