"""What a docstring tells a model: its first paragraph, and what its section `Args:` says of each
argument."""

from __future__ import annotations

import inspect
import re

_HEADS = frozenset(("args:", "arguments:", "parameters:"))
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^()]*\))?\s*:\s*(.*)")


def first_paragraph(text: str | None) -> str:
    """The first paragraph, on one line."""
    lines = inspect.cleandoc(text or "").split("\n")
    kept: list[str] = []
    for line in lines:
        if not line.strip() or line.strip().lower() in _HEADS:
            break
        kept.append(line.strip())
    return " ".join(kept)


def described_arguments(text: str | None) -> dict[str, str]:
    """Name to description, from `Args:` and lines such as `cents: what is paid`."""
    found: dict[str, list[str]] = {}
    inside = False
    entry_indent = -1
    current: list[str] | None = None
    for line in inspect.cleandoc(text or "").split("\n"):
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if not inside:
            inside = indent == 0 and bare.lower() in _HEADS
            continue
        if bare and indent == 0:
            inside, entry_indent, current = bare.lower() in _HEADS, -1, None
            continue
        if not bare:
            continue
        if entry_indent < 0 or indent <= entry_indent:
            entry_indent = indent
            entry = _ENTRY.fullmatch(bare)
            current = None if entry is None else found.setdefault(entry[1], [])
            bare = "" if entry is None else entry[2]
        if current is not None and bare:
            current.append(bare)
    return {name: " ".join(lines) for name, lines in found.items()}
