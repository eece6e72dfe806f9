"""HEARTBEAT.md: a part that Holdfast writes, between two marks, and the rest, which is people's.

True at all times: no byte outside of the marks is changed. People may write anywhere outside of
them, also on the lines beside them, and may move both marks together with what is between them;
what is between them is replaced. Without marks the block is added at the end. Marks that are
not exactly one beginning and one end behind it are not ours to fix: the file stays as it is, the
trouble is reported, and a person removes the odd one.

Several instances share what is people's (`FreePart`); the block is each instance's own.

Pure: bytes in, bytes out. The file is read and written by handoff_writer.py and projection.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import BadInput
from holdfast.memory.handoff_facts import TaskFacts

TASKS_MAX = 50
BEGIN = b"<!-- holdfast:tasks begin: written by Holdfast, your words go outside of these marks -->"
END = b"<!-- holdfast:tasks end -->"
ANY_BEGIN = re.compile(rb"<!-- holdfast:tasks begin[^>\n]*-->")
ANY_END = re.compile(rb"<!-- holdfast:tasks end[^>\n]*-->")
PLACE = b"<!-- holdfast:tasks -->"  # the block, in what instances share
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
    found = _block_in(before)
    if isinstance(found, DamagedMarks):
        return found
    if found is None:
        return before + _gap(before) + BEGIN + b"\n" + block + END + b"\n"
    begin, end = found
    return before[: begin.end()] + b"\n" + block + before[end.start() :]


class FreePart:
    """What is people's in the file, as text that has one mark where the block is."""

    def __init__(self) -> None:
        self._block = b""

    def opened(self, raw: bytes, *, newest: bool = True) -> bytes:
        """Without the block; it is remembered where this is the `newest` version. Raises BadInput."""
        found = _block_in(raw)
        if isinstance(found, DamagedMarks):
            raise BadInput(found.why)
        if found is None:
            return raw
        begin, end = found
        if newest:
            self._block = raw[begin.start() : end.end()]
        return raw[: begin.start()] + PLACE + raw[end.end() :]

    def closed(self, free: bytes) -> bytes:
        """With the block at its first mark; without a mark, at the end."""
        block = self._block
        before, mark, after = free.partition(PLACE)
        if not mark:
            return free if not block else free + _gap(free) + block + b"\n"
        after = after.replace(PLACE + b"\n", b"").replace(PLACE, b"")
        return before + (block or BEGIN + b"\n" + END) + after


def free_lines(raw: bytes) -> list[bytes]:
    """The lines that are people's. Of a file whose marks are not a pair: all but the marks. Of any other file: all."""
    found = _block_in(raw)
    if isinstance(found, tuple):
        raw = raw[: found[0].start()] + raw[found[1].end() :]
    return [line for line in raw.split(b"\n") if not (ANY_BEGIN.search(line) or ANY_END.search(line))]


def _block_in(raw: bytes) -> tuple[re.Match[bytes], re.Match[bytes]] | DamagedMarks | None:
    """Both marks; None where the file has none."""
    begins, ends = list(ANY_BEGIN.finditer(raw)), list(ANY_END.finditer(raw))
    if not begins and not ends:
        return None
    if len(begins) != 1 or len(ends) != 1:
        return DamagedMarks(
            f"HEARTBEAT.md has {len(begins)} begin marks and {len(ends)} end marks; keep one of each, or none"
        )
    if ends[0].start() < begins[0].end():
        return DamagedMarks("HEARTBEAT.md has its end mark before its begin mark")
    return begins[0], ends[0]


def _gap(before: bytes) -> bytes:
    """What is put between text and a block that follows it."""
    if not before or before.endswith(b"\n\n"):
        return b""
    return b"\n" if before.endswith(b"\n") else b"\n\n"


def _plain(text: str) -> str:
    """Without anything that could be taken for a mark."""
    return text.replace("<!--", "<! --").replace("-->", "-- >")
