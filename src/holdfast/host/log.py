"""Logs are events with fields, one JSON line each, on standard error; no payloads, no secrets."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TextIO

from holdfast.core.secret_handles import safe_value


class Log:
    """Writes nothing unless given a stream: a library does not talk on its own."""

    __slots__ = ("_stream",)

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    @classmethod
    def to_stderr(cls) -> Log:
        return cls(sys.stderr)

    def event(self, event: str, **fields: object) -> None:
        if self._stream is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        shown = {name: safe_value(value) for name, value in fields.items()}
        try:
            self._stream.write(json.dumps({"at": at, "event": event, **shown}) + "\n")
            self._stream.flush()
        except OSError:
            self._stream = None  # nobody reads any more; work goes on
