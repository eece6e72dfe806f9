"""Asking for a typed word before something that cannot be taken back."""

from __future__ import annotations

import sys

from holdfast.cli.screen.screen import talk
from holdfast.errors import BadInput


def confirm(word: str, what: str, *, yes: bool) -> None:
    """Return where the word was typed, or where --yes stands for it. Raises BadInput."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"nobody is there to type {word!r}", hint="give --yes if you are sure")
    talk(what)
    print(f"type {word!r} to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != word:
        raise BadInput("not confirmed: nothing was changed", hint=f"type {word!r}, or give --yes")
