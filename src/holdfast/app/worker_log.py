"""A worker's events: JSON lines for programs, the same fields in words on a terminal."""

from __future__ import annotations

import io
import json
import sys
from typing import TextIO

from holdfast.host.log import Log


def open_log() -> Log:
    return Log(Readable(sys.stderr)) if sys.stderr.isatty() else Log.to_stderr()


class Readable(io.StringIO):
    """A stream for runtime.log.Log: time, event, then the fields."""

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
    """As JSON, which escapes whatever could drive a terminal; plain words without quotes."""
    text = json.dumps(value)
    plain = isinstance(value, str) and text == f'"{value}"' and value and " " not in value
    return str(value) if plain else text
