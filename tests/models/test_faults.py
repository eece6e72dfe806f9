"""Every fault of the scripted server, over real sockets, in both protocols, plain and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.errors import (
    ContextTooLong,
    ModelKeyRefused,
    ModelNotFound,
    ModelOverloaded,
    ModelQuotaSpent,
    ModelRateLimited,
    ModelRejected,
    ModelUnavailable,
    ReplyGarbled,
)
from holdfast.runtime.http.exchange import Timeouts
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.endpoints import Endpoints
from holdfast.runtime.models.reply import Reply, Shown
from holdfast.runtime.models.request import Request
from holdfast.runtime.models.troubles import ModelError
from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind

Make = Callable[..., Endpoint]
Say = Callable[[str], Request]
EXPECTED: dict[FaultKind, tuple[type[ModelError], str]] = {
    FaultKind.RATE_LIMIT: (ModelRateLimited, ""),
    FaultKind.SERVER_ERROR: (ModelUnavailable, ""),
    FaultKind.OVERLOADED: (ModelOverloaded, ""),
    FaultKind.BAD_KEY: (ModelKeyRefused, ""),
    FaultKind.UNKNOWN_MODEL: (ModelNotFound, ""),
    FaultKind.CONTEXT_TOO_LONG: (ContextTooLong, ""),
    FaultKind.BAD_REQUEST: (ModelRejected, ""),
    FaultKind.QUOTA: (ModelQuotaSpent, ""),
    FaultKind.HANGUP: (ModelUnavailable, ""),
    FaultKind.NOT_HTTP: (ModelUnavailable, ""),
    FaultKind.ERROR_PAGE: (ModelUnavailable, ""),
    FaultKind.CUT: (ReplyGarbled, "cut"),
    FaultKind.GARBAGE: (ReplyGarbled, "garbage"),
    FaultKind.INVALID_JSON: (ReplyGarbled, "garbage"),
    FaultKind.EMPTY: (ReplyGarbled, "empty"),
}


def ignore(_: Shown) -> None:
    pass


@pytest.fixture(params=["plain", "streamed"])
def show(request: pytest.FixtureRequest) -> Callable[[Shown], None] | None:
    return ignore if request.param == "streamed" else None


@pytest.mark.parametrize("kind", EXPECTED, ids=str)
async def test_each_fault_is_its_own_error(
    first: ModelServer, endpoint: Make, say: Say, show: Callable[[Shown], None] | None, kind: FaultKind
) -> None:
    wanted, reason = EXPECTED[kind]
    await first.faults(Fault(kind=kind, retry_after_s=7))
    model = Endpoints([endpoint(first)])
    with pytest.raises(wanted) as raised:
        await model.ask(say("hello"), show=show)
    error = raised.value
    assert isinstance(error, wanted)
    assert type(error) is wanted
    assert error.failures[0]["code"] == wanted.code
    if isinstance(error, ReplyGarbled):
        assert error.reason == reason
    if isinstance(error, ModelRateLimited | ModelOverloaded):
        assert error.retry_after_s == 7
    seen = (await first.requests())[-1]
    assert seen.answered == kind


def test_no_fault_is_left_out() -> None:
    """BLANK, STREAM_ERROR, SLOW and HOLD have tests of their own below."""
    own = {FaultKind.BLANK, FaultKind.STREAM_ERROR, FaultKind.SLOW, FaultKind.HOLD}
    assert set(FaultKind) == EXPECTED.keys() | own


async def test_an_error_in_the_middle_of_a_stream(first: ModelServer, endpoint: Make, say: Say, wire: str) -> None:
    await first.faults(Fault(kind=FaultKind.STREAM_ERROR, after_chunks=4))
    with pytest.raises(ModelUnavailable) as raised:
        await Endpoints([endpoint(first)]).ask(say("hello"), show=ignore)
    assert isinstance(raised.value, ModelOverloaded) is (wire == "anthropic")
    assert raised.value.failures[0]["text_chars"] != 0


async def test_a_200_with_nothing_in_it(
    first: ModelServer, endpoint: Make, say: Say, show: Callable[[Shown], None] | None
) -> None:
    await first.faults(Fault(kind=FaultKind.BLANK))
    with pytest.raises(ReplyGarbled):
        await Endpoints([endpoint(first)]).ask(say("hello"), show=show)


async def test_slow_is_waited_for_within_the_limits_and_given_up_beyond(
    first: ModelServer, endpoint: Make, say: Say
) -> None:
    slow = Fault(kind=FaultKind.SLOW, gap_s=0.03)
    await first.faults(slow)
    reply = await Endpoints([endpoint(first)]).ask(say("hello"), show=ignore)
    assert reply.text.startswith("Hello")
    await first.faults(slow)
    short = Timeouts(total_s=0.1)
    with pytest.raises((ReplyGarbled, ModelUnavailable), match=r"within 0\.1 s"):
        await Endpoints([endpoint(first, timeouts=short)]).ask(say("hello"), show=ignore)
    await first.faults(Fault(kind=FaultKind.SLOW, delay_s=5))
    quiet = Timeouts(between_bytes_s=0.1)
    with pytest.raises(ModelUnavailable, match=r"no byte for 0\.1 s"):
        await Endpoints([endpoint(first, timeouts=quiet)]).ask(say("hello"))
    await first.faults(Fault(kind=FaultKind.SLOW, delay_s=5))
    with pytest.raises(ModelUnavailable, match="within"):
        await Endpoints([endpoint(first)]).ask(say("hello"), time_s=0.1)


async def test_a_held_request_goes_on_when_it_is_released(first: ModelServer, endpoint: Make, say: Say) -> None:
    await first.faults(Fault(kind=FaultKind.HOLD))
    before = len(await first.requests())
    asking = asyncio.ensure_future(Endpoints([endpoint(first)]).ask(say("hello")))
    await first.wait_requests(before + 1)
    assert not asking.done()
    await first.release()
    assert isinstance(await asking, Reply)


async def test_the_server_is_as_strict_as_the_providers(first: ModelServer, endpoint: Make, say: Say) -> None:
    for ask, wanted in (
        (endpoint(first, key=lambda: "sk-wrong"), ModelKeyRefused),
        (endpoint(first, key=None), ModelKeyRefused),
    ):
        with pytest.raises(wanted):
            await Endpoints([ask]).ask(say("hello"))
    other = say("hello")
    other = Request(model="model-2", messages=other.messages, settings=other.settings)
    with pytest.raises(ModelNotFound):
        await Endpoints([endpoint(first)]).ask(other)
    open_call = {"type": "tool_call", "ref": "a", "tool": "t", "arguments": "{}"}
    wrong = Request(  # not through the check: the provider must notice it itself
        model="model-1",
        settings={"max_tokens": 5},
        messages=[
            *say("hello").messages,
            {"role": "assistant", "parts": [open_call]},
            {"role": "user", "parts": [{"type": "text", "text": "hello"}]},
        ],
    )
    with pytest.raises(ModelRejected, match=r"tool_call|tool_use"):
        await Endpoints([endpoint(first)]).ask(wrong)
    with pytest.raises(ModelRejected, match="no answer"):
        await Endpoints([endpoint(first)]).ask(say("something else"))
    elsewhere = Endpoint(name="x", url=first.root, wire=endpoint(first).wire)
    with pytest.raises(ModelNotFound):
        await Endpoints([elsewhere]).ask(say("hello"))
