"""Start a far end as a child process, talk to its side door, and never leave it behind.

The child lives as long as its input pipe and its parent do: leaving the context kills it, and
so does the death of this process, however it dies.

    async with start("payment", log=folder / "charges.jsonl") as payment:
        await payment.faults(Fault(kind=FaultKind.HOLD))
        ...                                  # a worker posts to f"{payment.url}/charges"
        await payment.wait_inside()          # the charge is done, its reply is held back
        page = await payment.ledger()        # what the far end itself counted
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import h11

from holdfast.core.decoding import decode_json
from holdfast.downstream.faults import Fault
from holdfast.downstream.http_server import LOOPBACK
from holdfast.downstream.keys import Fingerprint
from holdfast.downstream.ledger import Page, Seen
from holdfast.errors import HoldfastError

START_S_MAX = 30.0  # generous: a loaded machine, not a normal start (about 0.2 s)
CONTROL_S_MAX = 30.0
Kind = Literal["read", "keyed", "queryable", "fenced", "idempotent", "unrepeatable", "recording", "payment", "mail"]


class FarEndFailed(HoldfastError):
    """A small test service of the demo or a test did not start or did not answer.

    They listen on free ports of 127.0.0.1; check whether something forbids that.
    """

    code = "far-end-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FarEnd:
    """A running far end, seen from the test or the demo."""

    kind: Kind
    port: int
    pid: int
    host: str = LOOPBACK

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def ledger(self) -> Page:
        """Everything that arrived and everything that took place."""
        return decode_json(await self._control("GET", "/_ledger"), Page)

    async def faults(self, *faults: Fault) -> None:
        """Put these faults in force instead of the ones before; none clears them."""
        await self._control("POST", "/_faults", {"faults": [f.to_json() for f in faults]})

    async def wait_inside(self, count: int = 1, *, timeout_s: float = 30.0) -> tuple[Seen, ...]:
        """Return when `count` requests are inside, held or delayed. Raises TimeoutError: fewer came in that time."""
        raw = await self._wait(f"n={count}", timeout_s)
        inside = decode_json(raw, dict[str, tuple[Seen, ...]])["inside"]
        if len(inside) < count:
            raise TimeoutError(f"only {len(inside)} of {count} requests arrived within {timeout_s:g} s")
        return inside

    async def wait_effects(self, count: int, *, timeout_s: float = 30.0) -> None:
        """Return when at least `count` effects have taken place. Raises TimeoutError: fewer did in that time."""
        found = decode_json(await self._wait(f"effects={count}", timeout_s), dict[str, int])["effects"]
        if found < count:
            raise TimeoutError(f"only {found} of {count} effects happened within {timeout_s:g} s")

    async def wait_idle(self, *, timeout_s: float = 30.0) -> None:
        """Return when no request is inside and none is still to arrive late. Raises TimeoutError: some still are."""
        if not decode_json(await self._wait("idle=1", timeout_s), dict[str, bool])["idle"]:
            raise TimeoutError(f"some requests did not end within {timeout_s:g} s")

    async def _wait(self, what: str, timeout_s: float) -> bytes:
        path = f"/_waiting?{what}&timeout_s={timeout_s}"
        return await self._control("GET", path, timeout_s=timeout_s + CONTROL_S_MAX)

    async def release(self) -> None:
        """Let every request that is held go on."""
        await self._control("POST", "/_release", {})

    async def reset(self) -> None:
        """Begin new books, with no keys, resources or faults."""
        await self._control("POST", "/_reset", {})

    async def advance_clock(self, seconds: float) -> None:
        """Move the far end's clock forward, to let key windows end."""
        await self._control("POST", "/_clock", {"advance_s": seconds})

    async def _control(self, method: str, path: str, body: object = None, *, timeout_s: float = CONTROL_S_MAX) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(timeout_s):
                status, answer = await _exchange(self.host, self.port, method, path, content)
        except (OSError, h11.RemoteProtocolError) as error:
            raise FarEndFailed(f"{self.kind} far end: {method} {path}: {error}") from error
        if status != 200:
            raise FarEndFailed(f"{self.kind} far end: {method} {path} answered {status}: {answer!r}")
        return answer


class BlockingFarEnd:
    """The same for code without an event loop."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        self.url, self.port, self.pid = far_end.url, far_end.port, far_end.pid

    def ledger(self) -> Page:
        return asyncio.run(self.far_end.ledger())

    def faults(self, *faults: Fault) -> None:
        asyncio.run(self.far_end.faults(*faults))

    def wait_inside(self, count: int = 1, *, timeout_s: float = 30.0) -> tuple[Seen, ...]:
        return asyncio.run(self.far_end.wait_inside(count, timeout_s=timeout_s))

    def wait_effects(self, count: int, *, timeout_s: float = 30.0) -> None:
        asyncio.run(self.far_end.wait_effects(count, timeout_s=timeout_s))

    def wait_idle(self, *, timeout_s: float = 30.0) -> None:
        asyncio.run(self.far_end.wait_idle(timeout_s=timeout_s))

    def release(self) -> None:
        asyncio.run(self.far_end.release())

    def reset(self) -> None:
        asyncio.run(self.far_end.reset())

    def advance_clock(self, seconds: float) -> None:
        asyncio.run(self.far_end.advance_clock(seconds))


class Choices(TypedDict, total=False):
    """How a far end behaves; what is left out is the default in brackets."""

    host: str  # the address to listen on (127.0.0.1)
    log: Path  # append every effect to this file (none)
    window_s: float  # how long a key is known (a day)
    fingerprint: Fingerprint  # a repeat with another body is 422, or not noticed ("checked")
    refusals_stored: bool  # a refusal is kept under its key (True)
    lookup: bool  # clients may ask by key or reference (True)
    key_header: str  # ("Idempotency-Key")
    faults: Iterable[Fault]  # in force from the first request (none)


@contextlib.asynccontextmanager
async def start(kind: Kind, **choices: Unpack[Choices]) -> AsyncGenerator[FarEnd]:
    """Start a far end on a free loopback port and end it on leaving."""
    child = _spawn(kind, choices)
    try:
        async with asyncio.timeout(START_S_MAX):
            line = await asyncio.to_thread(_read_line, child)
        yield _ready(kind, line, choices)
    finally:
        _end(child)


@contextlib.contextmanager
def start_blocking(kind: Kind, **choices: Unpack[Choices]) -> Generator[BlockingFarEnd]:
    """`start` for code without an event loop."""
    child = _spawn(kind, choices)
    try:
        yield BlockingFarEnd(_ready(kind, _read_line(child), choices))
    finally:
        _end(child)


def _spawn(kind: Kind, choices: Choices) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "holdfast.downstream", "--class", kind, "--parent", str(os.getpid())]
    for name in ("host", "log", "window_s", "fingerprint", "key_header"):
        if (value := choices.get(name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    if not choices.get("refusals_stored", True):
        arguments += ["--refusals", "not-stored"]
    if not choices.get("lookup", True):
        arguments += ["--lookup", "off"]
    for fault in choices.get("faults", ()):
        arguments += ["--fault", json.dumps(fault.to_json())]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _read_line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.readline()


def _ready(kind: Kind, line: bytes, choices: Choices) -> FarEnd:
    if not line:
        raise FarEndFailed(f"the {kind} far end ended before it was ready; see its error output")
    said: dict[str, int] = json.loads(line)
    return FarEnd(kind=kind, port=said["port"], pid=said["pid"], host=choices.get("host", LOOPBACK))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Every effect is in its log by now, so there is nothing to end gently."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


async def _exchange(host: str, port: int, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    parser = h11.Connection(h11.CLIENT)
    head = h11.Request(
        method=method,
        target=path,
        headers=[("Host", f"{host}:{port}"), ("Content-Length", str(len(body))), ("Connection", "close")],
    )
    parts = (parser.send(head), parser.send(h11.Data(data=body)), parser.send(h11.EndOfMessage()))
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"".join(part or b"" for part in parts))
        status, content = 0, bytearray()
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                parser.receive_data(await reader.read(64 * 1024))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                content += event.data
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the far end closed the connection without an answer")
        return status, bytes(content)
    finally:
        writer.transport.abort()
