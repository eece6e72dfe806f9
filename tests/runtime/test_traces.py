"""Why something failed can be read afterwards: the line that raised, the traceback, every attempt, every decision."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app.open import open as open_holdfast
from holdfast.cli.task.page import print_task
from holdfast.core.step import StepState
from holdfast.errors import TaskFailed, TaskParked
from holdfast.host.log import Log
from holdfast.host.traces import TRACE_CHARS_MAX, cut_trace, trace_of
from holdfast.host.who import user_at_host
from holdfast.journal.records import StepView, TaskState
from holdfast.testing.lab import Lab, Scripted, fast, wait_state
from holdfast.views.tasks import decisions_of, ended_by, next_try_ms, task_shape, tries_of
from holdfast.views.unfinished import waits_of

HERE = Path(__file__)


def price_of(what: str) -> int:
    raise ValueError(f"no price for {what}")


@holdfast.tool(effect=holdfast.Read())
async def look(what: str) -> int:
    return price_of(what)


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0))
def print_label(what: str) -> int:
    return price_of(what)


def line_of(text: str) -> int:
    """The line of this file that holds the text."""
    lines = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


async def test_a_failed_task_knows_the_line_that_raised(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> int:
        return price_of("tea")

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskFailed):
            await handle.result(10)
        end = (await handle.view()).end
    raised = line_of('raise ValueError(f"no price')
    assert end.where == f"{HERE}:{raised} in price_of: " + 'raise ValueError(f"no price for {what}")'
    assert 'return price_of("tea")' in end.trace
    assert end.trace.rstrip().endswith("ValueError: no price for tea")


async def test_a_failed_tool_knows_its_line_and_the_task_the_call(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> int:
        return await run.call(look, what="tea")

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskFailed):
            await handle.result(10)
        view = await handle.view()
    assert " in price_of: raise ValueError" in view.steps["1"].failure.where
    assert "return price_of(what)" in view.steps["1"].failure.trace
    assert " in order: return await run.call(look" in view.end.where


async def test_a_blocking_tool_sends_its_traceback_from_its_own_process(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> int:
        return await run.call(print_label, what="tea")

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskParked):
            await handle.result(20)
        step = (await handle.view()).steps["1"]
    assert step.state is StepState.PARKED
    assert " in price_of: raise ValueError" in step.failure.where
    assert "in print_label" in step.failure.trace
    assert not any("trace" in one for one in step.evidence), "the person who decides sees a line, not a page"


def test_the_end_of_a_long_traceback_is_kept() -> None:
    text = "x" * TRACE_CHARS_MAX + "the end"
    assert len(cut_trace(text)) == TRACE_CHARS_MAX
    assert (cut_trace(text)[:4], cut_trace(text)[-7:]) == ("...\n", "the end")
    assert cut_trace("short") == "short"
    assert trace_of(ValueError("never raised")) == ("", "")


async def test_the_library_that_raised_is_not_the_own_line(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return json.loads("{")

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskFailed):
            await handle.result(10)
        end = (await handle.view()).end
    assert ' in order: return json.loads("{")' in end.where
    assert "decoder.py" in end.trace


async def _events(lab: Lab, task: Any, *, until: TaskState) -> tuple[list[dict[str, Any]], StepView]:
    stream = io.StringIO()
    async with open_holdfast(lab.journal, tasks=[task], settings=fast(), log=Log(stream)) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, until)
        step = (await handle.view()).steps["1"]
    return [json.loads(line) for line in stream.getvalue().splitlines()], step


async def test_each_failed_attempt_is_an_event_with_its_reason_and_the_next_try(lab: Lab) -> None:
    async def bad(_call: holdfast.Call) -> None:
        raise ValueError("bad")

    rate = Scripted(holdfast.Read(), holdfast.NotSent("no route"), holdfast.Busy(2), bad, name="rate")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.call(rate.tool)

    events, step = await _events(lab, order, until=TaskState.FAILED)
    failed = [one for one in events if one["event"] == "attempt-failed"]
    assert [(one["attempt"], one["reason"], one["state"]) for one in failed] == [
        (1, "not sent: no route", "planned"),
        (2, "busy", "planned"),
        (3, "ValueError: bad", "failed"),
    ]
    assert [one.get("next_try_s") for one in failed] == [0.004, 0.04, None], "times are divided by 50"
    assert ' in bad: raise ValueError("bad")' in failed[2]["where"]
    ended = next(one for one in events if one["event"] == "run-ended")
    assert (ended["state"], ended["why"]) == ("failed", "ToolFailed: rate raised ValueError: bad")
    assert " in order: " in ended["where"]
    assert len(step.failures) == 3


async def test_a_proof_is_not_in_the_log(lab: Lab) -> None:
    rate = Scripted(holdfast.Read(), holdfast.Refused({"card": "4242"}), name="rate")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.call(rate.tool)

    events, _ = await _events(lab, order, until=TaskState.FAILED)
    failed = next(one for one in events if one["event"] == "attempt-failed")
    assert (failed["reason"], "4242" in json.dumps(failed)) == ("refused", False)


async def test_a_run_that_rests_says_why(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return bool(await run.approve("really?"))

    stream = io.StringIO()
    async with open_holdfast(lab.journal, tasks=[order], settings=fast(), log=Log(stream)) as hf:
        await wait_state(await hf.submit(order), TaskState.WAITING)
    ended = next(one for one in map(json.loads, stream.getvalue().splitlines()) if one["event"] == "run-ended")
    assert (ended["state"], ended["why"]) == ("waiting", "approval")


async def test_a_step_that_waits_for_its_next_try_says_when(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    rate = Scripted(holdfast.Read(), holdfast.Busy(600), name="rate")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.call(rate.tool)

    async with lab.open(order, pace=1.0) as hf:
        handle = await hf.submit(order)
        row = await wait_state(handle, TaskState.SLEEPING)
        view, now_ms = await handle.view(), hf.journal.now_ms()
        waits = waits_of(row, view, [])
    assert [one.text for one in waits] == ["the next try of step 1 (rate)"]
    assert 500_000 < waits[0].due_ms - now_ms <= 600_000
    assert next_try_ms(view.steps["1"]) == waits[0].due_ms
    print_task({**task_shape(row, view, {}), "decisions": []}, view, waits, now_ms=now_ms)
    page = capsys.readouterr().out
    soon = r"in (9 min \d+|10 min 0) s"  # the second where none of the ten minutes has passed yet
    assert re.search(rf"the next try of step 1 \(rate\), {soon}", page)
    assert re.search(rf"busy; next try {soon}", page)


async def test_a_decision_keeps_its_name_and_the_attempts_before_it(lab: Lab) -> None:
    lose = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), {"id": 1}, name="lose")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.call(lose.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.PARKED)
        await hf.settle(handle.id, "1", "run", note="not in the ledger")
        assert await handle.result(10) == {"id": 1}
        row, view = await handle.row(), await handle.view()
        said = decisions_of(await hf.journal.inbox_of(handle.id))
    step = view.steps["1"]
    assert [(one["what"], one["by"], one["note"]) for one in said] == [("run", user_at_host(), "not in the ledger")]
    tries = tries_of(view, step, {})
    assert [one["reason"] for one in tries] == ["ConnectionError: reset", ""]
    assert [one["fence"] for one in tries] == [call.fence for call in lose.calls]
    assert len(task_shape(row, view, {})["steps"][0]["sends"]) == 1, "since the decision, as documented"


async def test_a_step_that_a_person_closed_says_who(lab: Lab) -> None:
    lose = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), name="lose")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await run.call(lose.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.PARKED)
        await hf.settle(handle.id, "1", "done", result={"id": 2}, by="ada")
        assert await handle.result(10) == {"id": 2}
        step = (await handle.view()).steps["1"]
    assert ended_by(step) == "decided by ada"
    assert (len(step.attempts), len(step.earlier)) == (0, 1)


async def test_cancel_and_retry_are_recorded_with_a_name(lab: Lab) -> None:
    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        raise ValueError("no")

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.FAILED)
    async with lab.open(serve=False) as hf:
        await hf.retry(handle.id)
        await hf.task(handle.id).cancel(by="eve")
        said = decisions_of(await hf.journal.inbox_of(handle.id))
    assert [(one["what"], one["by"], one["applied"]) for one in said] == [
        ("retry", user_at_host(), False),
        ("cancel", "eve", False),
    ]
