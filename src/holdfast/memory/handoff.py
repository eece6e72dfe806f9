"""The hand-off: where are we, what is pending, what is decided, what changed. As text.

Written for a reader who starts with nothing but the file: the agent after a restart, or a person
at night. Four sections, always there and always in this order; one line for each fact, the most
important first; a bound on everything, and where something is left out the line says how much.
The words are stable: a line changes only where its fact does.

Values that came from outside (arguments, questions, results, reasons) are quoted as JSON, on
one line: none of them can look like a line of ours, a heading or a mark. `parse` reads the text
back, for the day on which the journal is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.errors import BadInput

FORMAT = 1
TASKS_MAX = 20
LINES_MAX = {"pending": 30, "decided": 20, "changed": 30}
LINE_CHARS_MAX = 400
QUOTED_CHARS_MAX = 160
TEXT_CHARS_MAX = 100_000  # more than all bounds together: what is larger is not ours

SECTIONS = (
    ("where", "Where are we"),
    ("pending", "What is pending"),
    ("decided", "What is decided"),
    ("changed", "What changed"),
)
_EMPTY = {
    "where": "no task is open",
    "pending": "nothing waits",
    "decided": "nothing was decided yet",
    "changed": "nothing is recorded yet",
}
JOURNAL, FILES = "the journal", "its own files"  # what it was made from
_BASIS = "Written by Holdfast from {}, again after each change; do not edit.\n"
_HEAD = re.compile(
    r"# Hand-off of (?P<agent>[^\n]*)\n\n"
    r"Format 1, as of (?P<at>\S+ \S+) UTC\.\n"
    r"(?:Id: (?P<id>[^\n]*)\n)?"
)
_TITLE = re.compile(r"\n## ([^\n]+)\n\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line, and when it came true; `rank` puts the pressing ones first."""

    at_ms: int
    text: str
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """The four answers at one moment: everything that was recorded before `at_ms` is in them."""

    agent: str
    agent_id: str
    at_ms: int
    basis: str = JOURNAL
    where: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def lines(self, section: str) -> tuple[str, ...]:
        return getattr(self, section)

    def same_as(self, other: Handoff | None) -> bool:
        """Whether it says the same, whenever that was."""
        return other is not None and all(
            getattr(self, name) == getattr(other, name)
            for name in ("agent", "agent_id", "basis", *(name for name, _ in SECTIONS))
        )


def bounded(facts: Iterable[Fact], section: str, *, more: int = 0) -> tuple[str, ...]:
    """The lines of a section: pressing ones first, then the newest; what is left out is counted.
    Facts of one moment stay as they are given: a task gives what came last first."""
    ordered = sorted(facts, key=lambda fact: (fact.rank, -fact.at_ms))
    kept = ordered[: LINES_MAX[section]]
    left = len(ordered) - len(kept) + more
    lines = [_line(fact.text) for fact in kept]
    return (*lines, f"and {left:,} more") if left else tuple(lines)


def render(handoff: Handoff) -> str:
    """The text of handoff.md."""
    parts = [
        f"# Hand-off of {_line(handoff.agent) or 'an agent without a name'}\n\n",
        f"Format {FORMAT}, as of {moment(handoff.at_ms)} UTC.\n",
        f"Id: {_line(handoff.agent_id)}\n" if handoff.agent_id else "",
        _BASIS.format(handoff.basis),
        "Read this first on every start. `holdfast handoff` prints it as it is now.\n",
    ]
    for name, title in SECTIONS:
        lines = handoff.lines(name) or (_EMPTY[name],)
        parts.append(f"\n## {title}\n\n" + "".join(f"- {line}\n" for line in lines))
    return "".join(parts)


def parse(text: str) -> Handoff:
    """What the text says. Raises BadInput where it is not a hand-off as `render` writes it."""
    head = _HEAD.match(text) if len(text) <= TEXT_CHARS_MAX else None
    if head is None:
        raise BadInput("the text is not a hand-off that Holdfast wrote")
    try:
        at = datetime.strptime(head["at"], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
    except ValueError:
        raise BadInput("the hand-off does not have a valid time in its first lines") from None
    intro, *parts = _TITLE.split(text[head.end() :])
    if parts[::2] != [title for _, title in SECTIONS]:
        raise BadInput("the hand-off does not have exactly the four sections that Holdfast writes")
    found: dict[str, tuple[str, ...]] = {}
    for (name, _), body in zip(SECTIONS, parts[1::2], strict=True):
        lines = tuple(line[2:] for line in body.split("\n") if line.startswith("- "))
        found[name] = () if lines == (_EMPTY[name],) else lines
    return Handoff(
        agent=head["agent"],
        agent_id=head["id"] or "",
        at_ms=round(at.timestamp() * 1000),
        basis=FILES if _BASIS.format(FILES) in intro else JOURNAL,
        **found,
    )


def quoted(value: object, *, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """A value from outside, as JSON on one line, cut to size."""
    shown = json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)
    if len(shown) > chars_max:
        shown = shown[: chars_max - 1] + "…"
    return _printable(shown)


def moment(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03d}"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count != 1 else f"1 {what.removesuffix('s')}"


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def _line(text: str) -> str:
    flat = " ".join(_printable(text).split())
    return flat if len(flat) <= LINE_CHARS_MAX else flat[: LINE_CHARS_MAX - 1] + "…"


def first_lines(lines: Sequence[str], *, limit: int, more: int = 0) -> tuple[str, ...]:
    """These lines, at most so many; what is left out is counted."""
    left = max(0, len(lines) - limit) + more
    kept = tuple(_line(line) for line in lines[:limit])
    return (*kept, f"and {left:,} more open tasks") if left else kept
