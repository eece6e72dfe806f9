"""HEARTBEAT.md: a part that Holdfast writes, between two marks, and the rest, which is people's.

True at all times: no byte outside of the marks is changed. People may write anywhere outside of
them, also on the lines beside them, and may move both marks together with what is between them;
what is between them is replaced. Without marks the block is added at the end. Marks that are
not exactly one beginning and one end behind it are not ours to fix: the file stays as it is, the
trouble is reported, and a person removes the odd one.

Pure: bytes in, bytes out. The file is read and written by upkeep.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.memory.handoff_facts import TaskFacts

TASKS_MAX = 50
BEGIN = b"<!-- holdfast:tasks begin: written by Holdfast, your words go outside of these marks -->"
END = b"<!-- holdfast:tasks end -->"
ANY_BEGIN = re.compile(rb"<!-- holdfast:tasks begin[^>\n]*-->")
ANY_END = re.compile(rb"<!-- holdfast:tasks end[^>\n]*-->")
NEW = b"# Heartbeat\n\nWhat is active. Write what you like outside of the marks below.\n"


@dataclass(frozen=True, slots=True)
class DamagedMarks:
    """The marks are not a pair: nothing may be written."""

    why: str


def block_of(tasks: Sequence[TaskFacts], *, more: int = 0) -> bytes:
    """The lines between the marks: one for each open task, without times that would churn."""
    lines = [f"- [ ] {task.name} ({task.task_id}): {task.state}, {_plain(task.waits)}\n" for task in tasks[:TASKS_MAX]]
    left = len(tasks) - len(lines) + more
    if left > 0:
        lines.append(f"- [ ] and {left:,} more\n")
    return ("".join(lines) or "No task is open.\n").encode()


def merged(before: bytes | None, block: bytes) -> bytes | DamagedMarks:
    """The file with the block in its place; None where there is no file yet."""
    if before is None:
        before = NEW
    begins, ends = list(ANY_BEGIN.finditer(before)), list(ANY_END.finditer(before))
    if not begins and not ends:
        gap = b"" if not before or before.endswith(b"\n\n") else b"\n"
        gap = gap if before.endswith(b"\n") or not before else b"\n\n"
        return before + gap + BEGIN + b"\n" + block + END + b"\n"
    if len(begins) != 1 or len(ends) != 1:
        return DamagedMarks(
            f"HEARTBEAT.md has {len(begins)} begin marks and {len(ends)} end marks; keep one of each, or none"
        )
    begin, end = begins[0], ends[0]
    if end.start() < begin.end():
        return DamagedMarks("HEARTBEAT.md has its end mark before its begin mark")
    return before[: begin.end()] + b"\n" + block + before[end.start() :]


def _plain(text: str) -> str:
    """Without anything that could be taken for a mark."""
    return text.replace("<!--", "<! --").replace("-->", "-- >")
