"""HTTP/1.1 on a loopback socket, for far ends and scripted servers: h11 parses, a task per connection.

A handler gets each whole request and the connection to answer on: with `whole` at once, or with
`send` piece by piece. It raises `Reset` to reset the connection, and `Cut` to close it after what
was sent has gone out; a reset may overtake the bytes before it, so the two are different faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

BODY_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 64 * 1024
LOOPBACK = "127.0.0.1"
BACKLOG = 1024
PARENT_CHECK_S = 0.5


class Reset(Exception):
    """The connection is reset now."""


class Cut(Exception):
    """The connection is closed now, after what was sent has gone out."""


class _BodyTooLarge(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it came, whole."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]  # names in lower case
    body: bytes
    peer: str = ""  # the address that it came from

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, max_num_fields=20))

    def all(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header == name.lower()]

    def first(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)


Handler = Callable[[Request, "Connection"], Awaitable[None]]


async def listen(
    handle: Handler, *, port: int, host: str = LOOPBACK, body_bytes_max: int = BODY_BYTES_MAX
) -> tuple[asyncio.Server, int]:
    """Returns the server and its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(reader, writer, body_bytes_max).serve(handle)

    server = await asyncio.start_server(serve, host, port, backlog=BACKLOG)
    name: tuple[str, int] = server.sockets[0].getsockname()
    return server, name[1]


async def run(listening: Awaitable[tuple[asyncio.Server, int]], *, parent: int | None, **ready: str) -> None:
    """Print one line of JSON with port and process id, then serve until a SIGTERM, or until the input or the
    parent ends. For a process of its own."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    # Ctrl-C in a demo reaches the whole group; the parent decides when its servers end.
    loop.add_signal_handler(signal.SIGINT, stop.set if parent is None else lambda: None)
    server, port = await listening
    _stop_when_input_closes(stop)
    sys.stdout.write(json.dumps({**ready, "port": port, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), None if parent is None else PARENT_CHECK_S)
        # A forked sibling can hold our input open; the parent's death ends us all the same.
        if parent is not None and os.getppid() != parent:
            stop.set()
    server.close()


def _stop_when_input_closes(stop: asyncio.Event) -> None:
    """A pipe or socket as input is a lifeline; a file, /dev/null or a terminal is none. Text typed on a terminal is for
    the shell: reading it in the background would stop us."""
    if sys.stdin is None or sys.stdin.isatty():  # None: closed from the start
        return
    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stop.set()

    with contextlib.suppress(PermissionError):  # not something that can be waited for
        loop.add_reader(descriptor, read)


@dataclass(slots=True, eq=False)
class Connection:
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _body_bytes_max: int = BODY_BYTES_MAX
    _parser: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))

    async def serve(self, handle: Handler) -> None:
        """Answer requests until the client or a handler ends the connection."""
        with contextlib.suppress(OSError, asyncio.CancelledError):  # the client went away; the server ends
            try:
                while await self._serve_one(handle):
                    self._parser.start_next_cycle()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint, str(error))
            except _BodyTooLarge:
                await self._refuse(413, f"the body is over {self._body_bytes_max} bytes")
            except Reset:
                raw: socket.socket = self._writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._writer.transport.abort()
            except Cut:
                pass
            finally:
                self._writer.close()

    async def whole(
        self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = (), *, bare: bool = False
    ) -> None:
        """A whole answer in one piece; `bare` leaves the body out and keeps its length."""
        head = h11.Response(status_code=status, headers=[*headers, ("Content-Length", str(len(body)))])
        await self.send(head, h11.Data(data=b"" if bare else body), h11.EndOfMessage())

    async def send(self, *events: h11.Event) -> None:
        self._writer.write(b"".join(self._parser.send(event) or b"" for event in events))
        await self._writer.drain()

    async def send_raw(self, raw: bytes) -> None:
        """Bytes that need not be HTTP."""
        self._writer.write(raw)
        await self._writer.drain()

    async def _serve_one(self, handle: Handler) -> bool:
        """Answer one request; False ends the connection."""
        if (request := await self._receive()) is None:
            return False
        await handle(request, self)
        return self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE

    async def _receive(self) -> Request | None:
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return None
        if self._parser.they_are_waiting_for_100_continue:
            await self.send(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > self._body_bytes_max:
                raise _BodyTooLarge
        return Request(
            method=head.method.decode("ascii"),
            target=head.target.decode("ascii"),
            headers=tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers),
            body=bytes(body),
            peer=str((self._writer.get_extra_info("peername") or ("",))[0]),
        )

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self._reader.read(READ_BYTES))
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    async def _refuse(self, status: int, why: str) -> None:
        if self._parser.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            kind = ("Content-Type", "application/problem+json")
            await self.whole(
                status, json.dumps({"title": why, "status": status}).encode(), [kind, ("Connection", "close")]
            )
