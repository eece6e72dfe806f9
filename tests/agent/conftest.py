"""A scripted model server for all tests of this folder, tools, and an agent made of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.testing.lab import Lab
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer, start_blocking
from holdfast.testing.model_server.script import Answer, Script, ScriptedCall, ScriptedUsage

USAGE = ScriptedUsage(input=100, output=10)


def calls(last: str, *made: ScriptedCall, **more: Any) -> Answer:
    return Answer(last=last, tool_calls=made, usage=USAGE, **more)


def call(tool: str, arguments: Any = None, **more: Any) -> ScriptedCall:
    return ScriptedCall(tool=tool, arguments={} if arguments is None else arguments, **more)


SCRIPT = Script(
    answers=(
        # A request says which of these is meant; a result or the runtime's words lead on.
        calls("book a trip", call("search", {"query": "LIS"}), call("weather", {"place": "LIS"})),
        calls("for ever", call("weather", {"place": "again for ever"})),
        calls("flight 7", call("charge", {"card": "tok_1", "cents": 4200})),
        calls("paid 4200", text="Booked: flight 7."),
        calls(
            "all wrong",
            call("charge", '{"card": "a", "card": "b"}', id="x"),
            call("charge", "[1]", id="x"),
            call("charge", '{"cents": ', id="x"),
            call("fly", {"far": True}, id="x"),
            call("charge", {"card": 7}, id="x"),
        ),
        calls("do not fit", text="I see what was wrong."),
        calls("large", call("charge", '{"card": "' + "x" * (10 << 20) + '"}')),
        calls("the limit is", text="Too large, I see."),
        calls("against the rules", refusal="I will not do that."),
        calls("say nothing"),
        calls("say it all", text="This is only half of", stop="length"),
        calls("cut off", text="All of it."),
        calls("make a plan", call("plan", {"add": ["search", "pay"]})),
        calls(
            "2. [pending] pay", call("plan", {"set": [{"number": 1, "state": "done"}, {"number": 9, "state": "done"}]})
        ),
        calls(
            "no item 9",
            call("plan", {"set": [{"number": 1, "state": "done", "result": "f7"}, {"number": 2, "state": "dropped"}]}),
        ),
        calls("[dropped] pay", text="Planned."),
        calls("mail ada", call("send_mail", {"to": "ada"})),
        calls("looked up and found", turn=2, text="The mail had gone out once."),
        calls("mail 1 sent", text="The mail is out."),
        calls("pay alone", call("charge", {"card": "tok_1", "cents": 1})),
        calls("under the same key", turn=2, text="Paid once, I am told."),
        calls("paid 1", text="Paid 1."),
        calls("needs a yes", call("transfer", {"cents": 5})),
        calls("beside a slow one", call("slow", {}), call("transfer", {"cents": 5})),
        calls("moved 5", text="Moved."),
        calls("a person refused", text="Then not."),
        calls("not allowed", text="The gate says no."),
        calls("fails", call("broken", {})),
        calls("RuntimeError", text="It is broken."),
        calls("will be refused", call("decline", {})),
        calls("refused: ", text="They said no."),
        calls("hello", text="Hello!"),
        calls("who am I", text="You are Ada."),
        calls("once more please", text="Once more."),
        calls("number", text="Noted."),
        calls("a person says that it was done", text="Paid 1."),
        calls("a person decided to run it again", text="Run again, I am told."),
        calls("webhook says that it was done", text="Paid 1."),
        calls("a person decided that it is not made", text="Then not."),
        # A trip that was interrupted: the runtime speaks last.
        calls("While you were away", call("charge", {"card": "tok_1", "cents": 4200}), turn=2),
        calls("While you were away", text="Booked: flight 7.", turn=3),
    )
)

SeenNow = Callable[[], Awaitable[tuple[Seen, ...]]]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "agent")


@pytest.fixture(scope="session")
def _server() -> Iterator[ModelServer]:
    with start_blocking(SCRIPT) as server:
        yield server


@pytest.fixture
def blocking_server(_server: ModelServer) -> ModelServer:
    return _server


@pytest.fixture
async def server(_server: ModelServer) -> ModelServer:
    await _server.faults()
    return _server


@pytest.fixture
async def seen(server: ModelServer) -> SeenNow:
    """The requests of this test alone."""
    before = len(await server.requests())

    async def get() -> tuple[Seen, ...]:
        return (await server.requests())[before:]

    return get


@pytest.fixture
def agent(server: ModelServer) -> Callable[..., holdfast.Agent]:
    def make(*tools: holdfast.Tool[..., Any], **more: Any) -> holdfast.Agent:
        endpoint = holdfast.Endpoint(
            name=more.pop("endpoint", "first"), url=server.url, wire=more.pop("wire", "openai")
        )
        model = holdfast.Model(
            more.pop("model_name", "model-1"),
            endpoint,
            price=holdfast.Price(input=1, output=10),
            settings=more.pop("model_settings", {"max_tokens": 100}),
        )
        given: dict[str, Any] = {"name": "ada", "instructions": "You are Ada.", "plan": False}
        return holdfast.Agent(model=model, tools=tools, **given | more)

    return make
