"""Logs are events with fields, one JSON line each, on standard error.

No arguments, no results, no proofs, no secrets. Of an exception its class, its line and the start of its message, with
known secrets swapped: without them a log does not say why anything failed. The whole is sealed in the journal.
"""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from typing import TextIO

from holdfast.core.secret_handles import safe_value
from holdfast.errors.base import text_of


class Log:
    """Writes events to the stream; without a stream it writes nothing."""

    __slots__ = ("_fields", "_stream")

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._fields: dict[str, object] = {}

    @classmethod
    def to_stderr(cls) -> Log:
        return cls(sys.stderr)

    def bound(self, **fields: object) -> Log:
        """The same stream; every event gets these fields."""
        log = Log(self._stream)
        log._fields = {**self._fields, **fields}
        return log

    def event(self, event: str, **fields: object) -> None:
        if self._stream is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        shown = {name: safe_value(value) for name, value in {**self._fields, **fields}.items()}
        try:
            self._stream.write(json.dumps({"at": at, "event": event, **shown}) + "\n")
            self._stream.flush()
        except OSError:
            self._stream = None  # nobody reads any more; work goes on

    def failure(self, event: str, error: BaseException) -> None:
        self.event(event, error=f"{type(error).__name__}: {text_of(error)}")


def open_log() -> Log:
    """A worker's events: JSON lines for programs, the same fields in words on a terminal."""
    return Log(Readable(sys.stderr)) if sys.stderr.isatty() else Log.to_stderr()


class Readable(io.StringIO):
    """A stream for a Log: time, event, then the fields."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str, /) -> int:
        fields = json.loads(text)
        at, event = str(fields.pop("at")), str(fields.pop("event"))
        words = [f"{name}={_shown(value)}" for name, value in fields.items()]
        return self._stream.write(" ".join([at[11:19], event, *words]) + "\n")

    def flush(self) -> None:
        self._stream.flush()


def _shown(value: object) -> str:
    """As JSON, which escapes control characters; plain words without quotes."""
    text = json.dumps(value)
    plain = isinstance(value, str) and text == f'"{value}"' and value and " " not in value
    return str(value) if plain else text
