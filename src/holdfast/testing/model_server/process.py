"""Start a scripted model server as a child process, and never leave it behind.

async with start(Script(answers=(Answer(text="hello"),))) as server:
    endpoint = Endpoint(name="first", url=server.url, wire="openai")
    ...
    requests = await server.requests()     # the bytes of every request, as they came
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.core.effect import Read
from holdfast.runtime.http.client import HttpClient
from holdfast.testing.model_server.books import Seen
from holdfast.testing.model_server.script import Fault, Script

START_S_MAX = 30.0  # generous: a loaded machine, not a normal start


class ModelServerFailed(Exception):
    """The server did not start, or its side door did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    port: int
    pid: int

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL, as an `Endpoint` takes it."""
        return f"{self.root}/v1"

    async def requests(self) -> tuple[Seen, ...]:
        """Every request so far, with its bytes."""
        answer = await _door().get(f"{self.root}/_requests")
        return decode_json(answer.body, dict[str, tuple[Seen, ...]])["requests"]

    async def wait_requests(self, count: int) -> tuple[Seen, ...]:
        """The same, once there are that many. Raises NotSent where they do not come in 30 s."""
        answer = await _door().get(f"{self.root}/_requests?wait={count}")
        return decode_json(answer.body, dict[str, tuple[Seen, ...]])["requests"]

    async def faults(self, *faults: Fault) -> None:
        """Put these in force instead of the ones before; none clears them."""
        body = msgspec.json.encode(faults)
        await _door().post(f"{self.root}/_faults", body=body)

    async def release(self) -> None:
        """Let every request that is held go on."""
        await _door().post(f"{self.root}/_release")


@contextlib.asynccontextmanager
async def start(script: Script, *, log: Path | None = None) -> AsyncGenerator[ModelServer]:
    """Start the server on a free loopback port and end it on leaving."""
    with _child(script, log) as child:
        async with asyncio.timeout(START_S_MAX):
            line = await asyncio.to_thread(_read_line, child)
        yield _ready(line)


@contextlib.contextmanager
def start_blocking(script: Script, *, log: Path | None = None) -> Generator[ModelServer]:
    """`start` for code without an event loop."""
    with _child(script, log) as child:
        yield _ready(_read_line(child))


@contextlib.contextmanager
def _child(script: Script, log: Path | None) -> Generator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.json"
        file.write_bytes(msgspec.json.encode(script))
        child = _spawn(file, log)
        try:
            yield child
        finally:
            _end(child)


def _ready(line: bytes) -> ModelServer:
    if not line:
        raise ModelServerFailed("it ended before it was ready; see its error output")
    said: dict[str, int] = json.loads(line)
    return ModelServer(port=said["port"], pid=said["pid"])


def _door() -> HttpClient:
    return HttpClient(effect=Read(), effect_key="", task_id="-", ordinal="-", time_left_s=lambda: 30.0)


def _spawn(script: Path, log: Path | None) -> subprocess.Popen[bytes]:
    words = [str(script), "--parent", str(os.getpid())]
    if log is not None:
        words += ["--log", str(log)]
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.testing.model_server", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _read_line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.readline()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Every request is in its log by now, so there is nothing to end gently."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
