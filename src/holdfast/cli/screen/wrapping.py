"""Lines that fit a screen: wrapped between words, never inside one, with what follows in the same column.

A line that is wider than the screen keeps its own indentation. If it is a name and a text with two blanks or more
between them (`state    queued, running, ...`), or two names and a text, the text continues below itself, unless a word
of it is too long for that. Lines under `examples:` are commands:
they stay as they are, because a person copies them.
"""

from __future__ import annotations

import re
import shutil
from textwrap import wrap

WIDTH_MAX = 100
_NAMED = re.compile(r" *\S+(?: \S+){0,3}  +(?=\S)")
_TWICE_NAMED = re.compile(rf"{_NAMED.pattern}\S+  +(?=\S)")
_LABELLED = re.compile(r" *(?:hint|fix|see|note|warning|WARNING|error): ")


def screen_width() -> int:
    """The columns of the terminal, at most 100: longer lines are hard to read."""
    return min(shutil.get_terminal_size().columns, WIDTH_MAX)


def help_width() -> int:
    return screen_width() - 2


def split_lines(text: str, width: int, *, indent: str = "") -> list[str]:
    return wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def wrapped(text: str, width: int) -> str:
    lines: list[str] = []
    example = False
    for line in text.split("\n"):
        example = line == "examples:" or (example and line.startswith("  "))
        lines += [line] if example or len(line) <= width else _wrap(line, width)
    return "\n".join(lines)


def _wrap(line: str, width: int) -> list[str]:
    longest = max(len(word) for word in line.split())
    begins = [len(found[0]) for one in (_TWICE_NAMED, _NAMED, _LABELLED) if (found := one.match(line))]
    fitting = [one for one in begins if one <= width // 2 and one + longest <= width]
    hang = fitting[0] if fitting else len(line) - len(line.lstrip())
    return wrap(
        line,
        width,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )
