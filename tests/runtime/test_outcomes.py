"""Each outcome of a tool, in each class: what is recorded, what is sent again, what is parked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import HoldfastError
from holdfast.journal.records import TaskState, TaskView
from holdfast.testing.lab import PACE, Lab, Scripted, hang, wait_state, wait_step

CLASSES: dict[str, Any] = {
    "R": holdfast.Read(),
    "F": holdfast.Fenced(max_delay_s=0),
    "K": holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0),
    "Q": holdfast.Queryable(max_delay_s=0),
    "I": holdfast.Idempotent(max_delay_s=0),
    "N": holdfast.Unrepeatable(max_delay_s=0),
}


@dataclass
class Run:
    """What came of one step."""

    state: TaskState
    step: StepState
    outcome: Any
    tool: Scripted
    view: TaskView


async def play(lab: Lab, letter: str, *acts: Any, **options: Any) -> Run:
    """Run one step of this class by the script, until its task ends or is parked."""
    answers = options.pop("finds", (holdfast.Absent(),))
    pace = options.pop("pace", PACE)
    tool = Scripted(CLASSES[letter], *acts, **options)
    if letter == "Q":
        tool.finds(*answers)

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(tool.tool)
        except HoldfastError as error:
            return [error.code, error.message]

    async with lab.open(one, pace=pace) as hf:
        handle = await hf.submit(one)
        row = await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED)
        view = await handle.view()
        outcome = view.outcome.get("result")
        return Run(row.state, view.steps["1"].state, outcome, tool, view)


@pytest.mark.parametrize("letter", CLASSES)
async def test_returning_means_that_it_took_place(lab: Lab, letter: str) -> None:
    run = await play(lab, letter, {"id": 1})
    assert (run.step, run.outcome, len(run.tool.calls)) == (StepState.SUCCEEDED, {"id": 1}, 1)


@pytest.mark.parametrize("letter", CLASSES)
async def test_a_refusal_of_a_lone_attempt_is_a_proven_failure(lab: Lab, letter: str) -> None:
    run = await play(lab, letter, holdfast.Refused({"code": "no"}))
    assert run.step is StepState.FAILED
    assert run.outcome[0] == "refused"
    assert run.view.steps["1"].error["proof"] == {"code": "no"}
    assert len(run.tool.calls) == 1


@pytest.mark.parametrize("letter", CLASSES)
async def test_not_sent_is_simply_sent_again_under_the_same_key(lab: Lab, letter: str) -> None:
    run = await play(lab, letter, holdfast.NotSent("refused connection"), "done")
    assert (run.step, run.outcome) == (StepState.SUCCEEDED, "done")
    assert run.tool.attempts == [1, 2]
    assert len(set(run.tool.keys)) == 1


@pytest.mark.parametrize("letter", ["R", "F", "K", "Q", "I"])
async def test_a_busy_far_end_is_asked_again_under_the_same_key(lab: Lab, letter: str) -> None:
    run = await play(lab, letter, holdfast.Busy(0.1), "done")
    assert (run.step, run.outcome) == (StepState.SUCCEEDED, "done")
    assert len(set(run.tool.keys)) == 1


async def test_a_busy_far_end_of_an_unrepeatable_tool_leaves_a_doubt(lab: Lab) -> None:
    run = await play(lab, "N", holdfast.Busy(0.1), "done")
    assert (run.state, run.step, len(run.tool.calls)) == (TaskState.PARKED, StepState.PARKED, 1)


DOUBTS: dict[str, Any] = {
    "raises": ConnectionError("reset by peer"),
    "exits": SystemExit(1),
    "times out": hang,
    "key reused": holdfast.KeyReused(),
}


@pytest.mark.parametrize("how", ["raises", "exits", "times out"])
@pytest.mark.parametrize("letter", ["F", "K", "I"])
async def test_a_doubt_where_repeats_do_no_harm_is_sent_again(lab: Lab, letter: str, how: str) -> None:
    """Same key, next attempt; never recorded as failed in between."""
    run = await play(lab, letter, DOUBTS[how], "done", timeout_s=0.1)
    assert (run.step, run.outcome) == (StepState.SUCCEEDED, "done")
    assert run.tool.attempts == [1, 2]
    assert len(set(run.tool.keys)) == 1


@pytest.mark.parametrize("how", ["raises", "exits", "times out"])
async def test_a_doubt_that_can_be_looked_up_is_looked_up_and_then_sent(lab: Lab, how: str) -> None:
    run = await play(lab, "Q", DOUBTS[how], "done", timeout_s=0.1)
    assert (run.step, run.outcome) == (StepState.SUCCEEDED, "done")
    assert (len(run.tool.calls), len(run.tool.lookups)) == (2, 1)


@pytest.mark.parametrize("how", DOUBTS)
async def test_a_doubt_of_an_unrepeatable_tool_is_a_persons_matter(lab: Lab, how: str) -> None:
    """At most once: one call, a question, evidence; and no failure."""
    run = await play(lab, "N", DOUBTS[how], "again", timeout_s=0.1)
    assert (run.state, run.step) == (TaskState.PARKED, StepState.PARKED)
    assert len(run.tool.calls) == 1
    step = run.view.steps["1"]
    assert "?" in step.question
    assert [one.get("attempt") for one in step.evidence if "attempt" in one] == [1]
    assert step.not_before_ms > 0


@pytest.mark.parametrize("how", ["raises", "exits", "times out"])
async def test_a_read_that_raises_is_a_plain_failure(lab: Lab, how: str) -> None:
    run = await play(lab, "R", DOUBTS[how], "again", timeout_s=0.1)
    assert run.step is StepState.FAILED
    assert run.outcome[0] == "tool-failed"
    assert len(run.tool.calls) == 1


@pytest.mark.parametrize("letter", ["F", "K", "I", "N"])
async def test_a_key_that_the_far_end_knows_with_another_body_is_never_sent_again(lab: Lab, letter: str) -> None:
    run = await play(lab, letter, holdfast.KeyReused({"status": 422}), "again")
    assert (run.state, run.step) == (TaskState.PARKED, StepState.PARKED)
    assert len(run.tool.calls) == 1
    assert "another body" in run.view.steps["1"].question


@pytest.mark.parametrize("letter", CLASSES)
async def test_a_call_cut_off_by_a_stop_is_in_doubt_and_resumed(lab: Lab, letter: str) -> None:
    """SIGTERM in mid-call: nothing is called failed; the next worker goes by the class."""
    tool = Scripted(CLASSES[letter], hang, "done")
    if letter == "Q":
        tool.finds(holdfast.Found("found"))

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one, grace_s=0) as hf:
        handle = await hf.submit(one)
        await tool.entered.wait()
    async with lab.open(serve=False) as hf:
        handle = hf.task(handle.id)
        step = (await handle.view()).steps["1"]
        wanted = StepState.PLANNED if letter == "R" else StepState.UNKNOWN
        assert (await handle.state(), step.state) == (TaskState.QUEUED, wanted)
        assert len(tool.calls) == 1
    async with lab.open(one) as hf:
        handle = hf.task(handle.id)
        row = await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED)
        assert row.state is (TaskState.PARKED if letter == "N" else TaskState.SUCCEEDED)
    assert len(tool.calls) == (1 if letter in ("Q", "N") else 2)
    assert len(set(tool.keys)) == 1


async def test_an_answer_that_comes_while_the_worker_stops_is_recorded(lab: Lab) -> None:
    """A stop waits for calls under way: what they answer is not thrown away."""
    gate = asyncio.Event()
    begun: list[int] = []

    async def answer(_call: holdfast.Call) -> str:
        begun.append(1)
        await gate.wait()
        return "sent"

    once, later = Scripted(CLASSES["N"], answer, name="once"), Scripted(CLASSES["K"], name="later")

    @holdfast.task
    async def two(run: holdfast.Run) -> Any:
        await run.call(once.tool)
        return await run.call(later.tool)

    async with lab.open(two, grace_s=1_000) as hf:
        handle = await hf.submit(two)
        await once.entered.wait()
        asyncio.get_running_loop().call_later(0.2, gate.set)
    async with lab.open(serve=False) as hf:
        view = await hf.task(handle.id).view()
        assert (view.steps["1"].state, view.steps["1"].result) == (StepState.SUCCEEDED, "sent")
        assert await hf.task(handle.id).state() is TaskState.QUEUED
    assert (begun, later.calls) == ([1], [])


async def test_attempts_are_bounded_and_then_a_person_is_asked(lab: Lab) -> None:
    """An always-timeout tool does not run for ever; neither does one that is never sent."""
    for letter in ("F", "K", "I"):
        run = await play(Lab(lab.folder / letter), letter, ConnectionError("reset"), attempts=3)
        assert (run.state, len(run.tool.calls)) == (TaskState.PARKED, 3)
        assert "attempts are used up" in run.view.steps["1"].question
    unsent = await play(Lab(lab.folder / "N"), "N", holdfast.NotSent(), attempts=1, pace=0.001)
    assert (unsent.state, unsent.step) == (TaskState.PARKED, StepState.PARKED)
    assert 1 < len(unsent.tool.calls) <= 21


async def test_a_queryable_step_is_found_even_with_its_attempts_spent(lab: Lab) -> None:
    run = await play(lab, "Q", ConnectionError("reset"), attempts=2, finds=(holdfast.Absent(), holdfast.Found("late")))
    assert (run.step, run.outcome) == (StepState.SUCCEEDED, "late")
    assert len(run.tool.calls) == 2


async def test_a_repeat_by_policy_says_that_it_may_have_happened_twice(lab: Lab) -> None:
    """At least once: sent again in doubt, and the record says so."""
    effect = holdfast.Unrepeatable(policy="at_least_once", max_delay_s=0)
    tool = Scripted(effect, ConnectionError("reset"), "sent")

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        assert await handle.result(10) == "sent"
        step = (await handle.view()).steps["1"]
        assert (step.state, step.note) == (StepState.SUCCEEDED, "duplicate_possible")
    assert len(tool.calls) == 2


async def test_a_single_send_by_that_policy_is_no_duplicate(lab: Lab) -> None:
    effect = holdfast.Unrepeatable(policy="at_least_once", max_delay_s=0)
    tool = Scripted(effect, holdfast.NotSent(), "sent")

    @holdfast.task
    async def one(run: holdfast.Run) -> Any:
        return await run.call(tool.tool)

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await handle.result(10)
        assert (await handle.view()).steps["1"].note == ""


async def test_a_tool_that_raises_before_its_first_byte_has_failed(lab: Lab) -> None:
    """It says itself when it sends: before that nothing can have happened."""
    for letter in ("N", "K"):
        run = await play(Lab(lab.folder / letter), letter, ValueError("bad address"), marks_sending=True)
        assert run.step is StepState.FAILED
        assert run.outcome == ["tool-failed", "act raised ValueError: bad address"]
        assert len(run.tool.calls) == 1


async def test_a_raise_before_the_first_byte_proves_nothing_of_an_earlier_attempt(lab: Lab) -> None:
    """Sent and unanswered, then a raise before sending: unknown, not failed (I3)."""

    async def send_and_lose(call: holdfast.Call) -> None:
        call.sending()
        raise ConnectionError("no answer")

    run = await play(lab, "K", send_and_lose, ValueError("bad address"), "done", marks_sending=True, attempts=9)
    assert (run.step, run.outcome) == (StepState.SUCCEEDED, "done")
    events = [one.state for one in run.view.steps.values()]
    assert StepState.FAILED not in events


async def test_the_start_is_durable_before_the_tool_is_entered(lab: Lab) -> None:
    """The checkpoint: tool, arguments, key, ordinal, on record when the first byte may leave."""
    seen: list[Any] = []

    @holdfast.tool(effect=CLASSES["N"])
    async def look(call: holdfast.Call, n: int) -> None:
        async with lab.open(serve=False) as other:
            step = (await other.task(call.task_id).view()).steps[call.ordinal]
            seen.append((step.state, step.args, step.tool, len(step.attempts)))

    @holdfast.task
    async def one(run: holdfast.Run) -> None:
        await run.call(look, n=7)

    async with lab.open(one) as hf:
        handle = await hf.submit(one)
        await handle.result(10)
        await wait_step(handle, "1", StepState.SUCCEEDED)
    assert seen == [(StepState.STARTED, {"n": 7}, "look", 1)]
