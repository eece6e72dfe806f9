"""HTTP/1.1 on a loopback socket: one task per connection, answers sent piece by piece.

The side door (`/_requests`, `/_faults`, `/_release`) is for the test that owns the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct

import h11
import msgspec

from holdfast.testing.model_server.script import Fault, FaultBox, FaultKind
from holdfast.testing.model_server.service import ANTHROPIC, OPENAI, ModelService, Outcome

BODY_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 64 * 1024
GARBAGE = b"\xff\xfe\x00\x80 this is no event \xc3\x28\n\n"
_RAW = {FaultKind.NOT_HTTP: GARBAGE, FaultKind.HANGUP: b""}


class Hangup(Exception):
    """The connection is to be reset now."""


class Cut(Exception):
    """The connection is to be closed now, after what was sent has gone out.

    Not a reset: that one may overtake the bytes before it, and the client would see another fault.
    """


async def listen(service: ModelService, *, port: int) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; returns the server and its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await _Connection(service, reader, writer).serve()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    name: tuple[str, int] = server.sockets[0].getsockname()
    return server, name[1]


class _Connection:
    def __init__(self, service: ModelService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._service = service
        self._reader = reader
        self._writer = writer
        self._parser = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                self._parser.start_next_cycle()
        except (h11.RemoteProtocolError, Cut):
            pass  # closed below; else the far side is no HTTP client, or went away
        except Hangup:
            self._reset()
        finally:
            self._writer.close()

    async def _serve_one(self) -> bool:
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return False
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise Hangup
        path, _, query = head.target.decode("ascii").partition("?")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        if head.method == b"POST" and path in (OPENAI, ANTHROPIC):
            await self._answer(self._service.handle(path, headers, bytes(body)))
        else:
            await self._side_door(head.method.decode("ascii"), path, query, bytes(body))
        return self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE

    async def _answer(self, outcome: Outcome) -> None:
        fault = outcome.fault
        if fault is not None and fault.kind is FaultKind.HOLD:
            await self._service.released.wait()
        if fault is not None and fault.kind is FaultKind.SLOW:
            await asyncio.sleep(fault.delay_s)
        if fault is not None and fault.kind in _RAW:
            self._writer.write(_RAW[fault.kind])
            await self._writer.drain()
            raise Hangup
        if fault is not None and fault.kind is FaultKind.ERROR_PAGE:
            page = b"<html><h1>502 Bad Gateway</h1></html>"
            await self._whole(502, page, "text/html", outcome)
        elif outcome.error is not None:
            raw = json.dumps(outcome.error.body).encode()
            await self._whole(outcome.error.status, raw, "application/json", outcome)
        elif outcome.body is not None:
            await self._plain(outcome, json.dumps(outcome.body).encode())
        else:
            await self._stream(outcome)

    async def _plain(self, outcome: Outcome, raw: bytes) -> None:
        kind = outcome.fault.kind if outcome.fault else None
        if kind is FaultKind.GARBAGE:
            raw = GARBAGE
        elif kind is FaultKind.BLANK:
            raw = b""
        elif kind is FaultKind.INVALID_JSON:
            raw = raw[: len(raw) // 2]
        elif kind is FaultKind.STREAM_ERROR:
            raw = outcome.error_event.rpartition(b"data: ")[2].strip()
        if kind is FaultKind.CUT:
            self._send(self._head(200, "application/json", len(raw), outcome))
            self._send(h11.Data(data=raw[: len(raw) // 2]))
            raise Cut
        await self._whole(200, raw, "application/json", outcome)

    async def _stream(self, outcome: Outcome) -> None:
        fault = outcome.fault
        kind = fault.kind if fault else None
        self._send(self._head(200, "text/event-stream; charset=utf-8", None, outcome))
        breaks = kind in (FaultKind.CUT, FaultKind.GARBAGE, FaultKind.STREAM_ERROR, FaultKind.INVALID_JSON)
        events = outcome.events[: fault.after_chunks] if fault and breaks else outcome.events
        for event in () if kind is FaultKind.BLANK else events:
            self._send(h11.Data(data=event))
            await self._writer.drain()
            if fault is not None and fault.gap_s:
                await asyncio.sleep(fault.gap_s)
        if kind is FaultKind.CUT:
            raise Cut
        tail = {
            FaultKind.GARBAGE: GARBAGE,
            FaultKind.STREAM_ERROR: outcome.error_event,
            FaultKind.INVALID_JSON: b'data: {"id": "x", "choices": [{"del\n\n',
        }
        if kind is not None and kind in tail:
            self._send(h11.Data(data=tail[kind]))
        self._send(h11.EndOfMessage())
        await self._writer.drain()

    async def _whole(self, status: int, raw: bytes, kind: str, outcome: Outcome) -> None:
        self._send(self._head(status, kind, len(raw), outcome))
        self._send(h11.Data(data=raw))
        self._send(h11.EndOfMessage())
        await self._writer.drain()

    def _head(self, status: int, kind: str, length: int | None, outcome: Outcome) -> h11.Response:
        headers = [("Content-Type", kind), *outcome.headers]
        if length is not None:
            headers.append(("Content-Length", str(length)))
        return h11.Response(status_code=status, headers=headers)

    async def _side_door(self, method: str, path: str, query: str, body: bytes) -> None:
        service = self._service
        status, told = 200, b"{}"
        match method, path:
            case "GET", "/_requests":
                if query.removeprefix("wait=").isdecimal():
                    await service.wait_seen(int(query.removeprefix("wait=")))
                told = msgspec.json.encode({"requests": service.books.seen})
            case "POST", "/_faults":
                try:
                    service.faults = FaultBox(msgspec.json.decode(body, type=tuple[Fault, ...]))
                except msgspec.MsgspecError as error:
                    status, told = 400, json.dumps({"error": str(error)}).encode()
            case "POST", "/_release":
                service.release()
            case _:
                status, told = 404, b'{"error": {"message": "Invalid URL", "code": null}}'
        await self._whole(status, told, "application/json", Outcome())

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self._reader.read(READ_BYTES))
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    def _send(self, event: h11.Event) -> None:
        self._writer.write(self._parser.send(event) or b"")

    def _reset(self) -> None:
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
