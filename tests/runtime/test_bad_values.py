"""Arguments and results that JSON cannot keep exactly: refused clearly, nothing half accepted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import BadValue, ResultNotKept, TaskFailed, TooLarge
from holdfast.journal.contract import Filter
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, wait_state

BIG = "x" * (100 * 1024 * 1024)
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def looped() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, Any] = {
    "NaN": float("nan"),
    "infinity": float("-inf"),
    "lone surrogate": "a\ud800b",
    "surrogate in a key": {"\udfff": 1},
    "key that is no text": {1: "x"},
    "key that is nothing": {None: "x"},
    "bytes": b"raw",
    "set": {1, 2},
    "enum": Colour.RED,
    "object": Point(1),
    "function": deep,
    "complex": 1j,
    "number over 64 bits": 2**64,
    "number under 64 bits": -(2**63) - 1,
    "depth 10,000": deep(10_000),
    "itself": looped(),
    "deep inside": {"a": [{"b": [float("nan")]}]},
}

KEPT: dict[str, Any] = {
    "NUL": "a\0b",
    "emoji and controls": "\U0001f600\x01\x7f\u2028",
    "largest": 2**64 - 1,
    "smallest": -(2**63),
    "floats": [0.1, 1e308, 5e-324, -0.0],
    "depth 150": deep(150),
    "100,000 keys": {str(n): n for n in range(100_000)},
    "nothing": None,
    "tuple": [1, [2, 3]],
}


async def tasks_in(hf: holdfast.Holdfast) -> int:
    return len(await hf.journal.list_tasks(Filter()))


@holdfast.task
async def echo(run: holdfast.Run, value: Any) -> Any:
    return value


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
async def test_an_argument_that_cannot_be_kept_is_refused(lab: Lab, value: Any) -> None:
    """BadValue names the place; no task exists afterwards."""
    async with lab.open(echo, serve=False) as hf:
        with pytest.raises(BadValue) as refused:
            await hf.submit(echo, value=value)
        assert "arguments of echo.value" in refused.value.message
        assert len(refused.value.message) < 5_000
        assert refused.value.hint
        assert await tasks_in(hf) == 0


async def test_an_argument_of_100_megabytes_is_refused_quickly(lab: Lab) -> None:
    async with lab.open(echo, serve=False) as hf:
        began = time.monotonic()
        with pytest.raises(TooLarge, match="limit") as refused:
            await hf.submit(echo, value=BIG)
        assert time.monotonic() - began < 5
        assert refused.value.hint
        assert await tasks_in(hf) == 0


@pytest.mark.parametrize("value", KEPT.values(), ids=KEPT.keys())
async def test_what_json_can_keep_comes_back_the_same(lab: Lab, value: Any) -> None:
    """Through the task's arguments, a step's arguments and results, and the task's result."""

    @holdfast.tool(effect=holdfast.Read())
    async def echo_tool(value: Any) -> Any:
        return value

    @holdfast.task
    async def through(run: holdfast.Run, value: Any) -> Any:
        return await run.call(echo_tool, value=value)

    async with lab.open(through) as hf:
        handle = await hf.submit(through, value=value)
        found = await handle.result(20)
        assert found == value
        assert repr(found) == repr(value)


@pytest.mark.parametrize("name", ["NaN", "bytes", "itself", "surrogate in a key"])
async def test_a_steps_argument_that_cannot_be_kept_is_refused_before_anything_is_planned(lab: Lab, name: str) -> None:
    pay = Scripted(KEYED, "paid")

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        try:
            await run.call(pay.tool, value=REFUSED[name])
        except BadValue as error:
            return error.code
        return "accepted"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        assert await handle.result(10) == "bad-value"
        assert (await handle.view()).steps == {}
    assert pay.calls == []


async def test_a_steps_argument_of_100_megabytes_is_refused(lab: Lab) -> None:
    pay = Scripted(KEYED, "paid")

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        try:
            await run.call(pay.tool, value=BIG[:-1] + "ü")
        except TooLarge as error:
            return error.code
        return "accepted"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        assert await handle.result(20) == "too-large"
        assert (await handle.view()).steps == {}
    assert pay.calls == []


@pytest.mark.parametrize(
    "effect",
    [holdfast.Read(), KEYED, holdfast.Fenced(), holdfast.Idempotent(), holdfast.Unrepeatable()],
    ids=lambda effect: effect.name,
)
@pytest.mark.parametrize("value", [b"raw", BIG, deep(10_000)], ids=["bytes", "100 MB", "deep"])
async def test_a_result_that_cannot_be_kept_does_not_undo_the_effect(lab: Lab, effect: Any, value: Any) -> None:
    """The step is recorded as succeeded; its result is lost, the code is told, and told again."""
    tool = Scripted(effect, value)
    raised: list[str] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        try:
            await run.call(tool.tool)
        except ResultNotKept as error:
            raised.append(error.message)
        await run.approve("go on?")
        return "went on"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        step = (await handle.view()).steps["1"]
        assert (step.state, step.result, bool(step.unkept)) == (StepState.SUCCEEDED, None, True)
        await hf.approve(handle.id, "2", granted=True)
        assert await handle.result(10) == "went on"
    assert len(tool.calls) == 1
    assert len(raised) >= 2
    assert len(set(raised)) == 1
    assert "took effect" in raised[0]


@pytest.mark.parametrize("value", [b"raw", float("nan"), BIG], ids=["bytes", "NaN", "100 MB"])
async def test_a_tasks_result_that_cannot_be_kept_fails_the_task(lab: Lab, value: Any) -> None:
    results = {"value": value}

    @holdfast.task
    async def give(run: holdfast.Run) -> Any:
        return results["value"]

    async with lab.open(give) as hf:
        handle = await hf.submit(give)
        with pytest.raises(TaskFailed) as failed:
            await handle.result(20)
        assert failed.value.kind in ("BadValue", "TooLarge")


async def test_changing_a_value_changes_no_record(lab: Lab) -> None:
    """The code and the tool own what they are given: a replay and a repeat see the original."""
    pay = Scripted(KEYED, {"items": [1]}, name="pay")
    bodies: list[Any] = []

    async def spoil(call: holdfast.Call, body: dict[str, Any]) -> str:
        bodies.append([*body["lines"]])
        body["lines"].append("spoilt")
        if len(bodies) < 3:
            raise ConnectionError("no answer")
        return "done"

    send = holdfast.tool(effect=KEYED, name="send")(spoil)
    seen: list[Any] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        receipt = await run.call(pay.tool)
        seen.append({"items": [*receipt["items"]]})
        receipt["items"].append("changed")
        lines = ["a"]
        sending = run.call(send, body={"lines": lines})
        await sending
        lines.append("later")
        await run.approve("go on?")
        return receipt

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        view = await handle.view()
        assert view.steps["1"].result == {"items": [1]}
        assert view.steps["2"].args == {"body": {"lines": ["a"]}}
    async with lab.open(order) as hf:
        await hf.approve(handle.id, "3", granted=True)
        assert await hf.task(handle.id).result(10) == {"items": [1, "changed"]}
    assert seen == [{"items": [1]}] * len(seen)
    assert len(seen) >= 2
    assert bodies == [["a"]] * 3


async def test_a_proof_that_cannot_be_kept_is_kept_as_text(lab: Lab) -> None:
    tool = Scripted(KEYED, holdfast.Refused(b"raw"))

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool.tool)
        except holdfast.Refused as error:
            return error.proof

    async with lab.open(order) as hf:
        assert await (await hf.submit(order)).result(10) == "b'raw'"
