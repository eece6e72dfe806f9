"""The loop of an agent: calls by place, failures told, limits kept, nothing guessed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import BadSettings, Misuse, TaskFailed, TaskParked
from holdfast.journal.records import TaskState, TaskView
from holdfast.runtime.scratch.store import load_manifest
from holdfast.runtime.task.talk import asks_of, spent_of
from holdfast.testing.lab import Lab, wait_state, wait_step
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind
from holdfast_proofs.support.talks import request_of

MakeAgent = Callable[..., holdfast.Agent]
SeenNow = Callable[[], Awaitable[tuple[Seen, ...]]]
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


@holdfast.tool(effect=holdfast.Read())
async def search(query: str) -> list[str]:
    """Look for flights."""
    return [f"flight 7 to {query}"]


@holdfast.tool(effect=holdfast.Read())
async def weather(place: str) -> str:
    """The weather at a place."""
    return f"sunny, {place}, flight 7"


@holdfast.tool(effect=KEYED)
async def charge(call: holdfast.Call, card: str, cents: int = 0) -> str:
    """Take money."""
    return f"paid {cents}"


@holdfast.tool(effect=KEYED, needs_approval=True)
async def transfer(cents: int) -> str:
    return f"moved {cents}"


@holdfast.tool(effect=KEYED, name="charge")
async def notes_down(call: holdfast.Call, card: str, cents: int) -> str:
    pages = call.scratch / "pages"
    pages.write_text(pages.read_text() + "again" if pages.exists() else "first")
    return f"paid {cents}"


@holdfast.tool(effect=holdfast.Read())
async def broken() -> str:
    raise RuntimeError("out of order")


@holdfast.tool(effect=KEYED)
async def decline() -> str:
    raise holdfast.Refused({"code": "card_declined"})


def told(view: TaskView, ordinal: str) -> list[tuple[str, bool]]:
    """What the tool message before this model call says."""
    messages = request_of(view, ordinal).messages
    message = next(one for one in reversed(messages) if one["role"] == "tool")
    return [(part["text"], part.get("failed", False)) for part in message["parts"]]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType, reportUnknownMemberType] - JSON


async def view_of(hf: holdfast.Holdfast, agent: holdfast.Agent, request: str) -> TaskView:
    handle = await hf.submit(agent, request=request)
    await wait_state(handle, TaskState.SUCCEEDED, TaskState.FAILED, TaskState.PARKED)
    return await handle.view()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_request_is_planned_acted_on_and_answered(lab: Lab, agent: MakeAgent, wire: str, seen: SeenNow) -> None:
    ada = agent(search, weather, charge, wire=wire)
    async with lab.open(ada) as hf:
        assert await ada.do("book a trip", request_id="r1", timeout_s=20) == "Booked: flight 7."
        assert await ada.do("book a trip", request_id="r1", timeout_s=20) == "Booked: flight 7."
        [row] = await hf.journal.list_tasks(_all())
        view = await hf.journal.read_task(row.task_id)
    assert sorted(view.steps) == ["1", "2.1.1", "2.2.1", "3", "4.1.1", "5"]
    assert [view.steps[at].tool for at in ("2.1.1", "2.2.1", "4.1.1")] == ["search", "weather", "charge"]
    assert len(await seen()) == 3
    secrets = [view.task_id, *(step.effect_key.hex() for step in view.steps.values())]
    for one in await seen():
        assert not any(secret in one.body.decode() for secret in secrets)
    spent = spent_of(view)
    assert spent is not None
    assert spent.cost == {"USD": 3 * (100 + 10 * 10)}


async def test_malformed_calls_are_told_one_by_one(lab: Lab, agent: MakeAgent) -> None:
    """Duplicate ids, a key twice, no object, cut JSON, no such tool, arguments that do not fit."""
    async with lab.open(ada := agent(charge)) as hf:
        view = await view_of(hf, ada, "all wrong")
    assert view.finished is TaskState.SUCCEEDED
    texts = [text for text, failed in told(view, "3") if failed]
    assert len(texts) == 5
    assert "the key 'card' is given twice" in texts[0]
    assert "not a JSON object" in texts[1]
    assert "malformed" in texts[2]
    assert "there is no tool 'fly'; there are: charge" in texts[3]
    assert "the arguments do not fit" in texts[4]
    assert set(view.steps) == {"1", "3"}  # nothing was called
    assert {f"2.{n}.1" for n in range(1, 6)} <= set(view.notes)


async def test_ten_megabytes_of_arguments_are_refused(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent(charge)) as hf:
        view = await view_of(hf, ada, "large")
    assert view.outcome["result"] == "Too large, I see."
    assert lab.journal.stat().st_size < 2 << 20


async def test_a_refusal_fails_the_task_in_the_models_words(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent()):
        with pytest.raises(TaskFailed, match="I will not do that"):
            await ada.do("against the rules", timeout_s=20)


@pytest.mark.parametrize("fault", [FaultKind.GARBAGE, FaultKind.EMPTY, FaultKind.INVALID_JSON])
async def test_a_reply_that_is_none_parks_the_task_and_a_retry_goes_on(
    lab: Lab, agent: MakeAgent, server: ModelServer, fault: FaultKind
) -> None:
    await server.faults(Fault(kind=fault, times=3))
    async with lab.open(ada := agent()) as hf:
        handle = await hf.submit(ada, request="hello")
        with pytest.raises(TaskParked, match="reply-garbled"):
            await handle.result(20)
    async with lab.open(agent()) as hf:  # the endpoint that failed rests for some seconds
        await hf.retry(handle.id)
        assert await hf.task(handle.id).result(20) == "Hello!"
        view = await hf.task(handle.id).view()
    assert [step.state for step in asks_of(view)] == [StepState.FAILED, StepState.SUCCEEDED]


async def test_a_reply_that_was_cut_is_asked_for_again(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent()):
        assert await ada.do("say it all", timeout_s=20) == "All of it."


async def test_a_tools_failures_are_told(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent(broken, decline)) as hf:
        view = await view_of(hf, ada, "it fails")
        assert view.outcome["result"] == "It is broken."
        assert told(view, "3") == [("RuntimeError: out of order", True)]
        view = await view_of(hf, ada, "will be refused")
        assert told(view, "3") == [('refused: {"code":"card_declined"}', True)]


@pytest.mark.parametrize("granted", [True, False])
async def test_a_persons_answer_is_told(lab: Lab, agent: MakeAgent, granted: bool) -> None:
    async with lab.open(ada := agent(transfer)) as hf:
        handle = await hf.submit(ada, request="needs a yes")
        await wait_state(handle, TaskState.WAITING)
        await hf.approve(handle.id, "2.1.1", granted=granted, note="too much")
        assert await handle.result(20) == ("Moved." if granted else "Then not.")
        view = await handle.view()
    expected = [("moved 5", False)] if granted else [("a person refused this call: too much; it was not made", True)]
    assert told(view, "3") == expected


async def test_the_gate_is_told(lab: Lab, agent: MakeAgent) -> None:
    gate = holdfast.Gate(allow=[search])
    async with lab.open(ada := agent(charge, search, gate=gate)) as hf:
        view = await view_of(hf, ada, "pay alone")
    assert view.outcome["result"] == "The gate says no."
    [(text, failed)] = told(view, "3")
    assert failed
    assert "2.1.1" not in text
    assert view.steps["2.1.1"].state is StepState.SKIPPED


async def test_turns_end_in_a_question(lab: Lab, agent: MakeAgent, seen: SeenNow) -> None:
    async with lab.open(ada := agent(weather, max_turns=3)):
        with pytest.raises(TaskParked, match="max-turns: 3 model calls"):
            await ada.do("for ever", timeout_s=20)
    assert len(await seen()) == 3


async def test_no_call_is_made_that_could_pass_the_cap(lab: Lab, agent: MakeAgent, seen: SeenNow) -> None:
    """A call costs 200; the next may cost its 100 tokens, what is new, and 100 tokens out."""
    async with lab.open(ada := agent(weather, spend_cap=2_700)) as hf:
        handle = await hf.submit(ada, request="for ever")
        with pytest.raises(TaskParked, match=r"spend-cap: [0-9,]+ of 2,700 millionths of a USD"):
            await handle.result(20)
        spent = spent_of(await handle.view())
    assert spent is not None
    assert 0 < spent.cost["USD"] <= 2_700
    made = len(await seen())
    more = agent(weather, spend_cap=4_000)
    async with lab.open(more) as hf:  # the cap is raised, a person says go on
        await hf.retry(handle.id)
        with pytest.raises(TaskParked, match="of 4,000"):
            await hf.task(handle.id).result(20)
    assert len(await seen()) > made


async def test_a_cap_needs_a_price_and_limits_are_numbers(server: ModelServer) -> None:
    model = holdfast.Model("m", holdfast.Endpoint(name="a", url=server.url, wire="openai"))
    with pytest.raises(BadSettings, match="needs the model's price"):
        holdfast.Agent(name="a", model=model, spend_cap=5)
    with pytest.raises(BadSettings, match="max_turns"):
        holdfast.Agent(name="a", model=model, max_turns=0)
    other = holdfast.tool(effect=holdfast.Read(), name="search")(search.function)
    with pytest.raises(Misuse, match="two tools"):
        holdfast.Agent(name="a", model=model, tools=[search, other])
    with pytest.raises(Misuse, match="no journal is open"):
        await holdfast.Agent(name="a", model=model).do("x")


async def test_the_model_keeps_a_plan(lab: Lab, agent: MakeAgent) -> None:
    async with lab.open(ada := agent(plan=True)) as hf:
        view = await view_of(hf, ada, "make a plan")
    assert view.outcome["result"] == "Planned."
    assert [(item.title, item.state, item.result) for item in view.plan] == [
        ("search", "done", "f7"),
        ("pay", "dropped", ""),
    ]
    assert told(view, "5") == [("plan: there is no item 9", True)]
    assert [step.body.get("plan") for step in asks_of(view)] == [None, 1, 1, 2]


async def test_code_keeps_a_plan(lab: Lab) -> None:
    @holdfast.task
    async def plans(run: holdfast.Run) -> list[str]:
        search_item, pay_item = run.plan.add("search", "pay")
        run.plan.set(search_item, "doing")
        found = await run.call(search, query="LIS")
        run.plan.set(search_item, "done", result=found[0])
        await run.approve("pay?")
        run.plan.set(pay_item, "done")
        return [f"{item.title} {item.state.value}" for item in run.plan.items]

    async with lab.open(plans) as hf:
        handle = await hf.submit(plans)
        await wait_state(handle, TaskState.WAITING)
    async with lab.open(plans) as hf:
        await hf.approve(handle.id, "5", granted=True)
        assert await hf.task(handle.id).result(20) == ["search done", "pay done"]
        view = await hf.task(handle.id).view()
    assert len([note for note in view.notes.values() if note.what == "plan"]) == 4
    assert view.steps["3"].body["plan"] == 2


async def test_a_plan_that_changes_otherwise_diverges(lab: Lab) -> None:
    title = ["search"]

    @holdfast.task
    async def plans(run: holdfast.Run) -> str:
        run.plan.add(title[0])
        await run.approve("go on?")
        return "done"

    async with lab.open(plans) as hf:
        handle = await hf.submit(plans)
        await wait_state(handle, TaskState.WAITING)
    title[0] = "pay"
    async with lab.open(plans) as hf:
        await hf.approve(handle.id, "2", granted=True)
        with pytest.raises(TaskParked, match="step 1: the change of the plan is not the recorded one"):
            await hf.task(handle.id).result(20)


async def test_a_cancel_ends_it(lab: Lab, agent: MakeAgent, server: ModelServer) -> None:
    await server.faults(Fault(kind=FaultKind.RATE_LIMIT, retry_after_s=5_000, times=None))
    async with lab.open(ada := agent()) as hf:
        handle = await hf.submit(ada, request="hello")
        await wait_state(handle, TaskState.SLEEPING)
        await hf.cancel(handle.id)
        with pytest.raises(holdfast.TaskCancelled):
            await handle.result(20)


async def test_a_secret_that_a_tool_may_not_use_is_told(lab: Lab, agent: MakeAgent) -> None:
    from holdfast.runtime.agent.calls import _refusal
    from holdfast.runtime.models.reply import ToolCall

    call = ToolCall(number=1, tool="charge", text="", arguments={"card": "secret://bank"})
    assert _refusal(call, charge, {"charge": charge}, gated=False) == ("card: this argument takes no secret://bank")


def _all() -> Any:
    from holdfast.journal.contract import Filter

    return Filter(limit=10)


def test_schemas_are_what_the_model_is_offered(agent: MakeAgent) -> None:
    ada = agent(search, plan=True)
    assert [tool["name"] for tool in ada.schemas] == ["search", "plan"]
    assert json.dumps(ada.schemas[0]["parameters"])


async def test_working_files_come_back_on_another_worker(lab: Lab, agent: MakeAgent, server: ModelServer) -> None:
    """The folder of the first worker is gone; the second finds what the journal has."""
    await server.faults(Fault(kind=FaultKind.HOLD, last="paid 1"))
    ada = agent(notes_down, scratch=True)
    async with lab.open(ada, grace_s=0.05) as hf:
        handle = await hf.submit(ada, request="pay alone")
        await wait_step(handle, "3", StepState.STARTED)
    await server.release()
    shutil.rmtree(lab.folder / "scratch")
    async with lab.open(ada) as hf:
        handle = hf.task(handle.id)
        assert await handle.result(20) == "Paid 1."
        files = (await handle.view()).files
        assert files is not None
        manifest = await load_manifest(hf.journal, files.newest)
    assert [(file.path, file.size) for file in manifest.files] == [("pages", 5)]
