"""The level over time: `levels.jsonl` in the agent's folder, one line each time that it changed. Only ever appended."""

from __future__ import annotations

import contextlib

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.host.line_file import append_line, read_lines
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces.level import LevelReport

FILE_BYTES_MAX = 16 << 20


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    level: int
    proven_level: int
    text: str
    failing: tuple[str, ...]  # ids of the gates that did not hold


def read_history(home: AgentHome) -> tuple[LevelChange, ...]:
    """Oldest first. A line that cannot be read is left out: it is history, and decides nothing."""
    found = list[LevelChange]()
    for line in read_lines(home.levels_file, bytes_max=FILE_BYTES_MAX):
        with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            found.append(decode_json(line, LevelChange))
    return tuple(found)


def note_level(home: AgentHome, report: LevelReport, *, now_ms: int) -> None:
    """Append the level where it, its proof or a gate has changed. Raises OSError, HoldfastError."""
    failing = tuple(one.id for one in report.gates if not one.ok)
    now = LevelChange(
        at_ms=now_ms, level=report.level, proven_level=report.proven_level, text=report.text, failing=failing
    )
    last = next(reversed(read_history(home)), None)
    if last is None or (last.level, last.proven_level, last.failing) != (now.level, now.proven_level, now.failing):
        append_line(home.levels_file, msgspec.json.encode(now), bytes_max=FILE_BYTES_MAX)
