"""Two scripted model servers for all tests of this folder, and short ways to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.runtime.http.exchange import Timeouts
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.request import Request, checked_request
from holdfast.testing.model_server.process import ModelServer, start_blocking
from holdfast.testing.model_server.script import Answer, Script, ScriptedCall

KEY = "sk-canary-5f1c2a9e"
HELLO = "Hello there, dear friend: naïve café, 你好."
SCRIPT = Script(
    keys=(KEY,),
    models=("model-1",),
    headers={"X-Session": "sticky-7", "X-Cache": "cache-9"},
    answers=(
        Answer(last="hello", text=HELLO),
        Answer(
            turn=1,
            last="trip",
            text="I look.",
            tool_calls=(ScriptedCall(tool="search", arguments={"q": "LIS", "n": 2}), ScriptedCall(tool="now")),
        ),
        Answer(turn=2, last="seat 4", text="Booked seat 4."),
        Answer(last="think", thinking="Let me see.", text="Yes."),
        Answer(last="refuse", refusal="I will not do that."),
        Answer(
            last="malformed",
            tool_calls=(
                ScriptedCall(tool="pay", arguments='{"cents": 1, "cents": 2}', id="same"),
                ScriptedCall(tool="pay", arguments='{"cents": ', id="same"),
                ScriptedCall(tool="odd name!", arguments="[1]", id="same"),
            ),
        ),
        Answer(turn=2, last="not done", text="I see."),
    ),
)


@pytest.fixture(scope="session")
def _servers() -> Iterator[tuple[ModelServer, ModelServer]]:
    with start_blocking(SCRIPT) as one, start_blocking(SCRIPT) as other:
        yield one, other


@pytest.fixture
async def first(_servers: tuple[ModelServer, ModelServer]) -> ModelServer:
    await _servers[0].faults()
    return _servers[0]


@pytest.fixture
async def second(_servers: tuple[ModelServer, ModelServer]) -> ModelServer:
    await _servers[1].faults()
    return _servers[1]


Make = Callable[..., Endpoint]


@pytest.fixture(params=["openai", "anthropic"])
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def endpoint(wire: str) -> Make:
    def make(server: ModelServer, name: str = "first", **more: object) -> Endpoint:
        given: dict[str, object] = {
            "key": lambda: KEY,
            "timeouts": Timeouts(connect_s=5, between_bytes_s=20, total_s=40),
            **more,
        }
        return Endpoint(name=name, url=server.url, wire=wire, **given)  # pyright: ignore[reportArgumentType] - a test's own words

    return make


@pytest.fixture
def say() -> Callable[[str], Request]:
    def make(text: str) -> Request:
        return checked_request(
            model="model-1",
            messages=[
                {"role": "system", "parts": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "parts": [{"type": "text", "text": text}]},
            ],
            settings={"max_tokens": 100, "temperature": 0.5},
        )

    return make
