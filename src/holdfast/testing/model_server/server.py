"""The scripted model on a loopback socket: answers sent piece by piece, with faults.

The side door (`/_requests`, `/_faults`, `/_release`) is for the test that owns the server.
"""

from __future__ import annotations

import asyncio
import json

import h11
import msgspec

from holdfast.downstream import http_server
from holdfast.downstream.http_server import Connection, Cut, Request, Reset
from holdfast.testing.model_server.script import Fault, FaultBox, FaultKind
from holdfast.testing.model_server.service import ANTHROPIC, OPENAI, ModelService, Outcome

GARBAGE = b"\xff\xfe\x00\x80 this is no event \xc3\x28\n\n"
_RAW = {FaultKind.NOT_HTTP: GARBAGE, FaultKind.HANGUP: b""}


async def listen(service: ModelService, *, port: int) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; returns the server and its port."""

    async def answer(request: Request, connection: Connection) -> None:
        await _Exchange(service, connection).answer(request)

    return await http_server.listen(answer, port=port)


class _Exchange:
    """One request and its answer."""

    def __init__(self, service: ModelService, connection: Connection) -> None:
        self._service = service
        self._connection = connection

    async def answer(self, request: Request) -> None:
        path, _, query = request.target.partition("?")
        if request.method == "POST" and path in (OPENAI, ANTHROPIC):
            await self._answer(self._service.handle(path, dict(request.headers), request.body))
        else:
            await self._side_door(request.method, path, query, request.body)

    async def _answer(self, outcome: Outcome) -> None:
        fault = outcome.fault
        if fault is not None and fault.kind is FaultKind.HOLD:
            await self._service.released.wait()
        if fault is not None and fault.kind is FaultKind.SLOW:
            await asyncio.sleep(fault.delay_s)
        if fault is not None and fault.kind in _RAW:
            await self._connection.send_raw(_RAW[fault.kind])
            raise Reset
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
            await self._send(_head(200, "application/json", outcome, length=len(raw)))
            await self._send(h11.Data(data=raw[: len(raw) // 2]))
            raise Cut
        await self._whole(200, raw, "application/json", outcome)

    async def _stream(self, outcome: Outcome) -> None:
        fault = outcome.fault
        kind = fault.kind if fault else None
        await self._send(_head(200, "text/event-stream; charset=utf-8", outcome))
        breaks = kind in (FaultKind.CUT, FaultKind.GARBAGE, FaultKind.STREAM_ERROR, FaultKind.INVALID_JSON)
        events = outcome.events[: fault.after_chunks] if fault and breaks else outcome.events
        for event in () if kind is FaultKind.BLANK else events:
            await self._send(h11.Data(data=event))
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
            await self._send(h11.Data(data=tail[kind]))
        await self._send(h11.EndOfMessage())

    async def _whole(self, status: int, raw: bytes, kind: str, outcome: Outcome) -> None:
        await self._connection.whole(status, raw, [("Content-Type", kind), *outcome.headers])

    async def _send(self, event: h11.Event) -> None:
        await self._connection.send(event)

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


def _head(status: int, kind: str, outcome: Outcome, *, length: int | None = None) -> h11.Response:
    headers = [("Content-Type", kind), *outcome.headers]
    if length is not None:
        headers.append(("Content-Length", str(length)))
    return h11.Response(status_code=status, headers=headers)
