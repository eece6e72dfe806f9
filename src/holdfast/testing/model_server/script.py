"""The script: which answer a request gets, and which fault. Pure but for the count of faults used.

Answers and faults are chosen by what the request itself says, so that a worker that is killed and
asks again gets the same answer, whoever asked before.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.decoding import decode_json


class FaultKind(StrEnum):
    RATE_LIMIT = "rate_limit"  # 429 with Retry-After
    SERVER_ERROR = "server_error"  # 500
    OVERLOADED = "overloaded"  # 529, or 503 in the other protocol
    BAD_KEY = "bad_key"  # 401
    UNKNOWN_MODEL = "unknown_model"  # 404
    CONTEXT_TOO_LONG = "context_too_long"  # 400
    BAD_REQUEST = "bad_request"  # 400
    QUOTA = "quota"  # no credit left
    HANGUP = "hangup"  # the connection is reset before any answer
    CUT = "cut"  # closed in the middle of the reply, after `after_chunks` events
    STREAM_ERROR = "stream_error"  # an error event in the middle of the stream
    SLOW = "slow"  # `delay_s` before the reply, `gap_s` between its events
    HOLD = "hold"  # no answer until the side door says so
    GARBAGE = "garbage"  # bytes that are no reply
    NOT_HTTP = "not_http"  # bytes that are no HTTP
    INVALID_JSON = "invalid_json"  # a reply whose JSON breaks off, framed as if whole
    EMPTY = "empty"  # a reply that says nothing
    BLANK = "blank"  # 200 without a body
    ERROR_PAGE = "error_page"  # a proxy's HTML page with 502


class When(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that must all hold; none means always."""

    turn: int | None = None  # 1 before the model has spoken, 2 after it spoke once
    last: str | None = None  # a text that the last message holds

    def holds(self, *, turn: int, last: str) -> bool:
        return self.turn in (None, turn) and (self.last is None or self.last in last)


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tool: str
    arguments: dict[str, object] | str = {}  # text goes out as it is, be it JSON or not
    id: str | None = None  # a number of the server's own where none is given


class ScriptedUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input: int
    output: int
    cached: int = 0


class Answer(When, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    refusal: str = ""
    thinking: str = ""  # Anthropic only: a signed thinking block
    stop: str = ""  # the protocol's own word, in place of the fitting one
    usage: ScriptedUsage | None = None  # in place of what the server counts


class Fault(When, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: FaultKind
    times: int | None = 1  # None: for ever
    after_chunks: int = 2
    retry_after_s: int | None = 1
    delay_s: float = 0.0
    gap_s: float = 0.0


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    answers: tuple[Answer, ...] = ()
    faults: tuple[Fault, ...] = ()
    keys: tuple[str, ...] | None = None  # None: every key is good, and none too
    models: tuple[str, ...] | None = None  # None: every model is there
    context_tokens: int | None = None
    chunk_chars: int = 8
    headers: dict[str, str] = {}  # with every reply: affinity, cache ids


def parse_script(raw: bytes) -> Script:
    """Raises msgspec.ValidationError or msgspec.DecodeError."""
    return decode_json(raw, Script)


class FaultBox:
    """The faults in force, each with the times it has left."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._left: list[tuple[Fault, int | None]] = [(one, one.times) for one in faults]

    def take(self, *, turn: int, last: str) -> Fault | None:
        """The first fault that fits, used up by one."""
        for i, (fault, left) in enumerate(self._left):
            if left != 0 and fault.holds(turn=turn, last=last):
                self._left[i] = (fault, None if left is None else left - 1)
                return fault
        return None


def find_answer(script: Script, *, turn: int, last: str) -> Answer | None:
    return next((one for one in script.answers if one.holds(turn=turn, last=last)), None)
