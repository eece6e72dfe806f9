"""A gate around a task: what it refuses is recorded, never sent, and the same on every replay."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app.loading import load_app
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import file_at
from holdfast.core.step import StepState
from holdfast.errors import GateRefused, StepSkipped
from holdfast.journal.records import TaskState
from holdfast.recovery.recover_journal import recover_journal
from holdfast.runtime.step.code_changes import MARKS
from holdfast.testing.lab import Lab, Scripted, SkewedClock, after, program, wait_state, wait_step
from holdfast.views.unfinished import list_approvals
from holdfast_proofs.history.__main__ import main as check_history
from holdfast_proofs.support.command_line import Commands

PAYER = Path(__file__).with_name("payer.py")
PAY = load_app(f"{PAYER}:tasks").tasks["pay"]
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0)


async def told(call: Any) -> Any:
    """What a call gave, or the rule that it broke."""
    try:
        return await call
    except GateRefused as error:
        return error.rule


# refusals


async def test_a_refused_call_is_recorded_and_never_sent(lab: Lab) -> None:
    pay, other = Scripted(KEYED, "paid", name="pay"), Scripted(KEYED, "sent", name="send")
    seen: list[GateRefused] = []

    @holdfast.task(gate=holdfast.Gate(allow=[other.tool]))
    async def work(run: holdfast.Run) -> Any:
        try:
            await run.call(pay.tool, cents=5)
        except GateRefused as error:
            seen.append(error)
        await run.approve("go on?")
        return await run.call(other.tool)

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.WAITING)
        step = (await handle.view()).steps["1"]
        assert step.state is StepState.SKIPPED
        assert (step.tool, step.args, len(step.attempts)) == ("pay", {"cents": 5}, 0)
        assert step.step is not None
        assert step.step.maybe_sent == 0
        assert step.note == "refused by the gate: pay is not among the tools of this task"
    async with lab.open(work) as hf:  # another worker: the same answer, from the record
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == "sent"
    assert pay.calls == []
    assert [(one.ordinal, one.rule, one.tool) for one in seen] == [("1", "allow", "pay")] * 2
    assert seen[0].message == seen[1].message
    assert "step 1: the gate refused pay: pay is not among" in seen[0].message


async def test_arguments_are_held_against_the_schema_of_the_tool(lab: Lab) -> None:
    called: list[dict[str, Any]] = []

    @holdfast.tool(effect=KEYED, given={"account": ("a", 1)})
    async def pay(call: holdfast.Call, account: list[object], cents: int, note: str = "") -> str:
        called.append({"account": account, "cents": cents})
        return "paid"

    wrong: list[dict[str, Any]] = [
        {},
        {"cents": "5"},
        {"cents": 5.0},
        {"cents": 5, "note": None},
        {"cents": 5, "x": 1},
        {"cents": 5, "account": ["mine"]},
    ]
    whys: list[str] = []

    @holdfast.task(gate=holdfast.Gate())
    async def work(run: holdfast.Run) -> Any:
        for args in wrong:
            try:
                await run.call(pay, **args)
            except GateRefused as error:
                whys.append(error.why)
        return await run.call(pay, cents=5)

    async with lab.open(work) as hf:
        assert await (await hf.submit(work)).result(10) == "paid"
    assert called == [{"account": ["a", 1], "cents": 5}]
    assert whys == [
        "cents: is missing",
        "cents: must be a whole number",
        "cents: must be a whole number",
        "note: must be text",
        "x: is not known here",
        "account: leave it out, the tool sets it",
    ]


async def test_a_tool_without_a_schema_is_refused_on_record(lab: Lab) -> None:
    """Not raised as a mistake of the code: mended, a replay must not go another way."""

    @holdfast.tool(effect=KEYED)
    async def odd(call: holdfast.Call, on: bytes) -> str:
        return "done"

    @holdfast.task(gate=holdfast.Gate())
    async def work(run: holdfast.Run) -> Any:
        return await told(run.call(odd, on="x"))

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        assert await handle.result(10) == "arguments"
        assert "parameter 'on': bytes is no" in (await handle.view()).steps["1"].note


async def test_the_log_has_a_line_for_each_refusal(lab: Lab, capsys: Any) -> None:
    pay = Scripted(KEYED, "paid", name="pay")

    @holdfast.task(gate=holdfast.Gate(allow=[]))
    async def work(run: holdfast.Run) -> Any:
        return await told(run.call(pay.tool))

    async with holdfast.open(lab.journal, tasks=[work], log=holdfast.Log.to_stderr()) as hf:
        await (await hf.submit(work)).result(10)
    lines = [one for one in capsys.readouterr().err.splitlines() if "call-refused" in one]
    assert len(lines) == 1
    assert '"ordinal": "1"' in lines[0]
    assert '"rule": "allow"' in lines[0]


async def test_a_refusal_keeps_the_scratch_files_right(lab: Lab) -> None:
    pay = Scripted(KEYED, "paid", name="pay")

    @holdfast.task(gate=holdfast.Gate(allow=[]))
    async def work(run: holdfast.Run) -> Any:
        (run.scratch.path / "a").write_text("before")
        first = await told(run.call(pay.tool))
        (run.scratch.path / "a").write_text("after")
        await run.approve("go on?")
        return [first, await told(run.call(pay.tool)), (run.scratch.path / "a").read_text()]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(work) as hf:
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == ["allow", "allow", "after"]


# limits


def limited(*tools: Scripted, **limit: Any) -> holdfast.Gate:
    return holdfast.Gate(limits={one.tool: holdfast.Limit(**limit) for one in tools})


async def test_branches_do_not_pass_a_limit_together(lab: Lab) -> None:
    pay = Scripted(KEYED, "paid", name="pay")

    async def branch(run: holdfast.Run) -> Any:
        return await told(run.call(pay.tool, cents=30))

    @holdfast.task(gate=limited(pay, argument="cents", per_task=100))
    async def work(run: holdfast.Run) -> Any:
        return await run.gather(*[branch] * 8)

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        result = await handle.result(10)
        steps = (await handle.view()).steps
    assert sorted(result) == ["amount"] * 5 + ["paid"] * 3
    assert len(pay.calls) == 3
    for number, one in enumerate(result, start=1):
        paid = steps[f"1.{number}.1"].state is StepState.SUCCEEDED
        assert paid == (one == "paid")


async def test_what_is_under_way_or_in_doubt_counts_and_what_failed_does_not(lab: Lab) -> None:
    go = asyncio.Event()
    slow = Scripted(KEYED, after(go, "slow"), name="pay")
    refused = Scripted(KEYED, holdfast.Refused("declined"), "paid", name="buy")
    lost = Scripted(holdfast.Unrepeatable(max_delay_s=0), ConnectionError("reset"), "sent", name="send")

    async def second(run: holdfast.Run) -> Any:
        await slow.entered.wait()
        found = await told(run.call(slow.tool, cents=60))
        go.set()
        return found

    @holdfast.task(gate=limited(slow, refused, lost, argument="cents", per_task=100))
    async def work(run: holdfast.Run) -> Any:
        pair = await run.gather(run.call(slow.tool, cents=60), second)
        with pytest.raises(holdfast.Refused):
            await run.call(refused.tool, cents=60)
        pair.append(await run.call(refused.tool, cents=60))
        pair += await run.gather(run.call(lost.tool, cents=60), lambda run: told(run.call(lost.tool, cents=60)))
        return pair

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.PARKED)
        assert (await handle.view()).steps["4.2.1"].state is StepState.SKIPPED
        await hf.settle(handle.id, "4.1.1", "done", result="sent", by="ada")
        assert await handle.result(10) == ["slow", "amount", "paid", "sent", "amount"]
    assert len(lost.calls) == 1


async def test_a_retry_slot_is_judged_and_counts_once(lab: Lab) -> None:
    declined = holdfast.Refused("declined")
    pay = Scripted(KEYED, declined, "paid", name="pay", retries=1, retry_delay_s=0)

    @holdfast.task(gate=limited(pay, argument="cents", per_task=100, calls=1))
    async def work(run: holdfast.Run) -> Any:
        return [await run.call(pay.tool, cents=100), await told(run.call(pay.tool, cents=0))]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        assert await handle.result(10) == ["paid", "calls"]
        assert set((await handle.view()).steps) == {"1", "1.r1", "2"}


async def test_compensations_pass_the_gate_too(lab: Lab) -> None:
    pay, back = Scripted(KEYED, "paid", name="pay"), Scripted(KEYED, "back", name="refund")

    @holdfast.task(gate=limited(back, calls=1))
    async def work(run: holdfast.Run) -> Any:
        paid = run.call(pay.tool)
        return [await paid, await run.compensate(paid, back.tool), await told(run.compensate(paid, back.tool))]

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        assert await handle.result(10) == ["paid", "back", "calls"]
        assert (await handle.view()).steps["1.c2"].state is StepState.SKIPPED
    assert len(back.calls) == 1


class LaterClock(SystemClock):
    """The machine's clocks, so much later."""

    def __init__(self, later_ms: int) -> None:
        super().__init__()
        self._later_ms = later_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._later_ms

    def boot_ms(self) -> int:
        return super().boot_ms() + self._later_ms


async def test_a_rate_is_counted_from_recorded_times_by_every_worker(lab: Lab) -> None:
    pay = Scripted(KEYED, "paid", name="pay")
    waits: list[float | None] = []

    @holdfast.task(gate=limited(pay, calls=2, within_s=600))
    async def work(run: holdfast.Run) -> Any:
        done: list[Any] = []
        for _ in range(3):
            done += [await told(run.call(pay.tool)), await told(run.call(pay.tool))]
            try:
                await run.call(pay.tool)
            except GateRefused as error:
                waits.append(error.retry_after_s)
            await run.approve("go on?")
        return done

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.WAITING)
    assert 500 < (waits[0] or 0) <= 600
    # A person sets the wall clock forward: the boot clock knows better.
    async with lab.open(work, clock=SkewedClock(3_600_000)) as hf:
        await hf.approve(handle.id, "4", granted=True)
        await wait_step(hf.task(handle.id), "7", StepState.SKIPPED)
        await wait_state(hf.task(handle.id), TaskState.WAITING)
    assert len(pay.calls) == 2
    async with lab.open(work, clock=LaterClock(3_700_000)) as hf:
        await hf.approve(handle.id, "8", granted=True)
        await wait_step(hf.task(handle.id), "11", StepState.SKIPPED)
        await wait_state(hf.task(handle.id), TaskState.WAITING)
        await hf.approve(handle.id, "12", granted=True)
        assert await hf.task(handle.id).result(10) == ["paid", "paid", "rate", "rate", "paid", "paid"]
    assert len(pay.calls) == 4


async def test_killed_inside_a_call_another_worker_keeps_to_the_limits(lab: Lab) -> None:
    """60 are recorded, 30 in doubt when the worker dies; 11 more would be too much."""
    async with lab.open(serve=False) as hf:
        handle = await hf.submit(PAY, amounts=[200, 60, 30, 11, 10, 0])
    async with program(PAYER, lab.journal) as worker:
        assert await worker.hear("charging") == handle.id
        await worker.kill()
    async with lab.open(PAY) as hf:
        again = hf.task(handle.id)
        assert await again.result(20) == ["amount", 60, 30, "amount", 10, "calls"]
        view = await again.view()
        assert [len(step.attempts) for step in view.steps.values()] == [0, 1, 2, 0, 1, 0]


# approvals


async def test_above_an_amount_a_person_is_asked(lab: Lab) -> None:
    pay = Scripted(KEYED, "paid", name="pay")
    above = holdfast.Above(argument="cents", per_call=100)

    @holdfast.task(gate=holdfast.Gate(approve={pay.tool: above}))
    async def work(run: holdfast.Run) -> Any:
        done = [await run.call(pay.tool, cents=100), await run.call(pay.tool, cents=101)]
        try:
            await run.call(pay.tool, cents=102)
        except StepSkipped as error:
            done.append(error.note)
        return done

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.WAITING)
        assert len(pay.calls) == 1
        (asked,) = await list_approvals(hf.journal)
        assert asked.question == "may pay be called? cents: 101 is above 100"
    async with lab.open(work) as hf:
        handle = hf.task(handle.id)
        await hf.approve(handle.id, "2", granted=True, by="ada")
        await wait_step(handle, "3", StepState.PLANNED)
        await wait_state(handle, TaskState.WAITING)
        await hf.approve(handle.id, "3", granted=False, by="ada", note="too much")
        assert await handle.result(10) == ["paid", "paid", "too much"]
    assert len(pay.calls) == 2


@pytest.mark.parametrize("limit", [{"calls": 1}, {"calls": 1, "within_s": 0.001}], ids=str)
async def test_what_waits_for_a_yes_counts(lab: Lab, limit: dict[str, Any]) -> None:
    """Also in a rate: it may be sent at any moment."""
    pay = Scripted(KEYED, "paid", name="pay")
    gate = holdfast.Gate(approve=[pay.tool], allow=[pay.tool], limits={"pay": holdfast.Limit(**limit)})

    async def second(run: holdfast.Run) -> Any:
        await asyncio.sleep(0.005)  # longer than the span
        return await told(run.call(pay.tool))

    @holdfast.task(gate=gate)
    async def work(run: holdfast.Run) -> Any:
        return await run.gather(run.call(pay.tool), second)

    async with lab.open(work) as hf:
        handle = await hf.submit(work)
        await wait_state(handle, TaskState.WAITING)
        await hf.approve(handle.id, "1.1.1", granted=True)
        assert await handle.result(10) == ["paid", "rate" if "within_s" in limit else "calls"]


# changes


async def test_a_changed_gate_is_reported_and_judges_only_what_is_new(lab: Lab) -> None:
    pay = Scripted(KEYED, "paid", name="pay")

    async def code(run: holdfast.Run) -> Any:
        done = [await told(run.call(pay.tool, cents=60)), await told(run.call(pay.tool, cents=60))]
        await run.approve("go on?")
        return [*done, await told(run.call(pay.tool, cents=60))]

    def task(per_task: int) -> holdfast.TaskType:
        gate = limited(pay, argument="cents", per_task=per_task)
        return holdfast.task(name="work", gate=gate)(code)

    async with lab.open(task(100)) as hf:
        handle = await hf.submit(task(100))
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(task(120)) as hf:
        handle = hf.task(handle.id)
        await hf.approve(handle.id, "3", granted=True)
        # The second stays refused, though it would pass now; so the third just fits.
        assert await handle.result(10) == ["paid", "amount", "paid"]
        assert (await handle.view()).notes[MARKS].body["changed"] == ["gate"]


async def test_a_changed_gate_can_park_the_task(lab: Lab) -> None:
    async def code(run: holdfast.Run) -> Any:
        return bool(await run.approve("go on?"))

    before = holdfast.task(name="work", gate=holdfast.Gate(allow=[]))(code)
    now = holdfast.task(name="work", on_change="park")(code)
    async with lab.open(before) as hf:
        handle = await hf.submit(before)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(now) as hf:
        await hf.approve(handle.id, "1", granted=True)
        with pytest.raises(holdfast.TaskParked, match="the task's gate changed after it began; retry the task"):
            await hf.task(handle.id).result(10)


async def test_an_open_step_whose_function_takes_other_arguments_now_parks(lab: Lab) -> None:
    def made(name: str) -> Any:
        tool = Scripted(KEYED, "paid", name="pay", needs_approval=True).tool
        tool._names, tool._any = frozenset((name,)), False
        tool._needed, tool._required = frozenset((name,)), (name,)
        return tool

    def task(tool: Any, **args: Any) -> holdfast.TaskType:
        async def code(run: holdfast.Run) -> Any:
            return await run.call(tool, **args)

        return holdfast.task(name="work", gate=holdfast.Gate())(code)

    async with lab.open(task(made("cents"), cents=1)) as hf:
        handle = await hf.submit(task(made("cents"), cents=1))
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(task(made("amount"), cents=1)) as hf:
        await hf.approve(handle.id, "1", granted=True)
        with pytest.raises(holdfast.TaskParked, match="diverged: step 1: pay: unexpected 'cents'"):
            await hf.task(handle.id).result(10)


# scopes


async def test_a_scope_keeps_its_limits_over_days(lab: Lab) -> None:
    pay = Scripted(KEYED, "paid", name="pay")
    gate = limited(pay, calls=1)

    @holdfast.tool(effect=KEYED)
    async def noted(call: holdfast.Call, text: str) -> str:
        return text

    async with lab.open(tools=[pay.tool]) as hf:
        async with hf.scope("thread", gate=gate) as scope:
            assert await scope.call(pay.tool, slot="a") == "paid"
            assert await told(scope.call(pay.tool, slot="b")) == "calls"
        async with hf.scope("thread", gate=gate) as scope:
            assert await told(scope.call(pay.tool, slot="c")) == "calls"
            assert await scope.call(pay.tool, slot="a") == "paid"
            assert (await told(scope.call(noted, slot="odd", txt="x"))) == "arguments"
        async with hf.scope("thread") as scope:  # without a gate the refusal stays what it was
            assert await told(scope.call(pay.tool, slot="b")) == "calls"
            assert await scope.call(pay.tool, slot="d") == "paid"


# restores


async def test_after_a_restore_a_refusal_is_no_claim_that_nothing_was_done(tmp_path: Path) -> None:
    """The lost timeline, under an older gate, may have sent it: it is in doubt, and not sent."""
    done: list[str] = []
    keyed = holdfast.Keyed(window_s=86_400, fingerprint="ignored", refusals_stored=False, max_delay_s=0)

    @holdfast.tool(effect=keyed)
    async def pay(call: holdfast.Call) -> str:
        done.append(call.effect_key)
        return "paid"

    async def code(run: holdfast.Run) -> Any:
        return await told(run.call(pay))

    free = holdfast.task(name="order")(code)
    gated = holdfast.task(name="order", gate=holdfast.Gate(allow=[]))(code)
    journal = tmp_path / "journal.db"
    async with holdfast.open(journal, serve=False) as hf:
        task_id = (await hf.submit(free, request_id="order-1")).id
    shutil.copy2(journal, tmp_path / "old.db")
    async with holdfast.open(journal, tasks=[free]) as hf:
        assert await hf.task(task_id).result(20) == "paid"
    (tmp_path / "old.db").replace(journal)
    await recover_journal(file_at(journal))
    async with holdfast.open(journal, tasks=[gated]) as hf:
        with pytest.raises(holdfast.TaskParked):
            await hf.task(task_id).result(20)
        await hf.settle(task_id, "1", "run", by="ada")
        await wait_state(hf.task(task_id), TaskState.WAITING)
        assert len(done) == 1
        (asked,) = await list_approvals(hf.journal)
        assert asked.question == "may pay be called? pay is not among the tools of this task"
        await hf.approve(task_id, "1", granted=False, by="ada")
        with pytest.raises(holdfast.TaskFailed, match="StepSkipped"):
            await hf.task(task_id).result(20)
    assert len(done) == 1


# what people and checkers see


def test_a_refusal_is_shown_and_is_no_breach(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    async def fill() -> str:
        async with lab.open(PAY) as hf:
            handle = await hf.submit(PAY, amounts=[200, 60])
            assert await handle.result(10) == ["amount", 60]
            return handle.id

    task_id = asyncio.run(fill())
    hf = Commands(lab.folder, main)
    why = "cents: 200 would make 200 in this task; the most is 100"
    page = hf.look("task", "show", task_id).out
    assert f"refused by the gate: {why}" in page
    refused, paid = hf.look("task", "show", task_id, "--json").json["steps"]
    assert (refused["state"], refused["attempts"], refused["sends"]) == ("skipped", 0, [])
    assert refused["gate"] == {"verdict": "refused", "rule": "amount", "why": why}
    assert paid["gate"] == {}
    hf.look("doctor", "--deep")
    capsys.readouterr()
    assert check_history([str(lab.journal), "--json"]) == 0
