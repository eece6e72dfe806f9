"""What a person types at the terminal, and what comes from a descriptor instead.

Secrets never come from the command line or the environment: `ps` and /proc show both to other
programs. No message shows what was read, not even an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from holdfast.cli.screen.screen import talk
from holdfast.cli.screen.wrapping import screen_width, wrapped
from holdfast.core.notices import counted
from holdfast.errors import BadInput, BadUsage

WORDS = 24
WORDS_BYTES_MAX = 64 * 1024
TRIES = 3


def confirm(word: str, what: str, *, yes: bool) -> None:
    """Return if the person typed the word, or gave --yes. Raises BadInput."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput("stdin is not a terminal; cannot ask for confirmation", hint="add --yes if you are sure")
    talk(what)
    if ask_line(f"type {word!r} to continue: ").strip() != word:
        raise BadInput("not confirmed: nothing was changed", hint=f"type {word!r}, or add --yes")


def ask_line(prompt: str) -> str:
    """What the person types, with its line break; empty after Ctrl-D."""
    print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()


def ask_hidden(prompt: str, *, for_what: str, hint: str) -> str:
    """What the person types, not shown. Raises BadInput without a terminal."""
    if not sys.stdin.isatty():
        raise BadInput(f"stdin is not a terminal; cannot ask for {for_what}", hint=hint)
    from getpass import getpass

    text = wrapped(f"{prompt} (not\N{NO-BREAK SPACE}shown):", screen_width())
    return getpass(text.replace("\N{NO-BREAK SPACE}", " ") + " ", stream=sys.stderr)


def ask_twice(prompt: str, *, for_what: str, hint: str, check: Callable[[str], object] = len) -> str:
    """What the person types two times alike. The check raises BadUsage for what cannot be used; a person may then try
    again, as after a typo."""
    from getpass import getpass

    for left in reversed(range(TRIES)):
        first = ask_hidden(prompt, for_what=for_what, hint=hint)
        try:
            check(first)
        except BadUsage as error:
            if not left:
                raise
            talk(f"{error.message}; try again")
            continue
        if getpass("once more: ", stream=sys.stderr) == first:
            return first
        talk("the two entries differ" + ("; try again" if left else ""))
    raise BadInput("the two entries differ: nothing was changed", hint="run it again")


def ask_words(what: str, option: str = "--from-fd") -> str:
    return ask_hidden(what, for_what="the words", hint=f"give {option} 0 to read the words from standard input")


def ask_sheet(what: str, option: str = "--from-fd") -> str:
    """The words of a sheet or share: all on one line, or the text of a code; or on several lines, then Enter alone."""
    text = ask_words(f"{what}; the first four letters of each are enough. On one line or several", option)
    if ":" in text or len(text.split()) >= WORDS:
        return text
    while (
        more := ask_words(f"{counted(len(text.split()), 'word', 'words')} so far; more, or Enter to end", option)
    ).strip():
        text += f" {more}"
    return text


def read_words(word: str, option: str = "--from-fd") -> str:
    """The text at a descriptor."""
    raw = read_descriptor(option, word, WORDS_BYTES_MAX + 1)
    if len(raw) > WORDS_BYTES_MAX:
        raise BadInput(f"{option} {word}: more than {WORDS_BYTES_MAX:,} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{option} {word}: not UTF-8 text") from None


def read_descriptor(option: str, word: str, bytes_max: int) -> bytes:
    """At most so many bytes from a descriptor of the caller, which stays open."""
    number = descriptor(option, word)
    try:
        with os.fdopen(os.dup(number), "rb") as file:
            return file.read(bytes_max)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{option} {word} cannot be read: {error}") from error


def descriptor(option: str, word: str) -> int:
    """The number of a descriptor that is not a terminal."""
    if not word.isascii() or not word.isdigit():
        raise BadInput(f"{option}: {word!r} is not a descriptor number")
    if os.isatty(int(word)):
        raise BadInput(f"{option} {word}: a terminal would show the secret", hint="omit the option: Holdfast asks")
    return int(word)
