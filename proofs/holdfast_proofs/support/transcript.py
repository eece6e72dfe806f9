"""Comparing a printed terminal session with a real one: what differs on every run is left out."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CHANGING = (
    (re.compile(r"\bhf1[02-9ac-hj-np-z]{58}\b"), "AGENT"),
    (re.compile(r"(?<=24 words: )[a-z]+ [a-z]+ [a-z]+ [a-z]+\b"), "WORDS"),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "TASK"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "KEY"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "SESSION"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?"), "AT"),
    (re.compile(r"\bworker \d+\b"), "worker PID"),
    (re.compile(r"\b[\w.-]+:\d{2,7}(?= )"), "HOST:PID"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\s+"), " "),
)


def shape(text: str) -> list[str]:
    """The lines of a session without ids, keys, times, process numbers and spacing."""
    return [line for line in map(_line_shape, text.splitlines()) if line]


def find_missing(expected: Iterable[str], actual: Iterable[str]) -> str | None:
    """The first expected line that does not come after the ones before it, or None.

    Both are shapes; the actual session may say more in between. `...` stands for anything.
    """
    lines = iter(actual)
    for wanted in expected:
        pattern = re.compile(re.escape(wanted).replace(re.escape("..."), ".*"))
        if not any(pattern.fullmatch(line) for line in lines):
            return wanted
    return None


def _line_shape(line: str) -> str:
    for pattern, name in _CHANGING:
        line = pattern.sub(name, line)
    return line.strip()
