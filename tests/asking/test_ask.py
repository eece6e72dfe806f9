"""Model calls as steps: recorded before they are acted on, given back on replay, never guessed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import (
    BadInput,
    BadSettings,
    ContextTooLong,
    Misuse,
    ModelKeyRefused,
    ModelQuotaSpent,
    ModelUnavailable,
    ReplyGarbled,
    StateHeldElsewhere,
    TaskFailed,
    TaskParked,
    TooLarge,
)
from holdfast.journal.records import RecordKind, TaskState
from holdfast.runtime.models.openai import OpenAIWire
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.models.request import Request
from holdfast.runtime.task.talk import ASK, asked_of, asks_of, spent_of
from holdfast.testing.lab import Lab, wait_state, wait_step
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind
from holdfast_proofs.support.talks import request_of

MakeModel = Callable[..., holdfast.Model]
SeenNow = Callable[[], Awaitable[tuple[Seen, ...]]]
PRICE = holdfast.Price(input=3, cached=0.3, output=15)


async def test_a_talk_is_recorded_by_digest_and_gives_the_bytes_that_were_sent(
    lab: Lab, model: MakeModel, seen: SeenNow
) -> None:
    chat = model(price=PRICE, settings={"max_tokens": 100})

    @holdfast.task
    async def talks(run: holdfast.Run) -> list[str]:
        talk = run.talk(system="Be brief.")
        talk.say("hello")
        first = await run.ask(chat, talk)
        talk.say("more")
        second = await run.ask(chat, talk)
        return [first.text, second.text]

    async with lab.open(talks) as hf:
        handle = await hf.submit(talks)
        assert await handle.result(10) == ["Hello there, dear friend.", "More of it."]
        view = await handle.view()
    sent = [one.body_sha256 for one in await seen()]
    steps = asks_of(view)
    assert [step.tool for step in steps] == [ASK, ASK]
    assert [asked_of(step).count for step in steps] == [1, 3]
    assert [asked_of(step).after for step in steps] == ["", "1"]
    assert len(view.contents) == 3  # one head, two messages; the reply lies in its step alone
    for step, body in zip(steps, sent, strict=True):
        raw = OpenAIWire().encode(request_of(view, step.ordinal), stream=False)
        assert hashlib.sha256(raw).hexdigest() == body
        assert step.result["reply"]["route"]["body_sha256"] == body  # pyright: ignore[reportIndexIssue] - JSON
    spent = spent_of(view)
    assert spent is not None
    assert spent.cost == {"USD": sum(step.result["cost"] for step in steps)}  # pyright: ignore[reportIndexIssue, reportUnknownArgumentType] - JSON
    assert (spent.asks, spent.unpriced) == (2, 0)


async def test_a_replay_is_given_the_recorded_reply_and_sends_and_shows_nothing(
    lab: Lab, model: MakeModel, seen: SeenNow
) -> None:
    chat = model()
    shown: list[object] = []

    @holdfast.task
    async def talks(run: holdfast.Run) -> str:
        talk = run.talk()
        talk.say("hello")
        reply = await run.ask(chat, talk, show=shown.append)
        await run.approve("go on?")
        return reply.text

    async with lab.open(talks) as hf:
        handle = await hf.submit(talks)
        await wait_state(handle, TaskState.WAITING)
    told = "".join(one.text for one in shown if isinstance(one, holdfast.TextDelta))
    assert told == "Hello there, dear friend."
    shown.clear()
    async with lab.open(talks) as hf:
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == told
    assert shown == []
    assert len(await seen()) == 1


async def test_tool_calls_are_answered_by_their_place_not_by_the_providers_ids(
    lab: Lab, model: MakeModel, seen: SeenNow
) -> None:
    chat = model()
    schema: dict[str, object] = {"type": "object", "properties": {}}
    tools = [_offer(name, schema) for name in ("search", "now")]

    @holdfast.task
    async def plans(run: holdfast.Run) -> str:
        talk = run.talk()
        talk.say("trip")
        reply = await run.ask(chat, talk, tools=tools)
        search, now = reply.tool_calls
        talk.answer(now, "noon")  # in any order
        talk.answer(search, {"flights": [1]}, failed=True)
        return (await run.ask(chat, talk, tools=tools)).text

    async with lab.open(plans) as hf:
        handle = await hf.submit(plans)
        assert await handle.result(10) == "It is noon in Lisbon."
        view = await handle.view()
    told = request_of(view, "2").messages[-1]
    assert told["parts"] == [
        {"type": "tool_result", "ref": "r2-1", "text": '{"flights":[1]}', "failed": True},
        {"type": "tool_result", "ref": "r2-2", "text": "noon"},
    ]
    assert all(handle.id not in one.body.decode() for one in await seen())


@holdfast.tool(effect=holdfast.Read())
async def search(query: str) -> str:
    """Look for flights."""
    return query


async def test_a_model_is_told_of_tools_by_their_schemas(lab: Lab, model: MakeModel, seen: SeenNow) -> None:
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        return (await run.ask(chat, [_said("hello")], tools=[search])).text

    async with lab.open(asks) as hf:
        await (await hf.submit(asks)).result(10)
    [one] = await seen()
    assert json.loads(one.body)["tools"] == [{"type": "function", "function": search.schema}]


async def test_a_gate_is_for_tools_not_for_asking(lab: Lab, model: MakeModel) -> None:
    chat = model()

    @holdfast.task(gate=holdfast.Gate(allow=[]))
    async def asks(run: holdfast.Run) -> str:
        with pytest.raises(holdfast.GateRefused):
            await run.call(search, query="LIS")
        return (await run.ask(chat, [_said("hello")], tools=[search])).text

    async with lab.open(asks) as hf:
        assert await (await hf.submit(asks)).result(10) == "Hello there, dear friend."


async def test_an_open_call_has_to_be_answered_first(lab: Lab, model: MakeModel) -> None:
    chat = model()

    @holdfast.task
    async def hurries(run: holdfast.Run) -> str:
        talk = run.talk()
        talk.say("trip")
        reply = await run.ask(chat, talk)
        talk.answer(reply.tool_calls[0], "found")
        with pytest.raises(Misuse, match="already has a result, or is not a call"):
            talk.answer(reply.tool_calls[0], "again")
        with pytest.raises(Misuse, match="1 of the newest reply's tool calls have no result"):
            await run.ask(chat, talk)
        with pytest.raises(BadInput, match="must get its result before this message"):
            talk.say("more")
        return "told"

    async with lab.open(hurries) as hf:
        assert await (await hf.submit(hurries)).result(10) == "told"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (FaultKind.CONTEXT_TOO_LONG, ContextTooLong),
        (FaultKind.BAD_KEY, ModelKeyRefused),
        (FaultKind.QUOTA, ModelQuotaSpent),
        (FaultKind.GARBAGE, ReplyGarbled),
        (FaultKind.EMPTY, ReplyGarbled),
    ],
)
async def test_a_terminal_error_is_recorded_and_raised_on_every_replay(
    lab: Lab, model: MakeModel, server: ModelServer, fault: FaultKind, error: type[Exception], seen: SeenNow
) -> None:
    chat = model()
    raised: list[str] = []

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        try:
            await run.ask(chat, [{"role": "user", "parts": [{"type": "text", "text": "hello"}]}])
        except error as told:
            raised.append(str(told))
        await run.approve("go on?")
        return "went on"

    await server.faults(Fault(kind=fault, times=None))
    async with lab.open(asks) as hf:
        handle = await hf.submit(asks)
        await wait_state(handle, TaskState.WAITING)
        step = (await handle.view()).steps["1"]
    assert (step.state, step.error["kind"]) == (StepState.FAILED, error.__name__)
    count = len(await seen())
    assert count == (3 if error is ReplyGarbled else 1)
    async with lab.open(asks) as hf:
        await hf.approve(handle.id, "2", granted=True)
        assert await hf.task(handle.id).result(10) == "went on"
    assert len(set(raised)) == 1
    assert len(raised) == 2
    assert len(await seen()) == count


async def test_a_retryable_error_waits_as_long_as_the_provider_asks(
    lab: Lab, model: MakeModel, server: ModelServer, seen: SeenNow
) -> None:
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        return (await run.ask(chat, [_said("hello")])).text

    # At the lab's pace 5,000 s are 100 s: longer than a run waits in memory.
    await server.faults(Fault(kind=FaultKind.RATE_LIMIT, retry_after_s=5_000))
    async with lab.open(asks) as hf:
        handle = await hf.submit(asks)
        row = await wait_state(handle, TaskState.SLEEPING)
        step = (await handle.view()).steps["1"]
        assert step.state is StepState.PLANNED
        assert (step.error["kind"], step.error["retry_after_s"]) == ("ModelRateLimited", 5_000)
        assert row.due_ms - row.changed_ms > 90_000
        await hf.cancel(handle.id)
        with pytest.raises(holdfast.TaskCancelled):
            await handle.result(10)
    assert len(await seen()) == 1


@pytest.mark.parametrize("kind", [FaultKind.SERVER_ERROR, FaultKind.HANGUP, FaultKind.CUT])
async def test_an_outage_is_sat_out(
    lab: Lab, model: MakeModel, server: ModelServer, seen: SeenNow, kind: FaultKind
) -> None:
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        return (await run.ask(chat, [_said("hello")])).text

    await server.faults(Fault(kind=kind, times=2))
    async with lab.open(asks) as hf:
        handle = await hf.submit(asks)
        assert await handle.result(20) == "Hello there, dear friend."
        step = (await handle.view()).steps["1"]
    assert len(step.attempts) == len(await seen()) == 3
    assert len({one.body_sha256 for one in await seen()}) == 1


class Down:
    """A model whose endpoints are all down."""

    def __init__(self) -> None:
        self.up: holdfast.Model | None = None

    async def ask(self, request: Request, **more: Any) -> Reply:
        if self.up is None:
            raise ModelUnavailable("no endpoint replied")
        return await self.up.chat.ask(request, **more)


async def test_an_outage_without_end_parks_the_step(lab: Lab, model: MakeModel) -> None:
    down = Down()
    chat = holdfast.Model("model-1", down, attempts=2)

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        return (await run.ask(chat, [_said("hello")])).text

    async with lab.open(asks, pace=0.001) as hf:
        handle = await hf.submit(asks)
        with pytest.raises(TaskParked, match="why does it keep failing"):
            await handle.result(20)
        step = (await handle.view()).steps["1"]
        assert len(step.attempts) == 2
        evidence = step.evidence
        assert evidence[-1]["kind"] == "ModelUnavailable"
        down.up = model()
        await hf.settle(handle.id, "1", "run")
        assert await handle.result(20) == "Hello there, dear friend."


async def test_shown_text_of_an_attempt_that_broke_off_is_void(lab: Lab, model: MakeModel, server: ModelServer) -> None:
    chat = model()
    shown: list[object] = []

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        return (await run.ask(chat, [_said("hello")], show=shown.append)).text

    await server.faults(Fault(kind=FaultKind.CUT, after_chunks=3))
    async with lab.open(asks) as hf:
        text = await (await hf.submit(asks)).result(20)
    restarts = [i for i, one in enumerate(shown) if isinstance(one, holdfast.Restarted)]
    assert restarts
    assert "".join(one.text for one in shown[restarts[-1] :] if isinstance(one, holdfast.TextDelta)) == text


async def test_a_screen_that_fails_does_not_lose_the_reply(lab: Lab, model: MakeModel) -> None:
    chat = model()

    def fails(_shown: object) -> None:
        raise OSError("the terminal is gone")

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        return (await run.ask(chat, [_said("hello")], show=fails)).text

    async with lab.open(asks) as hf:
        assert await (await hf.submit(asks)).result(10) == "Hello there, dear friend."


async def test_a_talk_that_became_another_one_diverges(lab: Lab, model: MakeModel) -> None:
    chat = model()
    said = ["hello"]

    @holdfast.task
    async def talks(run: holdfast.Run) -> str:
        talk = run.talk()
        talk.say(said[0])
        reply = await run.ask(chat, talk)
        await run.approve("go on?")
        return reply.text

    async with lab.open(talks) as hf:
        handle = await hf.submit(talks)
        await wait_state(handle, TaskState.WAITING)
    said[0] = "hello again"
    async with lab.open(talks) as hf:
        await hf.approve(handle.id, "2", granted=True)
        with pytest.raises(TaskParked, match="the messages before this model call are not the recorded ones"):
            await hf.task(handle.id).result(10)


async def test_a_message_of_megabytes_is_kept_once(lab: Lab, model: MakeModel) -> None:
    chat = model()
    large = "hello " + "naïve " * 400_000

    @holdfast.task
    async def talks(run: holdfast.Run) -> list[int]:
        lengths: list[int] = []
        talk = run.talk()
        for _ in range(3):
            talk = run.talk(system=large)
            talk.say(large)
            await run.ask(chat, talk)
            lengths.append(len(talk))
        with pytest.raises(TooLarge):
            talk.say("x" * (17 << 20))
        return lengths

    async with lab.open(talks) as hf:
        handle = await hf.submit(talks)
        assert await handle.result(30) == [2, 2, 2]
        view = await handle.view()
    assert len(view.contents) == 2
    assert lab.journal.stat().st_size < 2.2 * len(large.encode())  # the prompt and the message


async def test_branches_ask_at_the_same_time(lab: Lab, model: MakeModel) -> None:
    chat = model()

    @holdfast.task
    async def both(run: holdfast.Run) -> list[str]:
        talk = run.talk()
        talk.say("hello")
        first: Any = run.ask(chat, talk)
        second: Any = run.ask(chat, talk.copy())
        replies = await run.gather(first, second)
        talk.say("more")
        return [*(one.text for one in replies), (await run.ask(chat, talk)).text]

    async with lab.open(both) as hf:
        handle = await hf.submit(both)
        assert (await handle.result(10))[2] == "More of it."
        view = await handle.view()
    assert sorted(step.ordinal for step in asks_of(view)) == ["1.1.1", "1.2.1", "2"]
    assert len(request_of(view, "2").messages) == 3


async def test_provider_held_state_is_refused_and_recorded_where_it_is_allowed(lab: Lab, model: MakeModel) -> None:
    settings = {"extra": {"openai": {"store": True}}}
    refusing, allowing = model(), model(allow_state=["stored-reply"])

    @holdfast.task
    async def asks(run: holdfast.Run) -> list[str]:
        with pytest.raises(StateHeldElsewhere):
            await run.ask(refusing, [_said("hello")], settings=settings)
        return list((await run.ask(allowing, [_said("hello")], settings=settings)).held_state)

    async with lab.open(asks) as hf:
        handle = await hf.submit(asks)
        assert await handle.result(10) == ["stored-reply"]
        assert Reply.from_json((await handle.view()).steps["2"].result["reply"]).held_state  # pyright: ignore[reportIndexIssue, reportUnknownArgumentType] - JSON


async def test_what_is_no_request_is_refused_before_anything_is_planned(lab: Lab, model: MakeModel) -> None:
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        talk = run.talk()
        with pytest.raises(BadInput, match="all of them are system messages"):
            await run.ask(chat, talk)
        with pytest.raises(BadInput, match="unknown key"):
            await run.ask(chat, [_said("hello")], settings={"heat": 1})
        with pytest.raises(BadInput, match="system messages must come first"):
            talk.add({"role": "system", "parts": [{"type": "text", "text": "late"}]})
        with pytest.raises(Misuse, match="is not a model"):
            run.ask("model-1", talk)  # pyright: ignore[reportArgumentType] - the mistake itself
        with pytest.raises(Misuse, match="neither a tool nor"):
            await run.ask(chat, [_said("hello")], tools=["search"])  # pyright: ignore[reportArgumentType] - the mistake itself
        return "none"

    async with lab.open(asks) as hf:
        handle = await hf.submit(asks)
        assert await handle.result(10) == "none"
        assert (await handle.view()).steps == {}


async def test_a_killed_worker_leaves_the_request_and_another_sends_the_same_bytes(
    lab: Lab, model: MakeModel, server: ModelServer, seen: SeenNow
) -> None:
    """The engine is broken off inside the call; the next one sends what was recorded."""
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        talk = run.talk()
        talk.say("held")
        return (await run.ask(chat, talk)).text

    await server.faults(Fault(kind=FaultKind.HOLD))
    async with lab.open(asks, grace_s=0.1) as hf:
        handle = await hf.submit(asks)
        await wait_step(handle, "1", StepState.STARTED)
        while not await seen():  # noqa: ASYNC110 - the far end gives no sign of its own
            await asyncio.sleep(0.01)
    await server.release()
    async with lab.open(asks) as hf:
        assert await hf.task(handle.id).result(20) == "At last."
    assert len({one.body_sha256 for one in await seen()}) == 1
    assert len(await seen()) == 2


async def test_one_commit_holds_the_messages_and_the_step(lab: Lab, model: MakeModel) -> None:
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        talk = run.talk()
        for _ in range(3):
            talk.say("more")
            await run.ask(chat, talk)
        return talk.prefix

    commits: list[list[RecordKind]] = []
    async with lab.open(asks) as hf:
        append = hf.journal.append

        async def counted(hold: Any, entries: Any, **more: Any) -> Any:  # Any: handed on
            commits.append([entry.kind for entry in entries])
            return await append(hold, entries, **more)

        hf.journal.append = counted
        await (await hf.submit(asks)).result(10)
    begins = [kinds for kinds in commits if RecordKind.CONTENT in kinds]
    assert all(kinds[-1] is RecordKind.STEP for kinds in begins)
    assert len(begins) <= 2  # the same words are kept once


def test_a_key_in_the_code_is_refused() -> None:
    with pytest.raises(BadSettings, match="do not put the key into code") as told:
        holdfast.Endpoint(name="one", url="https://host/v1", wire="openai", key="sk-1234")
    assert "sk-1234" not in str(told.value)


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), True, "3"])
def test_a_price_is_a_number(bad: Any) -> None:
    with pytest.raises(BadSettings):
        holdfast.Price(input=bad, output=1)


def test_costs_are_exact_and_rounded_up() -> None:
    usage = holdfast.Usage(input_tokens=10, output_tokens=3, cached_tokens=7)
    assert holdfast.Price(input=0.1, cached=0.01, output=0.7).cost(usage) == 3  # 0.3 + 0.07 + 2.1
    assert holdfast.Price(input=1, output=0).cost(usage) == 10


async def test_an_unwanted_task_failure_says_what_the_model_said(
    lab: Lab, model: MakeModel, server: ModelServer
) -> None:
    chat = model()

    @holdfast.task
    async def asks(run: holdfast.Run) -> str:
        return (await run.ask(chat, [_said("hello")])).text

    await server.faults(Fault(kind=FaultKind.CONTEXT_TOO_LONG))
    async with lab.open(asks) as hf:
        with pytest.raises(TaskFailed, match="context"):
            await (await hf.submit(asks)).result(10)


def _offer(name: str, schema: dict[str, object]) -> dict[str, object]:
    return {"name": name, "description": "", "parameters": schema}


def _said(text: str) -> dict[str, object]:
    return {"role": "user", "parts": [{"type": "text", "text": text}]}
