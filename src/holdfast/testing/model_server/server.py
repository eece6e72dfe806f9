"""The scripted model on a loopback socket: decides an answer before its first byte; sends it in pieces, with faults.

The side door (`/_requests`, `/_faults`, `/_release`) is for the test that owns the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h11
import msgspec

from holdfast.core.decoding import decode_json
from holdfast.downstream import http_server
from holdfast.downstream.http_server import Connection, Cut, Request, Reset
from holdfast.testing.model_server.anthropic_speaker import AnthropicSpeaker
from holdfast.testing.model_server.asked import Asked, BadAsk, Body, read_anthropic, read_openai
from holdfast.testing.model_server.books import Books
from holdfast.testing.model_server.openai_speaker import OpenAISpeaker
from holdfast.testing.model_server.script import Answer, Fault, FaultBox, FaultKind, Script, find_answer
from holdfast.testing.model_server.spoken import ErrorBody, Speaker, count_usage

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
_STATUS_FAULTS = frozenset(
    {
        FaultKind.RATE_LIMIT,
        FaultKind.SERVER_ERROR,
        FaultKind.OVERLOADED,
        FaultKind.BAD_KEY,
        FaultKind.UNKNOWN_MODEL,
        FaultKind.CONTEXT_TOO_LONG,
        FaultKind.BAD_REQUEST,
        FaultKind.QUOTA,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An answer ready to be sent: an error, or a body or events, and the fault to play on it."""

    error: ErrorBody | None = None
    body: Body | None = None
    events: tuple[bytes, ...] = ()
    fault: Fault | None = None
    headers: tuple[tuple[str, str], ...] = ()
    error_event: bytes = b""


class ModelService:
    def __init__(self, script: Script, *, log: Path | None) -> None:
        self._script = script
        self._known: set[str] = set()
        self.books = Books(log)
        self.faults = FaultBox(script.faults)
        self.released = asyncio.Event()
        self._arrived = asyncio.Event()

    async def wait_seen(self, count: int) -> None:
        """Return when that many requests are in the books."""
        while len(self.books.seen) < count:
            await self._arrived.wait()

    def release(self) -> None:
        """Let go on what is held now; what comes later is held again."""
        self.released.set()
        self.released = asyncio.Event()

    def handle(self, path: str, headers: Mapping[str, str], raw: bytes) -> Outcome:
        """Decide, and enter it in the books."""
        speaker: Speaker = AnthropicSpeaker() if path == ANTHROPIC else OpenAISpeaker()
        number = self.books.next_number
        request_id = ("request-id" if path == ANTHROPIC else "x-request-id", f"req_{number:06}")
        turn = 0
        try:
            self._check_key(path, headers)
            asked = self._read(path, headers, raw)
            turn = asked.turn
            outcome = self._decide(speaker, asked, number)
        except _Refused as refused:
            outcome = Outcome(error=speaker.error(refused.kind, number, refused.message))
        answered = str(outcome.fault.kind) if outcome.fault else str(outcome.error.status) if outcome.error else "reply"
        self.books.keep(path=path, headers=headers, body=raw, turn=turn, answered=answered)
        self._arrived.set()
        self._arrived = asyncio.Event()
        more = () if outcome.error else tuple(self._script.headers.items())
        return replace(outcome, headers=(request_id, *outcome.headers, *more))

    def _check_key(self, path: str, headers: Mapping[str, str]) -> None:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if path == ANTHROPIC:
            given = headers.get("x-api-key", given)
        if self._script.keys is not None and given not in self._script.keys:
            raise _Refused(FaultKind.BAD_KEY)

    def _read(self, path: str, headers: Mapping[str, str], raw: bytes) -> Asked:
        try:
            body = decode_json(raw, Body)
            return read_anthropic(body, headers) if path == ANTHROPIC else read_openai(body)
        except BadAsk as error:
            raise _Refused(FaultKind.BAD_REQUEST, str(error)) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _Refused(FaultKind.BAD_REQUEST, f"could not parse the body: {error}") from None

    def _decide(self, speaker: Speaker, asked: Asked, number: int) -> Outcome:
        script = self._script
        if script.models is not None and asked.model not in script.models:
            raise _Refused(FaultKind.UNKNOWN_MODEL)
        tokens = sum(tokens for _, tokens in asked.weights)
        if script.context_tokens is not None and tokens > script.context_tokens:
            raise _Refused(FaultKind.CONTEXT_TOO_LONG)
        fault = self.faults.take(turn=asked.turn, last=asked.last)
        if fault is not None and fault.kind in _STATUS_FAULTS:
            wait = fault.retry_after_s
            timed = fault.kind in (FaultKind.RATE_LIMIT, FaultKind.OVERLOADED) and wait is not None
            headers = (("Retry-After", str(wait)),) if timed else ()
            return Outcome(error=speaker.error(fault.kind, number), fault=fault, headers=headers)
        answer = find_answer(script, turn=asked.turn, last=asked.last)
        if fault is not None and fault.kind is FaultKind.EMPTY:
            answer = Answer()
        if answer is None:
            told = f"the script has no answer for turn {asked.turn}: {asked.last[:200]!r}"
            raise _Refused(FaultKind.BAD_REQUEST, told)
        usage = count_usage(answer, asked, self._known)
        if not asked.stream:
            body = speaker.plain(answer, asked, usage, number)
            return Outcome(body=body, fault=fault, error_event=speaker.error_event())
        events = speaker.events(answer, asked, usage, number, script.chunk_chars)
        return Outcome(events=tuple(events), fault=fault, error_event=speaker.error_event())


class _Refused(Exception):
    def __init__(self, kind: FaultKind, message: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


GARBAGE = b"\xff\xfe\x00\x80 this is no event \xc3\x28\n\n"
_RAW = {FaultKind.NOT_HTTP: GARBAGE, FaultKind.HANGUP: b""}


async def listen(service: ModelService, *, port: int) -> tuple[asyncio.Server, int]:
    """Listen on 127.0.0.1; returns the server and its port."""

    async def answer(request: Request, connection: Connection) -> None:
        await _Exchange(service, connection).answer(request)

    return await http_server.listen(answer, port=port)


@dataclass(slots=True)
class _Exchange:
    """One request and its answer."""

    _service: ModelService
    _connection: Connection

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
                    service.faults = FaultBox(decode_json(body, tuple[Fault, ...]))
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
