"""Code that does what it should not: it is told, and nothing is lost, repeated or left running."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import Misuse, NotDurable, StepOpen, TaskFailed, TaskParked
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Lab, Scripted, after, hang, wait_state, wait_step

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
ONCE = holdfast.Unrepeatable(max_delay_s=0)


async def test_a_second_step_beside_an_open_one_is_refused(lab: Lab) -> None:
    """asyncio.gather instead of run.gather: the open call ends first, then the task fails."""
    gate = asyncio.Event()
    first = Scripted(ONCE, after(gate, "first"), name="first")
    second = Scripted(KEYED, "second", name="second")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        return await asyncio.gather(run.call(first.tool), run.call(second.tool))

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await first.entered.wait()
        assert await handle.state() is TaskState.RUNNING
        gate.set()
        with pytest.raises(TaskFailed, match="StepOpen") as failed:
            await handle.result(10)
        assert "step 1 is still open" in failed.value.text
        assert (await handle.view()).steps["1"].state is StepState.SUCCEEDED
    assert (len(first.calls), len(second.calls)) == (1, 0)


async def test_a_call_that_is_not_awaited_ends_before_its_task_does(lab: Lab) -> None:
    """No attempt runs on once the task may be somebody else's."""
    gate = asyncio.Event()
    once = Scripted(ONCE, after(gate, "sent"))
    strays: list[asyncio.Task[Any]] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        async def stray() -> None:
            await run.call(once.tool)
            await run.call(once.tool)

        strays.append(asyncio.create_task(stray()))
        await once.entered.wait()
        return "left early"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await once.entered.wait()
        await asyncio.sleep(0.05)
        assert await handle.state() is TaskState.RUNNING
        gate.set()
        assert await handle.result(10) == "left early"
        assert [step.state for step in (await handle.view()).steps.values()] == [StepState.SUCCEEDED]
    with pytest.raises(StepOpen, match="has ended"):
        await strays[0]
    assert len(once.calls) == 1


async def test_a_call_that_was_never_awaited_fails_the_task_and_is_named(lab: Lab) -> None:
    """A forgotten `await`: the code believes that it has paid, so the task may not succeed."""
    charge, look = Scripted(ONCE, "sent", name="charge"), Scripted(holdfast.Read(), "seen", name="look")

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        await run.call(look.tool)
        run.call(charge.tool)
        return "done"

    @holdfast.task
    async def branches(run: holdfast.Run) -> Any:
        async def one(branch: holdfast.Run) -> None:
            branch.call(charge.tool)

        return await run.gather(one, run.call(look.tool))

    async with lab.open(order, branches) as hf:
        line = order.function.__code__.co_firstlineno + 3
        missing = rf"never awaited, so never carried out: run\.call\(charge\) at {__file__}:{line};"
        with pytest.raises(TaskFailed, match=missing) as failed:
            await (await hf.submit(order)).result(10)
        assert failed.value.kind == "Misuse"
        assert "the line that raised" not in failed.value.hint
        assert f"holdfast task retry {failed.value.task_id}" in failed.value.hint
        with pytest.raises(TaskFailed, match=r"run\.call\(charge\) at "):
            await (await hf.submit(branches)).result(10)
    assert charge.calls == []


@pytest.mark.filterwarnings("ignore:coroutine 'Run:RuntimeWarning")
@pytest.mark.parametrize("name", ["sleep", "approve", "gather", "note"])
async def test_whatever_the_run_offers_must_be_awaited(lab: Lab, name: str) -> None:
    """Code that did not wait for the yes of a person must not be taken for code that has it."""

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        getattr(run, name)(1)
        return "done"

    @holdfast.task
    async def waits(run: holdfast.Run) -> str:
        await run.sleep(0)
        await run.gather(lambda branch: branch.sleep(0))
        return "done"

    async with lab.open(order, waits) as hf:
        with pytest.raises(TaskFailed, match=rf"never awaited, so never carried out: run\.{name} at .*test_misuse"):
            await (await hf.submit(order)).result(10)
        assert await (await hf.submit(waits)).result(10) == "done"


async def test_a_call_given_to_create_task_says_what_to_do_instead(lab: Lab) -> None:
    once = Scripted(ONCE, "sent")

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        asyncio.create_task(run.call(once.tool))  # pyright: ignore[reportArgumentType]  # noqa: RUF006

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(holdfast.TaskFailed, match=r"await it, or give it to run\.gather"):
            await handle.result(10)


async def test_a_step_can_be_awaited_once(lab: Lab) -> None:
    tool = Scripted(KEYED, "paid")

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        call = run.call(tool.tool)
        first = await call
        with contextlib.suppress(Misuse):
            return ["twice", await call]
        return [first, call.ordinal]

    async with lab.open(order) as hf:
        assert await (await hf.submit(order)).result(10) == ["paid", "1"]
    assert len(tool.calls) == 1


async def test_a_signal_that_is_swallowed_comes_again(lab: Lab) -> None:
    """`except BaseException` around a parked step: no later use of the run goes on."""
    once = Scripted(ONCE, ConnectionError("reset"), name="once")
    later = Scripted(KEYED, "later", name="later")
    tried: list[str] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        parked = run.call(once.tool)
        uses: dict[str, Any] = {
            "call": lambda: run.call(later.tool),
            "gather": lambda: run.gather(run.call(later.tool)),
            "sleep": lambda: run.sleep(0),
            "approve": lambda: run.approve("really?"),
            "compensate": lambda: run.compensate(parked, later.tool),
        }
        with contextlib.suppress(BaseException):
            await parked
        for name, use in uses.items():
            with contextlib.suppress(BaseException):
                await use()
                tried.append(name)
        for name, draw in {"now": run.now, "random": run.random, "uuid": run.uuid}.items():
            with contextlib.suppress(BaseException):
                draw()
                tried.append(name)
        return "done all the same"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskParked):
            await handle.result(10)
        view = await handle.view()
        assert (set(view.steps), set(view.notes)) == ({"1"}, {"@marks"})
    assert (tried, later.calls) == ([], [])


async def test_a_signal_turned_into_an_error_is_still_a_signal(lab: Lab) -> None:
    once = Scripted(ONCE, ConnectionError("reset"), name="once")

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        try:
            await run.call(once.tool)
        except BaseException as error:
            raise ValueError("it failed") from error

    async with lab.open(order) as hf:
        await wait_state(await hf.submit(order), TaskState.PARKED)


async def test_a_divergence_cannot_be_swallowed(lab: Lab) -> None:
    later = Scripted(KEYED, "later", name="later")
    changed = [False]

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        with contextlib.suppress(BaseException):
            if changed[0]:
                run.random()
            else:
                run.now()
        if changed[0]:
            with contextlib.suppress(BaseException):
                await run.call(later.tool)
        else:
            await run.approve("go on?")
        return "done"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_state(handle, TaskState.WAITING)
        changed[0] = True
        await hf.approve(handle.id, "2", granted=True)
        await wait_state(handle, TaskState.PARKED)
    assert later.calls == []


async def test_a_timeout_of_the_codes_own_leaves_no_doubt_behind(lab: Lab) -> None:
    """`wait_for` around a call: the call comes to its end, and the code, run again, gets it."""
    gate = asyncio.Event()
    pay = Scripted(KEYED, hang, after(gate, "paid"), name="pay")
    other = Scripted(KEYED, "other", name="other")

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        try:
            return await asyncio.wait_for(run.call(pay.tool), 0.05)
        except TimeoutError:
            return await run.call(other.tool)

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        await wait_step(handle, "1", StepState.UNKNOWN, StepState.STARTED)
        gate.set()
        assert await handle.result(10) == "paid"
    assert (other.calls, len(set(pay.keys))) == ([], 1)


async def test_a_timeout_of_the_codes_own_around_an_unrepeatable_call_parks(lab: Lab) -> None:
    once = Scripted(ONCE, hang, "twice", name="once")

    @holdfast.task
    async def order(run: holdfast.Run) -> str:
        try:
            return await asyncio.wait_for(run.call(once.tool), 0.05)
        except TimeoutError:
            return "gave up"

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        with pytest.raises(TaskParked):
            await handle.result(10)
    assert len(once.calls) == 1


async def test_an_exit_ends_the_task_and_not_the_program(lab: Lab) -> None:
    @holdfast.task
    async def leave(run: holdfast.Run) -> None:
        raise SystemExit(3)

    @holdfast.task
    async def stay(run: holdfast.Run) -> str:
        return "here"

    async with lab.open(leave, stay) as hf:
        with pytest.raises(TaskFailed, match="SystemExit"):
            await (await hf.submit(leave)).result(10)
        assert await (await hf.submit(stay)).result(10) == "here"


async def test_a_cancel_of_the_codes_own_fails_the_task(lab: Lab) -> None:
    """Not given back to the queue: it would be taken from there for ever."""
    runs: list[int] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> None:
        runs.append(1)
        raise asyncio.CancelledError

    async with lab.open(order) as hf:
        with pytest.raises(TaskFailed, match="CancelledError"):
            await (await hf.submit(order)).result(10)
    assert runs == [1]


async def test_code_that_will_not_end_does_not_keep_the_program_from_ending(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It swallows every cancel; the task goes back to the queue without it."""
    monkeypatch.setattr("holdfast.runtime.engine.engine.CANCEL_EVERY_S", 0.05)
    begun, enough = asyncio.Event(), asyncio.Event()

    @holdfast.task
    async def stubborn(run: holdfast.Run) -> None:
        begun.set()
        while not enough.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await enough.wait()

    async with lab.open(stubborn) as hf:
        handle = await hf.submit(stubborn)
        await begun.wait()
        ended = time.monotonic()
    assert time.monotonic() - ended < 5
    enough.set()
    async with lab.open(serve=False) as hf:
        assert await hf.task(handle.id).state() is TaskState.QUEUED


async def test_a_tool_called_directly_says_that_nothing_would_be_recorded() -> None:
    tool = Scripted(KEYED, "paid").tool
    with pytest.raises(NotDurable, match="called directly") as refused:
        tool(n=1)
    assert "run.call" in refused.value.hint


async def test_what_is_no_tool_or_no_fit_call_is_refused(lab: Lab) -> None:
    """Before anything is planned: a misspelt argument is no step."""

    @holdfast.tool(effect=KEYED)
    async def charge(call: holdfast.Call, card: str, cents: int = 1) -> str:
        return card

    @holdfast.tool(effect=holdfast.Queryable())
    async def blind(call: holdfast.Call) -> None: ...

    async def plain() -> None: ...

    unfit: Any = plain
    hidden = {"tools": [blind]}  # where nothing looks before the task runs
    refused: list[str] = []

    @holdfast.task
    async def order(run: holdfast.Run) -> Any:
        calls: list[Any] = [
            lambda: run.call(unfit),
            lambda: run.call(charge, kard="x"),
            lambda: run.call(charge),
            lambda: run.call(charge, card="x", call="y"),
            lambda: run.call(hidden["tools"][0]),
        ]
        for call in calls:
            try:
                await call()
            except Misuse as error:
                refused.append(error.message)
        return await run.call(charge, card="x")

    async with lab.open(order) as hf:
        handle = await hf.submit(order)
        assert await handle.result(10) == "x"
        assert set((await handle.view()).steps) == {"1"}
    assert len(refused) == 5
    assert "no lookup" in refused[4]


async def test_a_task_that_blocks_the_loop_is_fenced_and_parked_and_others_go_on(lab: Lab) -> None:
    """It costs its engine the lease each time; counted like a death, it is found out."""
    pay = Scripted(KEYED, "paid")

    @holdfast.task
    async def block(run: holdfast.Run) -> None:
        time.sleep(0.6)  # noqa: ASYNC251 - what it is about
        await run.call(pay.tool)

    @holdfast.task
    async def work(run: holdfast.Run) -> str:
        for _ in range(3):
            await run.sleep(0.01)
        return "done"

    async with lab.open(block, work, lease_ttl_s=0.4, renew_every_s=0.1) as hf:
        blocking = await hf.submit(block)
        working = [await hf.submit(work) for _ in range(5)]
        for handle in working:
            assert await handle.result(30) == "done"
        with pytest.raises(TaskParked, match="what kills the process"):
            await blocking.result(30)
    assert pay.calls == []
