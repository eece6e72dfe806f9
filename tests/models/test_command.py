"""The scripted server as a command, and its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from holdfast.runtime.http import exchange as http_stream
from holdfast.runtime.http.message import REQUEST_BODY_BYTES_MAX
from holdfast.runtime.models import endpoint, request, troubles, wire
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.endpoints import Endpoints
from holdfast.runtime.models.health import Breaker
from holdfast.runtime.models.held_state import SURFACES
from holdfast.runtime.models.reply import TOOL_CALLS_MAX, Reply, Route, StopReason, Usage
from holdfast.runtime.models.request import Request
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.process import start
from holdfast.testing.model_server.script import Answer, Fault, FaultKind, Script

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "models.md").read_text()
WORDS = set(re.findall(r"[`\[\"]([\w.-]+)", PAGE))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.testing.model_server", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "script", ["{", '{"answer": []}', '{"answers": [{"txt": "x"}]}', '{"faults": [{"kind": "bad luck"}]}']
)
def test_a_script_with_a_mistake_is_refused(tmp_path: Path, script: str) -> None:
    file = tmp_path / "script.json"
    file.write_text(script)
    done = run(str(file))
    assert done.returncode == 2
    assert "script.json: " in done.stderr


async def test_every_request_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    asked = Request(model="m", messages=[{"role": "user", "parts": [{"type": "text", "text": "x"}]}], settings={})
    async with start(Script(answers=(Answer(text="y"),)), log=log) as server:
        for wire in ("openai", "anthropic"):
            end = Endpoint(name="a", url=server.url, wire=wire, key=lambda: "sk-canary")
            await Endpoints([end]).ask(asked)
        kept = await server.requests()
    lines = [msgspec.json.decode(line, type=Seen) for line in log.read_bytes().splitlines()]
    assert tuple(lines) == kept
    assert [one.answered for one in lines] == ["reply", "reply"]
    assert json.loads(lines[0].body)["messages"][0]["content"] == "x"
    assert b"sk-canary" not in log.read_bytes()


# The page says what the code does.


def names(kind: type[msgspec.Struct]) -> set[str]:
    return {one.name for one in msgspec.structs.fields(kind)}


def test_every_word_is_on_the_page() -> None:
    wanted = {str(one) for one in (*FaultKind, *StopReason)} | SURFACES.keys()
    wanted |= {word for words in SURFACES.values() for word in words}
    wanted |= names(Script) | names(Answer) | names(Fault)
    wanted |= (names(Reply) - {"format"}) | names(Usage) | names(Route)
    wanted |= request._SETTINGS | request._FIELDS.keys()
    wanted |= {kind.code for kind in troubles._BY_WORD.values()}
    assert wanted - WORDS == set()
    in_python = set(re.findall(r"\w+", (REFERENCE / "api.md").read_text()))
    assert {one.name for one in fields(Endpoint)} - in_python == set()


@pytest.mark.parametrize(
    ("row", "figures"),
    [
        ("request body", [f"{REQUEST_BODY_BYTES_MAX >> 20} MiB"]),
        ("messages / parts", [f"{request.MESSAGES_MAX:,}", f"{request.PARTS_MAX:,}", f"{request.TOOLS_MAX}"]),
        (
            "reply: plain body",
            [f"{endpoint.REPLY_BYTES_MAX >> 20} MiB", f"{endpoint.STREAM_BYTES_MAX >> 20} MiB", f"{wire.EVENTS_MAX:,}"],
        ),
        ("tool calls of a reply", [str(TOOL_CALLS_MAX)]),
        ("arguments of one call", [f"{request.ARGUMENTS_BYTES_MAX >> 20} MiB"]),
        ("body of an error", [f"{endpoint.ERROR_BYTES_MAX >> 10} KiB"]),
        ("unread bytes", [f"{http_stream.UNREAD_BYTES_MAX >> 10} KiB"]),
        (
            "`Timeouts`",
            [
                f"{one:g} s"
                for one in (
                    http_stream.Timeouts().connect_s,
                    http_stream.Timeouts().between_bytes_s,
                    http_stream.Timeouts().total_s,
                )
            ],
        ),
        ("open: not asked", [f"{Breaker().rest_ms // 1000} s", f"{Breaker().rest_ms_max // 1000} s"]),
    ],
)
def test_every_limit_is_on_the_page(row: str, figures: list[str]) -> None:
    line = next(one for one in PAGE.splitlines() if one.startswith(f"| {row}"))
    for figure in figures:
        assert re.search(rf"(?<!\d)(?<!\d,){re.escape(figure)}(?!\d|,\d)", line), (figure, line)
