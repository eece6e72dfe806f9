"""A wire form: how one family of providers writes requests and replies, and what all of them share. Pure; no I/O.

A request encodes to the same bytes whenever it is the same value, wherever it was built and whether it was read back
from a record in between. So a request that goes to a second endpoint of the same wire form is byte-equal to the first,
and a provider's cache of prefixes keeps its use.

Everything in a reply that is not as documented raises `ReplyGarbled`; nothing is taken by halves. Server-sent events
are read more strictly than by a browser: a line that is no field of the format is an error, because an event whose
beginning was damaged would otherwise vanish and leave a hole in the text. An event that its blank line does not end
never was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Protocol, cast

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput, ReplyGarbled, TooLarge
from holdfast.runtime.http.message import REQUEST_BODY_BYTES_MAX
from holdfast.runtime.models.reply import TOOL_CALLS_MAX, Part, Refusal, Reply, StopReason, Text, ToolCall, Usage
from holdfast.runtime.models.request import Object, Request, parse_arguments

EVENTS_MAX = 500_000
EVENT_BYTES_MAX = 32 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # "" where none was given
    data: str


class EventReader:
    """Takes pieces of a stream, gives whole events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0  # no line ends before this place of the rest
        self._name = ""
        self._data: list[str] = []
        self._data_bytes = 0
        self._events = 0
        self._first = True

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that this piece completes. Raises ReplyGarbled."""
        self._rest += piece
        while (line := self._next_line()) is not None:
            event = self._take(line)
            if event is not None:
                self._events += 1
                if self._events > EVENTS_MAX:
                    raise ReplyGarbled(f"the stream has more than {EVENTS_MAX:,} events", reason="too-large")
                yield event
        if len(self._rest) > EVENT_BYTES_MAX:
            raise _too_large()

    def _next_line(self) -> bytes | None:
        rest = self._rest
        feed = rest.find(b"\n", self._searched)
        back = rest.find(b"\r", self._searched, feed if feed >= 0 else len(rest))
        if back >= 0 and back + 1 < len(rest):
            return self._cut(back, back + (2 if rest[back + 1] == 0x0A else 1))
        if feed >= 0:
            return self._cut(feed, feed + 1)
        # A carriage return at the very end: its line feed may come with the next piece.
        self._searched = back if back >= 0 else len(rest)
        return None

    def _cut(self, end: int, after: int) -> bytes:
        line = bytes(self._rest[:end])
        del self._rest[:after]
        self._searched = 0
        return line

    def _take(self, line: bytes) -> ServerEvent | None:
        if self._first:
            line, self._first = line.removeprefix(_BOM), False
        if not line:
            named, data = self._name, self._data
            self._name, self._data, self._data_bytes = "", [], 0
            return ServerEvent(name=named, data="\n".join(data)) if data else None
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError:
            raise ReplyGarbled("the stream is not UTF-8", reason="garbage") from None
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._data_bytes += len(line)
            if self._data_bytes > EVENT_BYTES_MAX:
                raise _too_large()
        elif name == "event":
            self._name = value
        elif name not in ("", "id", "retry"):  # "": a comment
            raise ReplyGarbled("the stream has a line that is not an event", reason="garbage")
        return None


def _too_large() -> ReplyGarbled:
    return ReplyGarbled(f"an event of the stream has more than {EVENT_BYTES_MAX:,} bytes", reason="too-large")


_WRITTEN_OUT_MAX = 1e21  # below it canonical JSON writes a whole number without an exponent
_sorted_encode = msgspec.json.Encoder(order="sorted").encode


class Assembler(Protocol):
    """Puts one streamed reply together. Both methods raise ReplyGarbled, or a model error."""

    def take(self, event: ServerEvent) -> str: ...  # take one event; returns the text it adds, to be shown

    def finish(self) -> Reply: ...  # the whole reply, after the stream's own end


class WireForm(Protocol):
    """The promises of a wire form."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...  # below the endpoint's base URL

    def headers(self, key: str | None) -> dict[str, str]: ...

    def encode(self, request: Request, *, stream: bool) -> bytes:
        """Deterministic bytes of the body. Raises BadInput or TooLarge."""
        ...

    def decode(self, raw: bytes) -> Reply:
        """A plain reply's body. Raises ReplyGarbled, or a model error that it holds."""
        ...

    def assembler(self) -> Assembler: ...


def body_bytes(body: Object) -> bytes:
    """JSON with sorted keys; 1.0 is written as 1, as it is when read back from canonical JSON."""
    raw = _sorted_encode(_plain_numbers(body))
    if len(raw) > REQUEST_BODY_BYTES_MAX:
        raise TooLarge(
            f"the request to the model has {len(raw):,} bytes; the limit is {REQUEST_BODY_BYTES_MAX:,}",
            hint="shorten the conversation",
        )
    return raw


def with_extra(body: dict[str, object], request: Request, wire: str) -> dict[str, object]:
    """Add the settings that are for this wire form alone. Raises BadInput."""
    extra = cast(Object, cast(Object, request.settings.get("extra", {})).get(wire, {}))
    for name in ("stream", "stream_options", "tools", "tool_choice", *body):
        if name in extra:
            raise BadInput(f"settings.extra.{wire}.{name}: Holdfast sets this field itself")
    return {**body, **extra}


def _plain_numbers(value: object) -> object:
    if type(value) is float:
        whole = value.is_integer() and abs(value) < _WRITTEN_OUT_MAX
        return int(Decimal(repr(value))) if whole else value
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        return {name: _plain_numbers(item) for name, item in items.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(item) for item in cast("list[object]", value)]
    return value


ID_CHARS_MAX = 500
TOKENS_MAX = 2**53
_EMPTY_IS_MEANT = (StopReason.LENGTH, StopReason.REFUSED, StopReason.PAUSED)


def garbage(what: str) -> ReplyGarbled:
    return ReplyGarbled(f"the reply does not have the provider's documented form: {what}", reason="garbage")


def parse_object(raw: bytes | str) -> Object:
    try:
        found = decode_json(raw)
    except (ValueError, RecursionError) as error:
        raise garbage(f"not JSON: {error}") from None
    return as_object(found, "the reply")


def as_object(value: object, what: str) -> Object:
    if not isinstance(value, dict):
        raise garbage(f"{what} is not an object")
    return cast(Object, value)


def as_list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise garbage(f"{what} is not a list")
    return cast("list[object]", value)


def as_text(value: object, what: str) -> str:
    """Text, or "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise garbage(f"{what} is not text")
    return value


def as_count(value: object) -> int | None:
    """A number of tokens, or None where there is none to believe."""
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else None


def shown_id(value: object) -> str:
    return value[:ID_CHARS_MAX] if isinstance(value, str) else ""


def new_call(*, tool: object, text: str, provider_id: object) -> ToolCall:
    """A call without its number. A call that names no tool is one with an error."""
    name = tool if isinstance(tool, str) else ""
    read = parse_arguments(text)
    error = read.error if name else "the call names no tool"
    found, named = None if error else read.value, shown_id(provider_id)
    return ToolCall(number=0, tool=name, text=read.text, arguments=found, error=error, provider_id=named)


def finish(
    parts: Sequence[Part], *, stop: StopReason, usage: Usage | None, ids: dict[str, str], held: tuple[str, ...] = ()
) -> Reply:
    """Number the calls and judge the whole. Raises ReplyGarbled."""
    kept: list[Part] = []
    calls = 0
    for part in parts:
        if isinstance(part, ToolCall):
            calls += 1
            kept.append(msgspec.structs.replace(part, number=calls))
        elif not isinstance(part, Text | Refusal) or part.text:
            kept.append(part)
    if calls > TOOL_CALLS_MAX:
        raise ReplyGarbled(f"the reply has {calls} tool calls; the limit is {TOOL_CALLS_MAX}", reason="too-large")
    says_something = any(
        isinstance(part, Refusal | ToolCall) or (isinstance(part, Text) and part.text.strip()) for part in kept
    )
    if not says_something and stop not in _EMPTY_IS_MEANT:
        raise ReplyGarbled("the reply is empty: no text, no tool call, no refusal", reason="empty")
    given = {name: text for name, text in ids.items() if text}
    return Reply(parts=tuple(kept), stop=stop, usage=usage, ids=given, held_state=held)
