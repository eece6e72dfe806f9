"""A scripted model server for all tests of this folder, and short ways to ask it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.testing.lab import Lab
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import ModelServer, start_blocking
from holdfast.testing.model_server.script import Answer, Script, ScriptedCall

SCRIPT = Script(
    answers=(
        Answer(last="hello", text="Hello there, dear friend."),
        Answer(last="more", text="More of it."),
        Answer(
            last="trip",
            tool_calls=(
                ScriptedCall(tool="search", arguments={"query": "LIS"}, id="same"),
                ScriptedCall(tool="now", id="same"),
            ),
        ),
        Answer(last="noon", text="It is noon in Lisbon."),
        Answer(last="secret", text="The word is open-sesame-7."),
        Answer(last="held", text="At last."),
    )
)

MakeModel = Callable[..., holdfast.Model]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "agent")


@pytest.fixture(scope="session")
def _server() -> Iterator[ModelServer]:
    with start_blocking(SCRIPT) as server:
        yield server


@pytest.fixture
async def server(_server: ModelServer) -> ModelServer:
    await _server.faults()
    return _server


@pytest.fixture
async def seen(server: ModelServer) -> Callable[[], Awaitable[tuple[Seen, ...]]]:
    """The requests of this test alone."""
    before = len(await server.requests())

    async def get() -> tuple[Seen, ...]:
        return (await server.requests())[before:]

    return get


@pytest.fixture
def model(server: ModelServer) -> MakeModel:
    def make(name: str = "model-1", **more: Any) -> holdfast.Model:  # Any: a test's own words
        endpoint = holdfast.Endpoint(name="first", url=server.url, wire="openai", key=more.pop("key", None))
        return holdfast.Model(name, endpoint, **more)

    return make
