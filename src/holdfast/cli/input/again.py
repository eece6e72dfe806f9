"""Commands that Holdfast suggests: with the options of this command that name the journal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_NAMES = ("--home", "--journal")
_SUGGESTED = re.compile(r"`(holdfast (?:(?:task|effect|approval) [a-z]+|worker|doctor)\b[^`]*)`")


def naming(words: Sequence[str]) -> str:
    """The options of this command line that name the journal, to be put behind another one."""
    found: list[str] = []
    for at, word in enumerate(words):
        name, is_joined, value = word.partition("=")
        if word == "--":
            break
        if name in _NAMES and (is_joined or at + 1 < len(words)):
            found.append(f" {name} {shlex.quote(value if is_joined else words[at + 1])}")
    return "".join(found)


def named(command: str, options: str) -> str:
    """The command with these options, unless it has some of its own."""
    return command if any(name in command for name in _NAMES) else f"{command}{options}"


def all_named(text: str, options: str) -> str:
    """The same for each command in the text."""
    return _SUGGESTED.sub(lambda found: f"`{named(found[1], options)}`", text) if options else text
