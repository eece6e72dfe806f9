"""Several endpoints: the same bytes to each, what was lost on the way, and no key anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from holdfast.errors import (
    BadSettings,
    ContextTooLong,
    ModelKeyRefused,
    ModelRejected,
    ModelUnavailable,
    ReplyGarbled,
    StateHeldElsewhere,
)
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.endpoints import Endpoints
from holdfast.runtime.models.health import Breaker
from holdfast.runtime.models.model import Whole, stream
from holdfast.runtime.models.reply import ChatModel, Reply, Restarted, Route, Shown, StopReason, TextDelta, ref_of
from holdfast.runtime.models.request import Request, checked_request
from holdfast.testing.clocks import ManualClock
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind

Make = Callable[..., Endpoint]
Say = Callable[[str], Request]
KEY = "sk-canary-5f1c2a9e"
HELLO = "Hello there, dear friend: naïve café, 你好."


def ignore(_: Shown) -> None:
    pass


def route_of(reply: Reply) -> Route:
    assert reply.route is not None
    return reply.route


async def test_the_first_dies_in_mid_stream_and_the_second_gets_the_same_bytes(
    first: ModelServer, second: ModelServer, endpoint: Make, say: Say
) -> None:
    model: ChatModel = Endpoints([endpoint(first), endpoint(second, "second", region="eu")])
    talk = say("hello, a talk of this test alone")
    warm = await model.ask(talk)
    again = await model.ask(talk)
    assert route_of(again).cold_tokens == 0
    await first.faults(Fault(kind=FaultKind.CUT, after_chunks=4))
    shown: list[Shown] = []
    reply = await model.ask(talk, show=shown.append, session="task-7")
    ours, theirs = (await first.requests())[-1], (await second.requests())[-1]
    assert ours.body == theirs.body
    assert ours.answered == "cut"
    assert route_of(reply).body_sha256 == theirs.body_sha256
    assert reply.text == HELLO
    assert (route_of(reply).endpoint, route_of(reply).region) == ("second", "eu")
    failure = route_of(reply).failures[0]
    assert (failure.endpoint, failure.code) == ("first", "reply-garbled")
    assert failure.text_chars > 0
    # The second had never seen the talk: every token of the prompt was read anew.
    assert warm.usage is not None
    assert route_of(reply).cold_tokens == warm.usage.input_tokens > 0
    void = shown.index(Restarted(failed="first"))
    assert sum(len(one.text) for one in shown[:void] if isinstance(one, TextDelta)) == (failure.text_chars)
    kept = "".join(one.text for one in shown[void:] if isinstance(one, TextDelta))
    assert kept == HELLO
    assert Reply.from_json(json.loads(json.dumps(reply.to_json()))) == reply


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.SERVER_ERROR,
        FaultKind.RATE_LIMIT,
        FaultKind.HANGUP,
        FaultKind.GARBAGE,
        FaultKind.EMPTY,
        FaultKind.BAD_KEY,
        FaultKind.QUOTA,
        FaultKind.UNKNOWN_MODEL,
    ],
    ids=str,
)
async def test_every_error_of_an_endpoint_leaves_the_next_one_a_chance(
    first: ModelServer, second: ModelServer, endpoint: Make, say: Say, kind: FaultKind
) -> None:
    await first.faults(Fault(kind=kind))
    model = Endpoints([endpoint(first), endpoint(second, "second")])
    reply = await model.ask(say("hello"))
    assert reply.text == HELLO
    assert (await first.requests())[-1].body == (await second.requests())[-1].body
    assert [one.endpoint for one in route_of(reply).failures] == ["first"]


@pytest.mark.parametrize("kind", [FaultKind.CONTEXT_TOO_LONG, FaultKind.BAD_REQUEST], ids=str)
async def test_an_error_about_the_request_ends_the_call(
    first: ModelServer, second: ModelServer, endpoint: Make, say: Say, kind: FaultKind
) -> None:
    before = len(await second.requests())
    await first.faults(Fault(kind=kind))
    model = Endpoints([endpoint(first), endpoint(second, "second")])
    wanted = ContextTooLong if kind is FaultKind.CONTEXT_TOO_LONG else ModelRejected
    with pytest.raises(wanted):
        await model.ask(say("hello"))
    assert len(await second.requests()) == before
    assert not model.health()["first"].open


async def test_two_wire_forms_say_the_same_and_call_the_model_by_its_name_there(
    first: ModelServer, second: ModelServer, say: Say
) -> None:
    ends = [
        Endpoint(name="a", url=first.url, wire="openai", key=lambda: KEY),
        Endpoint(name="b", url=second.url, wire="anthropic", key=lambda: KEY),
    ]
    await first.faults(Fault(kind=FaultKind.OVERLOADED))
    asked = say("hello")
    named = Request(model="vendor/model", messages=asked.messages, settings=asked.settings)
    names = {"openai": "model-1", "anthropic": "model-1"}
    reply = await Endpoints(ends, wire_names=names).ask(named)
    assert reply.text == HELLO
    assert route_of(reply).wire == "anthropic"
    assert json.loads((await first.requests())[-1].body)["model"] == "model-1"


async def test_a_broken_endpoint_rests_and_is_probed_after_a_while(
    first: ModelServer, second: ModelServer, endpoint: Make, say: Say
) -> None:
    clock = ManualClock()
    model = Endpoints(
        [endpoint(first), endpoint(second, "second")], breaker=Breaker(failures_max=2, rest_ms=1_000), clock=clock
    )
    await first.faults(Fault(kind=FaultKind.SERVER_ERROR, times=None))
    for _ in range(2):
        await model.ask(say("hello"))
    before = len(await first.requests())
    reply = await model.ask(say("hello"))
    assert len(await first.requests()) == before
    assert [one.code for one in route_of(reply).failures] == ["resting"]
    clock.advance(1_001)
    await first.faults()
    probed = await model.ask(say("hello"))
    assert route_of(probed).endpoint == "first"
    assert not model.health()["first"].open


async def test_a_limited_endpoint_is_left_alone_for_as_long_as_it_asks(
    first: ModelServer, endpoint: Make, say: Say
) -> None:
    clock = ManualClock()
    model = Endpoints([endpoint(first)], clock=clock)
    await first.faults(Fault(kind=FaultKind.RATE_LIMIT, retry_after_s=9))
    with pytest.raises(ModelUnavailable) as raised:
        await model.ask(say("hello"))
    assert raised.value.retry_after_s == 9
    before = len(await first.requests())
    clock.advance(4_000)
    with pytest.raises(ModelUnavailable) as raised:
        await model.ask(say("hello"))
    assert raised.value.retry_after_s == 5
    assert len(await first.requests()) == before
    clock.advance(5_000)
    assert (await model.ask(say("hello"))).text == HELLO


async def test_a_probe_that_is_given_up_lets_the_next_one_go(first: ModelServer, endpoint: Make, say: Say) -> None:
    clock = ManualClock()
    model = Endpoints([endpoint(first)], breaker=Breaker(failures_max=1, rest_ms=10), clock=clock)
    await first.faults(Fault(kind=FaultKind.SERVER_ERROR), Fault(kind=FaultKind.SLOW, delay_s=9))
    with pytest.raises(ModelUnavailable):
        await model.ask(say("hello"))
    clock.advance(11)
    before = len(await first.requests())
    probe = asyncio.ensure_future(model.ask(say("hello")))
    await first.wait_requests(before + 1)
    with pytest.raises(ModelUnavailable):  # one probe at a time
        await model.ask(say("hello"))
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert (await model.ask(say("hello"))).text == HELLO


async def test_affinity_and_cache_ids_stay_with_their_endpoint(
    first: ModelServer, second: ModelServer, endpoint: Make, say: Say
) -> None:
    sticky: Any = {"affinity_header": "X-Session", "cache_header": "X-Cache"}
    model = Endpoints([endpoint(first, **sticky), endpoint(second, "second", **sticky)])
    reply = await model.ask(say("hello"), session="task-7")
    sent = (await first.requests())[-1].headers
    assert len(sent["x-session"]) == 32
    assert "x-cache" not in sent
    kept = route_of(reply).kept
    assert kept == {"first": {"affinity": "sticky-7", "cache": "cache-9"}}
    await model.ask(say("hello"), session="task-7", kept=kept)
    sent = (await first.requests())[-1].headers
    assert (sent["x-session"], sent["x-cache"]) == ("sticky-7", "cache-9")
    await first.faults(Fault(kind=FaultKind.SERVER_ERROR))
    moved = await model.ask(say("hello"), session="task-7", kept=kept)
    other = (await second.requests())[-1].headers
    assert "x-cache" not in other
    assert other["x-session"] != "sticky-7"
    assert route_of(moved).kept.keys() == {"first", "second"}
    assert (await first.requests())[-1].body == (await second.requests())[-1].body


async def test_a_turn_with_parallel_calls_goes_there_and_back(first: ModelServer, endpoint: Make) -> None:
    """The whole round trip: the server checks what comes back as strictly as a provider."""
    model = Endpoints([endpoint(first)])
    tool: Any = {"name": "search", "parameters": {"type": "object", "properties": {}}}
    messages: list[Any] = [{"role": "user", "parts": [{"type": "text", "text": "a trip"}]}]
    for show in (None, ignore):
        asked = checked_request(model="model-1", messages=messages, tools=[tool])
        reply = await model.ask(asked, show=show)
        assert reply.stop is StopReason.TOOL_CALLS
        assert [(one.number, one.tool, one.arguments) for one in reply.tool_calls] == [
            (1, "search", {"q": "LIS", "n": 2}),
            (2, "now", {}),
        ]
        parts = [
            {"type": "tool_result", "ref": ref_of(call, prefix="s1"), "text": "seat 4"} for call in reply.tool_calls
        ]
        talk = [*messages, reply.message(prefix="s1"), {"role": "tool", "parts": parts}]
        done = await model.ask(checked_request(model="model-1", messages=talk), show=show)
        assert done.text == "Booked seat 4."


async def test_malformed_calls_are_told_and_the_talk_goes_on(first: ModelServer, endpoint: Make, say: Say) -> None:
    model = Endpoints([endpoint(first)])
    asked = say("malformed")
    reply = await model.ask(asked, show=ignore)
    assert [call.arguments for call in reply.tool_calls] == [None, None, None]
    assert {call.provider_id for call in reply.tool_calls} == {"same"}
    parts = [
        {"type": "tool_result", "ref": ref_of(call, prefix="s2"), "failed": True, "text": f"not done: {call.error}"}
        for call in reply.tool_calls
    ]
    talk = [*asked.messages, reply.message(prefix="s2"), {"role": "tool", "parts": parts}]
    assert (await model.ask(checked_request(model="model-1", messages=talk))).text == "I see."


async def test_a_refusal_is_a_reply_and_moves_nobody(
    first: ModelServer, second: ModelServer, endpoint: Make, say: Say
) -> None:
    model = Endpoints([endpoint(first), endpoint(second, "second")])
    for show in (None, ignore):
        reply = await model.ask(say("refuse"), show=show)
        assert (reply.stop, reply.refusal) == (StopReason.REFUSED, "I will not do that.")
        assert route_of(reply).endpoint == "first"


async def test_state_held_elsewhere_is_refused_before_anything_is_sent_and_named_when_allowed(
    first: ModelServer, endpoint: Make, say: Say, wire: str
) -> None:
    asked = say("hello")
    extra = {"openai": {"store": True}, "anthropic": {"container": "c_1"}}
    leaning = Request(model=asked.model, messages=asked.messages, settings={**asked.settings, "extra": extra})
    before = len(await first.requests())
    with pytest.raises(StateHeldElsewhere):
        await Endpoints([endpoint(first)]).ask(leaning)
    assert len(await first.requests()) == before
    allowed = Endpoints([endpoint(first)], allow_state=["stored-reply", "container"])
    reply = await allowed.ask(leaning)
    assert reply.held_state == ("container", "stored-reply")
    sent = json.loads((await first.requests())[-1].body)
    assert ("store" in sent, "container" in sent) == (wire == "openai", wire == "anthropic")


async def test_the_events_of_a_stream_end_with_the_reply(first: ModelServer, endpoint: Make, say: Say) -> None:
    model = Endpoints([endpoint(first)])
    events = [event async for event in stream(model, say("hello"))]
    assert isinstance(events[-1], Whole)
    assert "".join(one.text for one in events if isinstance(one, TextDelta)) == HELLO
    assert events[-1].reply.text == HELLO
    await first.faults(Fault(kind=FaultKind.CUT))
    with pytest.raises(ReplyGarbled):
        _ = [event async for event in stream(model, say("hello"))]
    given_up = stream(model, say("hello"))
    assert isinstance(await anext(given_up), TextDelta)
    await given_up.aclose()


async def test_what_the_shower_raises_is_passed_on(first: ModelServer, endpoint: Make, say: Say) -> None:
    def broken(_: Shown) -> None:
        raise OSError("the screen is gone")

    with pytest.raises(OSError, match="screen"):
        await Endpoints([endpoint(first)]).ask(say("hello"), show=broken)


@pytest.mark.parametrize("kind", ["text/plain", "", "text/event-stream"])
async def test_a_stream_under_another_name_is_still_read(kind: str, say: Say) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
    body = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    async with answering(200, body, kind=kind) as url:
        end = Endpoint(name="odd", url=url, wire="openai")
        assert (await Endpoints([end]).ask(say("hello"), show=ignore)).text == "hi"


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes, *, kind: str = "") -> AsyncGenerator[str]:
    """A far end with one thing to say."""
    head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nContent-Type: %s\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head % (status, len(body), kind.encode()) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    server.close()


# Keys.


def everything_said(error: BaseException) -> str:
    said = ""
    seen: BaseException | None = error
    while seen is not None:
        said += f"{seen!r} {seen} {vars(seen)} "
        seen = seen.__cause__ or seen.__context__
    return said


@pytest.mark.parametrize("bad", ["", "with space", "line\nend", "\x00", "é", "x" * 5000, 7])
async def test_a_key_that_no_header_can_carry_is_not_shown(
    first: ModelServer, endpoint: Make, say: Say, bad: Any
) -> None:
    secret = f"{bad}{KEY}" if bad and isinstance(bad, str) else bad
    with pytest.raises(ModelKeyRefused) as raised:
        await Endpoints([endpoint(first, key=lambda: secret)]).ask(say("hello"))
    assert KEY not in everything_said(raised.value)


async def test_a_key_callable_that_fails_says_only_that(first: ModelServer, endpoint: Make, say: Say) -> None:
    def broken() -> str:
        raise LookupError(f"no room for {KEY}")

    with pytest.raises(ModelKeyRefused, match="LookupError") as raised:
        await Endpoints([endpoint(first, key=broken)]).ask(say("hello"))
    assert KEY not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("status", [401, 500, 200])
async def test_a_far_end_that_repeats_the_key_does_not_get_it_into_an_error(status: int, say: Say, wire: str) -> None:
    body = json.dumps({"error": {"type": "t", "code": 500, "message": f"bad key {KEY}!"}}).encode()

    async with answering(status, body) as url:
        end = Endpoint(name="echo", url=url, wire=wire, key=functools.partial(str, KEY))
        with pytest.raises((ModelKeyRefused, ModelUnavailable)) as raised:
            await Endpoints([end]).ask(say("hello"))
    assert "[key]" in str(raised.value)
    assert KEY not in everything_said(raised.value)
    assert KEY not in repr(end)


async def test_the_key_is_in_its_header_and_nowhere_else(first: ModelServer, endpoint: Make, say: Say) -> None:
    reply = await Endpoints([endpoint(first)]).ask(say("hello"))
    seen = (await first.requests())[-1]
    assert seen.key_sha256 != ""
    assert KEY.encode() not in seen.body
    assert KEY not in str(seen.headers)
    assert KEY not in json.dumps(reply.to_json())


async def test_a_rotated_key_is_used_at_once(first: ModelServer, endpoint: Make, say: Say) -> None:
    keys = iter(["sk-old", KEY])
    model = Endpoints([endpoint(first, key=lambda: next(keys))], breaker=Breaker(rest_ms=0, probe_ms=0))
    with pytest.raises(ModelKeyRefused):
        await model.ask(say("hello"))
    assert (await model.ask(say("hello"))).text == HELLO


def test_a_model_has_endpoints_each_with_a_name_of_its_own() -> None:
    one = Endpoint(name="a", url="http://127.0.0.1:1/v1", wire="openai")
    for ends in ([], [one, one]):
        with pytest.raises(BadSettings):
            Endpoints(ends)
