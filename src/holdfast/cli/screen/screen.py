"""What commands print: tables for people, JSON for programs, messages and errors on standard error.

On a terminal tables are drawn by rich; anywhere else they are plain columns, so that pipes and logs get stable text.
No meaning is in a colour alone. Text from outside is made safe for a terminal. An error says what happened, what to do,
and which page explains it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO, cast

from holdfast.cli.screen.wrapping import screen_width, wrapped
from holdfast.core.secret_handles import safe
from holdfast.errors import HoldfastError

STATE_STYLES = {
    "succeeded": "green",
    "running": "cyan",
    "started": "cyan",
    "failed": "red",
    "parked": "bold yellow",
    "unknown": "yellow",
    "waiting": "magenta",
    "cancelled": "dim",
    "skipped": "dim",
    "ok": "green",
    "warning": "yellow",
    "damage": "bold red",
    "no": "yellow",
    "covered": "green",
    "at risk": "yellow",
    "uncovered": "bold red",
}

# Columns whose cells stay on one line.
WHOLE = ("task", "effect", "approval", "changed", "since", "started", "took", "ended", "at", "made", "asked", "worker")

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LATE_CONTROL = re.compile(r"[\x7f-\x9f]")

INTERNAL_HINT = "this is a bug in Holdfast. Please report it with the output of `HOLDFAST_TRACE=1 holdfast ...`"


def shown(text: str) -> str:
    """Control characters become visible escapes, secrets are hidden; line breaks and tabs stay."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", safe(text))


def one_line(text: str, *, chars_max: int = 100) -> str:
    """The text on one line, cut where it is long."""
    flat = shown(" ".join(text.split()))
    return flat if len(flat) <= chars_max else flat[: chars_max - 3] + "..."


def print_json(value: object) -> None:
    """One JSON value, or a struct as one, indented; control characters are escaped."""
    from msgspec import to_builtins

    text = json.dumps(value, indent=2, ensure_ascii=False, default=to_builtins)
    print(_LATE_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def talk(text: str) -> None:
    """A message for the person at the screen, not part of the data."""
    print(_fitted(shown(text), sys.stderr), file=sys.stderr)


def print_lines(*lines: str) -> None:
    """Lines of data for a person; at a terminal they are wrapped between words."""
    for line in lines:
        print(_fitted(shown(line), sys.stdout))


def _fitted(text: str, stream: TextIO) -> str:
    return wrapped(text, screen_width()) if stream.isatty() else text


def finish(args: argparse.Namespace, fields: object, *messages: str) -> int:
    """The end of a command: its fields with --json, else its messages; exit code 0."""
    if args.json:
        print_json(fields)
    else:
        for text in messages:
            talk(text)
    return 0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, state: str = "state") -> None:
    """A table; if it is empty, a message about what would appear here."""
    if not rows:
        talk(empty)
    elif sys.stdout.isatty():
        _print_rich(columns, rows, state)
    else:
        _print_plain(columns, rows)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values, one pair a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        first, *rest = shown(value).splitlines() or [""]
        for begin, line in ((name, first), *(("", one) for one in rest)):
            print(_fitted(f"{begin:<{width}}  {line}".rstrip(), sys.stdout))


def print_result(fields: Mapping[str, object]) -> None:
    """What a command did, field by field, in words."""
    print_fields([(name.replace("_", " "), in_words(value)) for name, value in fields.items()])


def in_words(value: object) -> str:
    """A value of a result as a person would write it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case None | "" | [] | ():
            return "-"
        case list() | tuple():
            return ", ".join(map(in_words, cast("Sequence[object]", value)))
        case dict():
            pairs = cast("Mapping[object, object]", value)
            return ", ".join(f"{name}: {in_words(one)}" for name, one in pairs.items()) or "-"
        case _:
            return str(value)


def json_line(value: object, *, chars_max: int = 100) -> str:
    """A JSON value on one line, cut where it is long."""
    return one_line(json.dumps(value, ensure_ascii=False), chars_max=chars_max)


def clock_time(at_ms: int) -> str:
    """Local time to the second; a dash if there is none."""
    if not at_ms:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(" ", "seconds")


def short_time(at_ms: int, *, day_ms: int) -> str:
    """Local time to the second; with the date only if it is not the day that the reader knows already."""
    if not at_ms:
        return "-"
    at, day = (datetime.fromtimestamp(ms / 1000, UTC).astimezone() for ms in (at_ms, day_ms))
    return at.strftime("%H:%M:%S" if at.date() == day.date() else "%Y-%m-%d %H:%M:%S")


def ago(ms: int) -> str:
    """A duration in at most two units."""
    seconds = max(0, ms) / 1000
    if seconds < 1:
        return f"{max(0, ms)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3_600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 172_800:
        return f"{int(seconds // 3_600)} h {int(seconds % 3_600 // 60)} min"
    return f"{int(seconds // 86_400)} days"


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cells = [[one_line(cell, chars_max=200) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in (columns, *cells)) for i in range(len(columns))]
    for row in (columns, *cells):
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], state: str) -> None:
    from rich.text import Text

    from holdfast.cli.screen.table import draw

    # Ids that a person copies into the next command are never cut, and times are read as one.
    kept_whole = frozenset(i for i, column in enumerate(columns) if column in WHOLE)
    cells = [
        [
            Text(shown(cell), style=STATE_STYLES.get(cell, "") if column == state else "")
            for column, cell in zip(columns, row, strict=True)
        ]
        for row in rows
    ]
    draw(columns, cells, width=screen_width(), kept_whole=kept_whole)


def report_error(error: Exception, *, as_json: bool) -> int:
    """Print an error to standard error; its exit code. The traceback of a bug only if HOLDFAST_TRACE asks for it."""
    if isinstance(error, HoldfastError):
        code, message, hint, exit_code = error.code, error.message, error.hint, error.exit_code
    else:
        code, message, hint, exit_code = "internal", f"internal: {type(error).__name__}: {error}", INTERNAL_HINT, 1
    explain = f"holdfast explain {code}"
    if as_json:
        page = f"docs/reference/errors.md#{code}"
        fields = {"code": code, "message": safe(message), "hint": hint, "page": page, "explain": explain}
        print(json.dumps({"error": {**fields, "exit_code": exit_code}}), file=sys.stderr)
    else:
        talk(f"error: {message}")
        if hint:
            talk(f"hint: {hint}")
        if isinstance(error, HoldfastError):
            talk(f"see: {explain}")
    if os.environ.get("HOLDFAST_TRACE") == "1":
        import traceback

        sys.stderr.write(safe("".join(traceback.format_exception(error))))
    return exit_code
