"""Code that changes between two runs of a task: reported always, and then by policy."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getsource
from typing import Any

import pytest

import holdfast
from holdfast.errors import Misuse, TaskParked
from holdfast.journal.records import TaskState
from holdfast.runtime.step.code_changes import MARKS, code_digest, find_changed, source_digest
from holdfast.runtime.task.task import OnChange, TaskType
from holdfast.testing.lab import Lab, Scripted, wait_state

READ = holdfast.Read()


async def asks(run: holdfast.Run) -> str:
    return "yes" if await run.approve("go on?") else "no"


async def asks_anew(run: holdfast.Run) -> str:
    answer = await run.approve("go on?")
    return "granted" if answer else "refused"


def named(function: Callable[..., Any], on_change: OnChange = "continue") -> TaskType:
    return holdfast.task(name="asks", on_change=on_change)(function)


async def begin(lab: Lab, task: TaskType) -> str:
    """A task of this code that waits for a person."""
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.WAITING)
        return handle.id


async def test_code_that_stayed_is_not_reported(lab: Lab) -> None:
    task_id = await begin(lab, named(asks))
    async with lab.open(named(asks, "park")) as hf:
        await hf.approve(task_id, "1", granted=True, by="ada")
        handle = hf.task(task_id)
        assert await handle.result(10) == "yes"
        assert "changed" not in (await handle.view()).notes[MARKS].body


async def test_changed_code_goes_on_and_is_reported(lab: Lab) -> None:
    task_id = await begin(lab, named(asks))
    async with lab.open(named(asks_anew)) as hf:
        await hf.approve(task_id, "1", granted=True, by="ada")
        handle = hf.task(task_id)
        assert await handle.result(10) == "granted"
        assert (await handle.view()).notes[MARKS].body["changed"] == ["code"]


async def test_changed_code_is_parked_until_a_person_says_yes(lab: Lab) -> None:
    task_id = await begin(lab, named(asks))
    async with lab.open(named(asks_anew, "park")) as hf:
        await hf.approve(task_id, "1", granted=True, by="ada")
        handle = hf.task(task_id)
        with pytest.raises(TaskParked, match="the task's code changed after it began; retry the task"):
            await handle.result(10)
        notices = await hf.journal.pending_notices(limit=10)
        assert "parked" in {notice.kind for notice in notices}
        await hf.retry(task_id)
        assert await handle.result(10) == "granted"


async def test_a_change_back_is_no_change(lab: Lab) -> None:
    task_id = await begin(lab, named(asks))
    async with lab.open(named(asks_anew, "park")) as hf:
        await hf.approve(task_id, "1", granted=True, by="ada")
        with pytest.raises(TaskParked):
            await hf.task(task_id).result(10)
    async with lab.open(named(asks, "park")) as hf:
        handle = hf.task(task_id)
        await hf.retry(task_id)
        assert await handle.result(10) == "yes"


def one_line(a: int) -> int:
    return a + 1


class Otherwise:
    @staticmethod
    def one_line(a: int) -> int:
        # why
        return a + 1


def test_comments_and_layout_do_not_count() -> None:
    assert source_digest(getsource(one_line)) != ""
    laid_out = getsource(Otherwise.one_line).replace("@staticmethod", "")
    assert source_digest(laid_out) == source_digest(getsource(one_line)) == code_digest(one_line)
    assert source_digest(laid_out.replace("1", "2")) != source_digest(laid_out)


def test_code_without_a_source_is_never_changed() -> None:
    space: dict[str, Any] = {}
    exec("async def made(run): return 1", space)  # noqa: S102
    assert code_digest(space["made"]) == ""
    assert find_changed({"code": "a"}, {"code": ""}) == []
    assert find_changed({"code": ""}, {"code": "a"}) == []
    assert find_changed({"code": "a"}, {"code": "b", "prompt": "c"}) == ["code", "prompt"]
    assert find_changed({"code": "a", "model": "m"}, {"code": "a"}) == ["model"]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(Misuse, match="on_change"):
        named(asks, "ignore")  # pyright: ignore[reportArgumentType]


# versions


async def test_a_new_task_takes_the_new_way_and_keeps_it(lab: Lab) -> None:
    seen: list[int] = []

    async def code(run: holdfast.Run) -> int:
        seen.append(run.version("tax", 2))
        await run.approve("go on?")
        return run.version("tax", 3)

    task = holdfast.task(name="order")(code)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.WAITING)
        await hf.approve(handle.id, "1", granted=True, by="ada")
        assert await handle.result(10) == 2
    assert seen == [2, 2]


async def test_a_task_that_had_passed_before_there_were_versions_keeps_the_old_way(lab: Lab) -> None:
    old, new = Scripted(READ, "old", name="old"), Scripted(READ, "new", name="new")

    async def before(run: holdfast.Run) -> list[Any]:
        first = await run.call(old.tool)
        await run.approve("go on?")
        return [first, await run.call(old.tool)]

    async def after(run: holdfast.Run) -> list[Any]:
        first = await run.call(new.tool if run.version("first", 1) else old.tool)
        await run.approve("go on?")
        second = await run.call(new.tool if run.version("second", 1) else old.tool)
        return [first, second]

    task = holdfast.task(name="order")(before)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(holdfast.task(name="order")(after)) as hf:
        await hf.approve(handle.id, "2", granted=True, by="ada")
        assert await hf.task(handle.id).result(10) == ["old", "new"]


@pytest.mark.parametrize(("name", "newest"), [("", 1), ("a.b", 1), ("a b", 1), ("a" * 101, 1), ("a", 0), ("a", True)])
async def test_odd_versions_are_refused(lab: Lab, name: str, newest: int) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> int:
        return run.version(name, newest)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(holdfast.TaskFailed, match="version: give a name of 1 to 100"):
            await handle.result(10)
