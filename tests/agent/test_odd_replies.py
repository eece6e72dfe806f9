"""Replies that no agent may act on, and figures that no cap may believe."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import Misuse, TaskFailed, TaskParked
from holdfast.journal.records import TaskState, TaskView
from holdfast.runtime.agent.loop import CALL_CUT, CALL_REFUSED, CUT
from holdfast.runtime.models.reply import Part, Refusal, Reply, StopReason, Text, ToolCall, Usage
from holdfast.runtime.models.request import Request
from holdfast.runtime.task.talk import asks_of
from holdfast.runtime.tool.tool import FindAnswer
from holdfast.testing.lab import Lab, wait_state
from holdfast_proofs.support.talks import request_of

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)
USAGE = Usage(input_tokens=100, output_tokens=10)
HUGE = "x" * 17_000_000


class Fake:
    """A chat model that says one reply after the other, and the last one for ever."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = replies
        self.asked: list[Request] = []

    async def ask(self, request: Request, **_more: Any) -> Reply:
        self.asked.append(request)
        return self._replies[min(len(self.asked), len(self._replies)) - 1]


def says(*parts: Part | str, stop: StopReason = StopReason.END, usage: Usage | None = USAGE) -> Reply:
    given = tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
    return Reply(parts=given, stop=stop, usage=usage)


def pays(number: int = 1) -> ToolCall:
    return ToolCall(number=number, tool="pay", text="{}", arguments={})


def agent_of(fake: Fake, *tools: Any, name: str = "ada", **more: Any) -> holdfast.Agent:
    given: dict[str, Any] = {"settings": {"max_tokens": 100}}
    given |= {key: more.pop(key) for key in ("attempts", "settings") if key in more}
    model = holdfast.Model("m", fake, price=holdfast.Price(input=1, output=10), **given)
    return holdfast.Agent(name=name, model=model, tools=tools, **more)


@pytest.fixture
def paid() -> list[int]:
    return []


@pytest.fixture
def pay(paid: list[int]) -> holdfast.Tool[..., Any]:
    @holdfast.tool(effect=KEYED)
    async def pay(call: holdfast.Call, cents: int = 100) -> str:
        paid.append(cents)
        return "paid"

    return pay


# a reply that no record can hold


async def test_a_reply_that_no_record_holds_is_garbled(lab: Lab) -> None:
    fake = Fake(says(HUGE))
    async with lab.open(ada := agent_of(fake)) as hf:
        handle = await hf.submit(ada, request="Go")
        with pytest.raises(TaskParked, match=r"reply-garbled: the reply cannot be kept: .*the limit"):
            await handle.result(30)
        view = await handle.view()
        assert [step.state for step in asks_of(view)] == [StepState.FAILED]
        assert len(fake.asked) == 3
        fake._replies = (says("Short."),)
        await hf.retry(handle.id)
        assert await handle.result(30) == "Short."


async def test_a_success_that_was_not_kept_ends_no_worker(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals of before have such records."""
    fake = Fake(says(HUGE), says("Short."))
    other = agent_of(Fake(says("Fine.")), name="other")
    async with lab.open(ada := agent_of(fake), other) as hf:
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.runtime.task.ask_step.encode", _unchecked)
            handle = await hf.submit(ada, request="Go")
            with pytest.raises(TaskFailed, match="ResultNotKept"):
                await handle.result(30)
        assert (await handle.view()).steps["1"].unkept
        await hf.retry(handle.id)
        assert await handle.result(30) == "Short."
        assert await other.do("Go", timeout_s=20) == "Fine."


async def test_records_that_make_no_sense_park_their_task_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, pay: Any
) -> None:
    fake = Fake(says(pays()), says(pays()), says("Done."))
    other = agent_of(Fake(says("Fine.")), name="other")
    ada = agent_of(fake, pay, max_turns=2)
    async with lab.open(ada, other) as hf:
        handle = await hf.submit(ada, request="Go")
        with pytest.raises(TaskParked, match="max-turns"):
            await handle.result(20)
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.runtime.models.reply.Reply.from_json", _no_reply)
            await hf.retry(handle.id)
            await _wait_question(handle, "damaged: step 1: its reply cannot be read")
        assert await other.do("Go", timeout_s=20) == "Fine."
        assert len(fake.asked) == 2


def _unchecked(value: object, **_more: object) -> bytes:
    return b""


def _no_reply(value: object) -> Reply:
    raise TypeError("no reply")


async def _wait_question(handle: Any, text: str) -> None:
    while True:
        with pytest.raises(TaskParked) as caught:
            await handle.result(20)
        if text in str(caught.value):
            return
        await asyncio.sleep(0.01)


# cut, refused


async def test_no_call_of_a_cut_reply_is_made(lab: Lab, pay: Any, paid: list[int]) -> None:
    cut = says("I will", pays(1), pays(2), stop=StopReason.LENGTH)
    fake = Fake(cut, says("Nothing paid."))
    async with lab.open(ada := agent_of(fake, pay)) as hf:
        handle = await hf.submit(ada, request="Pay")
        assert await handle.result(20) == "Nothing paid."
        view = await handle.view()
    assert paid == []
    assert sorted(view.steps) == ["1", "3"]
    assert {"2.1.1", "2.2.1"} <= set(view.notes)
    told, asked = request_of(view, "3").messages[-2:]
    assert [(part["text"], part["failed"]) for part in told["parts"]] == [(CALL_CUT, True)] * 2  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType] - JSON
    assert CUT in str(asked)


@pytest.mark.parametrize(
    "refused",
    [
        says(pays(), Refusal(text="I will not."), stop=StopReason.TOOL_CALLS),
        says("I will not.", pays(), stop=StopReason.REFUSED),
    ],
)
async def test_no_call_of_a_refused_reply_is_made(lab: Lab, pay: Any, paid: list[int], refused: Reply) -> None:
    async with lab.open(ada := agent_of(Fake(refused), pay)) as hf:
        handle = await hf.submit(ada, request="Pay")
        with pytest.raises(TaskFailed, match=r"ModelRefused: .*I will not"):
            await handle.result(20)
        view = await handle.view()
    assert paid == []
    assert set(view.steps) == {"1"}
    assert view.notes["2.1.1"].body["text"] == CALL_REFUSED


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_conversation_goes_on_after_a_refused_call(
    lab: Lab, pay: Any, paid: list[int], monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    refused = says(pays(), Refusal(text="I will not."), stop=StopReason.TOOL_CALLS)
    fake = Fake(refused, says("Hello!"))
    if resumed:
        monkeypatch.setattr("holdfast.runtime.agent.loop.IDLE_S", 0.01)
    async with lab.open(ada := agent_of(fake, pay)) as hf:
        chat = ada.chat("c")
        answer = await chat.say("Pay", timeout_s=20)
        assert (answer.text, answer.refused) == ("I will not.", True)
        handle = hf.task(await chat.task_id())
        if resumed:
            await wait_state(handle, TaskState.WAITING)
        assert (await chat.say("Hello", timeout_s=20)).text == "Hello!"
        view = await handle.view()
    assert paid == []
    assert CALL_REFUSED in str(request_of(view, "3").messages)


# spending


@pytest.mark.parametrize(
    "usage",
    [
        None,
        Usage(input_tokens=0, output_tokens=0),
        Usage(input_tokens=-5_000_000, output_tokens=0),
        Usage(input_tokens=10**15, output_tokens=10**15),
        Usage(input_tokens=10, output_tokens=1, cached_tokens=10**9),
    ],
)
async def test_a_cap_holds_where_no_figure_can_be_believed(lab: Lab, pay: Any, usage: Usage | None) -> None:
    fake = Fake(says(pays(), usage=usage))
    async with lab.open(ada := agent_of(fake, pay, spend_cap=20_000)) as hf:
        handle = await hf.submit(ada, request="Pay")
        with pytest.raises(TaskParked, match=r"spend-cap: [0-9,]+ of 20,000 millionths") as caught:
            await handle.result(20)
        most = [_most(view) for view in asks_of(await handle.view())]
    assert 2 <= len(fake.asked) < 15
    assert f"spend-cap: {sum(most):,} of" in str(caught.value)
    assert sum(most) <= 20_000
    async with lab.open(agent_of(fake, pay, spend_cap=20_001)) as hf:  # read back: the same
        await hf.retry(handle.id)
        await _wait_question(hf.task(handle.id), f"spend-cap: {sum(most):,} of 20,001")


def _most(ask: Any) -> int:
    return ask.body["most"]["input"] + 10 * ask.body["most"]["output"]


async def test_replies_that_were_thrown_away_count(lab: Lab, pay: Any) -> None:
    fake = Fake(says(HUGE), says(HUGE), says(pays()), says(HUGE))
    async with lab.open(ada := agent_of(fake, pay, spend_cap=100_000)) as hf:
        handle = await hf.submit(ada, request="Pay")
        with pytest.raises(TaskParked, match="reply-garbled"):
            await handle.result(30)
        view = await handle.view()
        first, second = asks_of(view)
        spent = 2 * _most(first) + 200 + 3 * _most(second)
    async with lab.open(agent_of(fake, pay, spend_cap=spent)) as hf:
        await hf.retry(handle.id)
        await _wait_parked(hf.task(handle.id), f"spend-cap: {spent:,} of {spent:,} ")


async def _wait_parked(handle: Any, text: str) -> None:
    await wait_state(handle, TaskState.PARKED)
    await _wait_question(handle, text)


# tools and arguments


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_tool_that_raises_cancelled_has_failed(lab: Lab, blocking: bool) -> None:
    async def cancels() -> str:
        gone = asyncio.ensure_future(asyncio.sleep(60))
        gone.cancel()
        return str(await gone)

    def cancels_here() -> str:
        raise asyncio.CancelledError

    tool = holdfast.tool(effect=holdfast.Read(), name="odd")(cancels_here if blocking else cancels)
    odd = ToolCall(number=1, tool="odd", text="{}", arguments={})
    async with lab.open(ada := agent_of(Fake(says(odd), says("It failed.")), tool)) as hf:
        handle = await hf.submit(ada, request="Go")
        assert await handle.result(20) == "It failed."
        view: TaskView = await handle.view()
    assert view.steps["2.1.1"].state is StepState.FAILED
    assert "CancelledError" in str(request_of(view, "3").messages[-1])


async def test_a_lookup_that_raises_cancelled_cannot_say(lab: Lab) -> None:
    effect = holdfast.Queryable(find_returns_result=False)

    @holdfast.tool(effect=effect)
    async def send(call: holdfast.Call) -> str:
        raise RuntimeError("in doubt")

    @send.find
    async def find_sent(call: holdfast.Call) -> FindAnswer:
        raise asyncio.CancelledError

    made = ToolCall(number=1, tool="send", text="{}", arguments={})
    async with lab.open(ada := agent_of(Fake(says(made)), send)) as hf:
        handle = await hf.submit(ada, request="Go")
        with pytest.raises(TaskParked, match=r"2\.1\.1"):
            await handle.result(20)


async def test_the_tools_that_there_are_include_the_plan(lab: Lab, pay: Any) -> None:
    unknown = ToolCall(number=1, tool="fly", text="{}", arguments={})
    async with lab.open(ada := agent_of(Fake(says(unknown), says("I see.")), pay)) as hf:
        handle = await hf.submit(ada, request="Go")
        assert await handle.result(20) == "I see."
        view = await handle.view()
    assert view.notes["2.1.1"].body["text"] == "there is no tool 'fly'; there are: pay, plan"


def test_what_an_agent_is_made_of_is_checked(pay: Any) -> None:
    async def shows(piece: object) -> None: ...

    class Shows:
        async def __call__(self, piece: object) -> None: ...

    wrong: list[tuple[str, Any, str]] = [
        ("gate", {"allow": []}, "is not a gate"),
        ("show", 3, "is not a function"),
        ("show", shows, "is async"),
        ("show", Shows(), "is async"),
    ]
    for name, value, text in wrong:
        with pytest.raises(Misuse, match=text):
            agent_of(Fake(), **{name: value})
    model = holdfast.Model("m", Fake())
    for tools in (pay, "pay", 7):
        with pytest.raises(Misuse, match="tools must be a list"):
            holdfast.Agent(name="a", model=model, tools=tools)  # pyright: ignore[reportArgumentType] - wrong on purpose
    with pytest.raises(Misuse, match="the name of a conversation"):
        agent_of(Fake()).chat(7)  # pyright: ignore[reportArgumentType] - wrong on purpose


async def test_a_request_goes_into_no_conversation(lab: Lab) -> None:
    async with lab.open(ada := agent_of(Fake(says("Hello!")))) as hf:
        with pytest.raises(Misuse, match="give a request or a conversation, not both"):
            await hf.submit(ada, request="Hello", conversation="c")
        with pytest.raises(Misuse, match="must be text"):
            await hf.submit(ada, request=7)
