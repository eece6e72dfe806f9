"""Server-sent events out of bytes, however they are cut into pieces.

Stricter than a browser: a line that is no field of the format is an error, because an event whose
beginning was damaged would otherwise vanish and leave a hole in the text that is not seen.
An event that its blank line does not end never was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.errors import ReplyGarbled

EVENTS_MAX = 500_000
EVENT_BYTES_MAX = 32 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
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
                    raise ReplyGarbled(f"the stream has over {EVENTS_MAX:,} events", reason="too-large")
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
            return self._end_event()
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

    def _end_event(self) -> ServerEvent | None:
        name, data = self._name, self._data
        self._name, self._data, self._data_bytes = "", [], 0
        return ServerEvent(name=name, data="\n".join(data)) if data else None


def _too_large() -> ReplyGarbled:
    return ReplyGarbled(f"an event has over {EVENT_BYTES_MAX:,} bytes", reason="too-large")
