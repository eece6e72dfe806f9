"""`/healthz` and `/metrics` on 127.0.0.1: a very small server.

It answers GET and nothing else, closes after each answer, reads at most a few kilobytes for at
most a few seconds. The Host header must name this machine (421 otherwise), so that a web page in a
browser cannot read it through a name that points to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import NamedTuple, Protocol

from holdfast.core.secret_handles import safe
from holdfast.errors import BadSettings

ADDRESS = "127.0.0.1"
REQUEST_BYTES_MAX = 8_192
TIMEOUT_S = 5.0
CONNECTIONS_MAX = 32
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_JSON = "application/json"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Health(NamedTuple):
    """Whether the worker can work, and why not."""

    reasons: list[str]
    facts: dict[str, object]


class Source(Protocol):
    def health(self) -> Health: ...
    async def metrics(self) -> str: ...


class _Answer(NamedTuple):
    status: HTTPStatus
    kind: str
    body: str


async def serve_health(port: int, source: Source, stack: AsyncExitStack) -> int:
    """Listen until the stack unwinds; returns the port. Raises BadSettings if it is taken."""
    server = _Server(source)
    try:
        listening = await asyncio.start_server(
            server.answer, ADDRESS, port, limit=REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
        )
    except (OSError, OverflowError) as error:
        raise BadSettings(
            f"--health-port {port}: cannot listen on {ADDRESS}: {error}",
            hint="choose another port, or 0 for a free one",
        ) from error
    stack.callback(listening.close)
    return int(listening.sockets[0].getsockname()[1])


class _Server:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(TIMEOUT_S):
                    found = await self._judge(reader)
                    writer.write(_encoded(found))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client left, or never finished its request
        finally:
            self._open -= 1
            writer.close()

    async def _judge(self, reader: asyncio.StreamReader) -> _Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        request, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _plain(HTTPStatus.BAD_REQUEST)
        hosts = [
            value.strip().lower()
            for name, colon, value in (line.partition(":") for line in lines)
            if colon and name.lower() == "host"
        ]
        if len(hosts) != 1:
            return _plain(HTTPStatus.BAD_REQUEST)
        if not _is_ours(hosts[0]):
            return _plain(HTTPStatus.MISDIRECTED_REQUEST)
        if words[0] != "GET":
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        return await self._page(words[1].partition("?")[0])

    async def _page(self, path: str) -> _Answer:
        match path:
            case "/healthz":
                health = self._source.health()
                status = HTTPStatus.SERVICE_UNAVAILABLE if health.reasons else HTTPStatus.OK
                fields = {"ok": not health.reasons, "reasons": health.reasons, **health.facts}
                return _Answer(status, _JSON, json.dumps(fields) + "\n")
            case "/metrics":
                return _Answer(HTTPStatus.OK, _METRICS, await self._source.metrics())
            case _:
                return _plain(HTTPStatus.NOT_FOUND)


def _is_ours(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit():
        return name in _NAMES
    return host in _NAMES


def _plain(status: HTTPStatus) -> _Answer:
    return _Answer(status, "text/plain; charset=utf-8", f"{status.phrase}\n")


def _encoded(answer: _Answer) -> bytes:
    body = safe(answer.body).encode()
    allow = "Allow: GET\r\n" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{allow}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
