"""What is taken for the deed of a lost timeline, and what is not: two tools may share a far end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.ids import TaskId
from holdfast.core.step import Step, StepState
from holdfast.journal.records import StepView, TaskView
from holdfast.runtime.step.lost_timeline import LostEffects
from holdfast.runtime.tool.tool import Absent, FindAnswer, Found, Unsure

RESTORED_MS, LATER_MS = 100, 200


@holdfast.tool(effect=holdfast.Queryable(max_delay_s=1.0))
async def pay(call: holdfast.Call, n: int) -> object:
    return n


def opened(ordinal: str, tool: str, state: StepState, *, args: Any, **known: Any) -> StepView:
    """A step that this timeline has opened since the restore."""
    step = StepView(ordinal, "Q")
    step.step = Step(letter="Q", state=state, attempts=1, maybe_sent=1)
    step.tool, step.planned_ms, step.restored_ms = tool, LATER_MS, RESTORED_MS
    step.body = {"args": args}
    for name, value in known.items():
        setattr(step, name, value)
    return step


async def asked(
    there: StepView | None,
    found: Found,
    *,
    meanwhile: StepView | None = None,
    same: Callable[[Found], bool] = lambda _found: False,
) -> tuple[str, FindAnswer]:
    """Step 3 pays; the far end knows something under the key of place 2, and nothing else."""
    view = TaskView(TaskId("task"))
    view.restored_ms = RESTORED_MS
    step = opened("3", "pay", StepState.UNKNOWN, args={"n": 1})
    view.steps["3"] = step
    if there is not None:
        view.steps["2"] = there

    async def ask(slot: StepView) -> FindAnswer:
        if slot.ordinal != "2":
            return Absent()
        if meanwhile is not None:
            view.steps["2"] = meanwhile
        return found

    lost = LostEffects(view, lambda place: place.encode())
    return await lost.elsewhere(pay, step, ask, same=same)


DONE = {"args": {"n": 1}, "result": {"id": "r2"}}


@pytest.mark.parametrize(
    "found",
    [
        Found({"id": "r2"}, args={"n": 1}),
        Found({"id": "r2"}, args={"amount": 1}),  # as the other tool's lookup names it
        Found({"state": "paid"}, args={"n": 1}),  # a lookup tells less than the call
        Found({"state": "paid"}),  # and may not tell what was done
    ],
)
async def test_the_own_deed_of_another_tool_is_not_taken_for_a_lost_one(found: Found) -> None:
    for state in (StepState.SUCCEEDED, StepState.UNKNOWN, StepState.PARKED):
        for is_same in (False, True):
            own = opened("2", "refund", state, **DONE)
            place, answer = await asked(own, found, same=lambda _found, known=is_same: known)
            assert (place, type(answer)) == ("2", Unsure)


@pytest.mark.parametrize(
    "there",
    [
        None,
        opened("2", "refund", StepState.FAILED, **DONE),
        opened("2", "refund", StepState.SUCCEEDED, args={"n": 9}, result={"id": "r9"}),
        opened("2", "refund", StepState.SUCCEEDED, **DONE, found={"at": "1"}),
        opened("2", "pay", StepState.SUCCEEDED, **DONE, found={"at": "1"}),
    ],
)
async def test_what_this_timeline_cannot_have_done_was_done_by_the_lost_one(there: StepView | None) -> None:
    found = Found({"id": "r2"}, args={"n": 1})
    assert await asked(there, found) == ("2", found)


async def test_a_branch_that_comes_to_the_place_while_it_is_asked_about_has_done_it_itself() -> None:
    found = Found({"id": "r2"}, args={"n": 1})
    own = opened("2", "pay", StepState.SUCCEEDED, **DONE)
    assert await asked(None, found, meanwhile=own, same=lambda _found: True) == ("", Absent())
