"""Far ends on a loopback socket: the door where visitors can be held inside, and HTTP/1.1 behind it.

A request for an effect meets at most one trouble. The work of a request is one synchronous call, so no other request
sees half of it; it may be made to wait before or after that.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from holdfast.downstream.http_server import Connection, Cut, Request

BACKLOG = 256
INSIDE_S_MAX = 30


class Door(ABC):
    """Base of the far ends. Use it in an `async with` block: its port is known inside."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.inside = 0  # visitors who are held
        self._from_the_start = tls
        self._changed = asyncio.Condition()
        self._released = asyncio.Event()
        self._server: asyncio.Server | None = None

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One visit; the connection is closed afterwards."""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(
            self._visit, "127.0.0.1", port, backlog=BACKLOG, ssl=self._from_the_start
        )
        name: tuple[str, int] = self._server.sockets[0].getsockname()
        self.port = name[1]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if self._server is not None:
            self._server.close()

    async def wait_inside(self, count: int = 1) -> None:
        """Until that many visitors are held."""
        async with asyncio.timeout(INSIDE_S_MAX), self._changed:
            await self._changed.wait_for(lambda: self.inside >= count)

    def release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def hold(self) -> None:
        self.inside += 1
        async with self._changed:
            self._changed.notify_all()
        try:
            await self._released.wait()
        finally:
            self.inside -= 1

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.serve(reader, writer)
        writer.close()


# Any in this file: JSON, as it came.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, whole. Header names are lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: object = None  # bytes go out as they are, None as nothing, the rest as JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to one request for an effect. reset: the connection dies before anything is done. refuse: `status`
    without the work. wait: held before the work. hold: done, the reply is held. lose: done, the reply is lost. after:
    done, and answered with `status` all the same."""

    kind: Literal["reset", "refuse", "wait", "hold", "lose", "after"]
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: object = None


class WebFarEnd(Door):
    """Base of the HTTP far ends: subclasses say what is an effect, and do it."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Ask] = []
        self.troubles: list[Trouble] = []
        self.skew_s = 0.0  # of this far end's clock

    # what a far end of one kind says

    def is_effect(self, ask: Ask) -> bool:
        return ask.method != "GET"

    def enter(self, ask: Ask) -> Answer | None:
        """An answer that needs no work: not allowed, known already, under way."""
        return None

    @abstractmethod
    def work(self, ask: Ask, trouble: Trouble | None) -> Answer:
        """Do it, and keep what has to be kept; nothing is awaited."""

    # the way of a request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, ask: Ask) -> Answer | None:
        """None where the connection is to be closed without an answer."""
        self.requests.append(ask)
        trouble = self.troubles.pop(0) if self.troubles and self.is_effect(ask) else None
        kind = trouble.kind if trouble else ""
        if kind == "reset":
            return None
        if trouble and kind == "refuse":
            return Answer(trouble.status, trouble.body, trouble.headers)
        answer = self.enter(ask)
        if kind == "wait":
            await self.hold()
        answer = answer or self.work(ask, trouble)
        if kind == "hold":
            await self.hold()
        if kind == "lose":
            return None
        if trouble and kind == "after":
            return Answer(trouble.status, trouble.body, trouble.headers)
        return answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(reader, writer).serve(self._answer)

    async def _answer(self, request: Request, connection: Connection) -> None:
        ask = Ask(method=request.method, target=request.target, headers=dict(request.headers), body=request.body)
        answer = await self.handle(ask)
        if answer is None:
            raise Cut
        body = answer.body
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = {
            "content-type": "application/octet-stream" if isinstance(body, bytes) else "application/json",
            "date": formatdate(time.time() + self.skew_s, usegmt=True),
            **answer.headers,
            "connection": "close",
        }
        await connection.whole(answer.status, raw, headers.items(), bare=ask.method == "HEAD")
