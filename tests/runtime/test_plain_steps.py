"""The short way of a plain step: the tool owns its arguments, and a closed step leaves no payload in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.ids import TaskId
from holdfast.errors import TaskParked
from holdfast.testing.lab import Lab, wait_until

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0)
ORDER = {"lines": [{"article": "A-1", "cents": 700}]}


async def recorded_args(hf: holdfast.Holdfast, task_id: str) -> object:
    view = await hf.journal.read_task(TaskId(task_id))
    return view.steps["1"].args


async def test_a_tool_that_changes_its_arguments_changes_no_repeat(lab: Lab) -> None:
    got: list[Any] = []

    @holdfast.tool(effect=KEYED, attempts=3)
    async def pay(order: dict[str, Any]) -> str:
        got.append(str(order))
        order["lines"][0]["cents"] = 1
        if len(got) == 1:
            raise ValueError("no answer")
        return "paid"

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(pay, order=ORDER)

    async with lab.open(one, pace=0.01) as hf:
        handle = await hf.submit(one)
        assert await handle.result(10) == "paid"
        assert await recorded_args(hf, handle.id) == {"order": ORDER}
    assert got == [str(ORDER)] * 2
    assert ORDER["lines"][0]["cents"] == 700  # the task's own value is not the tool's either


async def test_a_call_that_the_code_breaks_off_is_repeated_with_what_was_asked(lab: Lab) -> None:
    got: list[Any] = []

    @holdfast.tool(effect=KEYED)
    async def pay(order: dict[str, Any]) -> str:
        got.append(str(order))
        order.clear()
        if len(got) == 1:
            await asyncio.sleep(60)
        return "paid"

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await asyncio.wait_for(run.call(pay, order=ORDER), 0.2)

    async with lab.open(one, pace=0.01) as hf:
        assert await (await hf.submit(one)).result(20) == "paid"
    assert got == [str(ORDER)] * 2


@holdfast.tool(effect=KEYED)
async def note(order: dict[str, Any], number: int) -> dict[str, Any]:
    return {"noted": number}


async def test_a_run_keeps_no_payload_of_the_steps_it_closed(lab: Lab) -> None:
    kept: list[Any] = []

    @holdfast.task
    async def many(run: holdfast.Run) -> Any:
        results = [await run.call(note, order=ORDER, number=number) for number in range(5)]
        kept.extend(run.steps.writer.view.steps.values())
        return results

    async with lab.open(many) as hf:
        handle = await hf.submit(many)
        assert await handle.result(10) == [{"noted": number} for number in range(5)]
        view = await handle.view()
    assert [view.steps[str(number)].result for number in range(1, 6)] == [{"noted": number} for number in range(5)]
    assert len(kept) == 5
    assert all(one is kept[0] for one in kept)
    assert kept[0].result is None
    with pytest.raises(KeyError):  # rather than a wrong answer
        _ = kept[0].args


async def test_what_the_code_does_with_a_result_changes_no_record(lab: Lab) -> None:
    """The result is the code's own object; its record is written with the next step's commit, after the change."""
    results: list[Any] = []

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        result = await run.call(note, order=ORDER, number=1)
        result["noted"] = "changed"
        results.append(result)
        return await run.call(note, order=ORDER, number=2)

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        assert await handle.result(10) == {"noted": 2}
        view = await handle.view()
    assert results == [{"noted": "changed"}]
    assert view.steps["1"].result == {"noted": 1}


async def test_what_is_left_out_is_never_given_for_a_result(lab: Lab) -> None:
    """No code of ours uses an ordinal twice in a run; if one did, None would be taken for what the tool gave."""

    @holdfast.task
    async def twice(run: holdfast.Run) -> Any:
        await run.call(note, order=ORDER, number=1)
        return await run.steps.perform(note, "1", {"order": ORDER, "number": 1})

    async with lab.open(twice) as hf:
        handle = await hf.submit(twice)
        with pytest.raises(TaskParked, match="twice in one run"):
            await handle.result(10)


async def test_the_hand_off_of_a_running_task_names_the_steps_it_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "holdfast.toml").write_text('agent = "ada"\n')
    go_on = asyncio.Event()

    @holdfast.task
    async def many(run: holdfast.Run) -> Any:
        for number in range(3):
            await run.call(note, order=ORDER, number=number)
        await go_on.wait()

    async with holdfast.open(tmp_path / "journal.db", tasks=[many]) as hf:
        handle = await hf.submit(many)
        told = [f"{handle.id}/{ordinal} (note) succeeded" for ordinal in (1, 2, 3)]
        handoff = tmp_path / "handoff.md"

        async def is_told() -> bool:
            return handoff.exists() and "3 steps closed" in handoff.read_text()

        await wait_until(is_told)
        text = handoff.read_text()
        go_on.set()
        await handle.result(10)
    assert [line for line in told if line in text] == told
