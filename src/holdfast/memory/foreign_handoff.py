"""The hand-off of an adopted agent that has no journal: what its own files say.

An agent of another framework keeps its state in files of its own. Nothing is known of them but
their names, their times and their lines, so nothing more is said: the newest session and daily
log, open boxes, lines about decisions, files that changed. All of it is quoted: these are
the words of others. Links are not read, and of each file at most the last part is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.layout.covered import CoveredKind, CoveringRules, look
from holdfast.memory.handoff import FILES, LINES_MAX, Fact, Handoff, bounded, moment, quoted

TAIL_BYTES = 64 * 1024
LOGS_READ = 2
TASK_FILES = ("HEARTBEAT.md", "TODO.md")
_OPEN_BOX = re.compile(r"^\s*[-*] \[ \] (.+)$", re.MULTILINE)
_DECIDED = re.compile(r"^\s*[-*] (.*\b(?:decided|decision|agreed)\b.*)$", re.MULTILINE | re.I)
_DAY = re.compile(r"memory/\d{4}-\d{2}-\d{2}[^/]*\.md")
_SESSION = re.compile(r"(?:.*/)?sessions/[^/]+\.jsonl")


@dataclass(frozen=True, slots=True)
class SeenFile:
    path: str
    at_ms: int


def foreign_handoff(folder: Path, rules: CoveringRules, *, agent: str, agent_id: str, at_ms: int) -> Handoff:
    """What the files of the folder say now."""
    files = list(_files(folder, rules))
    days = sorted((one for one in files if _DAY.fullmatch(one.path)), key=lambda one: one.path)
    sessions = sorted((one for one in files if _SESSION.fullmatch(one.path)), key=lambda one: one.at_ms)
    newest = [*sessions[-1:], *days[-1:]]
    logs = [one.path for one in reversed(days[-LOGS_READ:])]
    return Handoff(
        agent=agent,
        agent_id=agent_id,
        at_ms=at_ms,
        basis=FILES,
        where=tuple(_where(folder, one) for one in newest),
        pending=_lines(folder, (*TASK_FILES, *logs), _OPEN_BOX, "pending", files),
        decided=_lines(folder, (*logs, "MEMORY.md"), _DECIDED, "decided", files),
        changed=_changed(files),
    )


def _where(folder: Path, one: SeenFile) -> str:
    last = next((line for line in reversed(_tail(folder, one.path).splitlines()) if line), "")
    return f"{quoted(one.path)}, written {moment(one.at_ms)[:19]}, ends with {quoted(last.strip())}"


def _lines(
    folder: Path, paths: Iterable[str], pattern: re.Pattern[str], section: str, files: list[SeenFile]
) -> tuple[str, ...]:
    times = {one.path: one.at_ms for one in files}
    found: list[Fact] = []
    for path in paths:
        if path in times:
            found += [
                Fact(at_ms=-number, text=f"{path}: {quoted(match.strip())}")
                for number, match in enumerate(pattern.findall(_tail(folder, path)), len(found))
            ]
    return bounded(found, section)


def _changed(files: list[SeenFile]) -> tuple[str, ...]:
    newest = sorted(files, key=lambda one: (-one.at_ms, one.path))[: LINES_MAX["changed"]]
    return bounded(
        [Fact(at_ms=one.at_ms, text=f"{moment(one.at_ms)[:19]} {quoted(one.path)} was written") for one in newest],
        "changed",
    )


def _files(folder: Path, rules: CoveringRules) -> Iterable[SeenFile]:
    for entry in look(folder, rules):
        ours = rules.own and (entry.path == rules.own or entry.path.startswith(f"{rules.own}/"))
        if entry.kind is CoveredKind.FILE and not ours and not entry.path.startswith(".git/"):
            try:
                at_ms = os.lstat(folder / entry.path).st_mtime_ns // 1_000_000
            except OSError:
                continue
            yield SeenFile(entry.path, max(0, at_ms))


def _tail(folder: Path, path: str) -> str:
    """The last part of a file, as text; empty where it is not one any more."""
    try:
        fd = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return ""
        start = max(0, status.st_size - TAIL_BYTES)
        return os.pread(fd, TAIL_BYTES, start).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
