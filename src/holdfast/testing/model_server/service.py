"""What a request gets: decided before a byte of the answer goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

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
            body = msgspec.json.decode(raw, type=Body)
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
