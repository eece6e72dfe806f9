"""Copying words by hand: show one at a time, ask for four of them, then for all.

Only at a terminal. A word is wiped off the screen before the next one is shown. A terminal may
keep its own history; the page says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.cli.input.terminal import ask_words
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadInput
from holdfast.identity.paper.phrase import WordList, places_to_ask, retyped_wrong, wrong_places

TRIES = 3
_WIPE = "\x1b[1A\x1b[2K"  # up one line, and clear it


def check_person() -> None:
    """Raises BadInput without a terminal."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise BadInput("copying by hand needs a terminal", hint="print a sheet with --text instead")


def copy_by_hand(title: str, words: Sequence[str], listed: WordList) -> None:
    """Return after the person has written the words down and typed them all again.

    Raises BadInput if the copy stays wrong; it names positions, never words.
    """
    check_person()
    talk(f"{title}: write each word down, then press Enter. Make sure that no one else sees this screen")
    for number, word in enumerate(words, 1):
        _ask(f"word {number} of {len(words)}: {word}   [Enter] ")
        sys.stderr.write(_WIPE)
        sys.stderr.flush()
    for left in reversed(range(TRIES)):
        wrong = _wrong_in_four(words, listed) or _wrong_in_all(words, listed)
        if not wrong:
            return
        where = "the number of words" if wrong == [0] else f"word {', '.join(map(str, wrong))}"
        talk(f"different: {where}; check your copy" + (" and try again" if left else ""))
    raise BadInput("the copy is still wrong", hint="run the command again, and copy the words again")


def _wrong_in_four(words: Sequence[str], listed: WordList) -> list[int]:
    places = places_to_ask(len(words), SystemEntropy())
    return wrong_places(words, {at: ask_words(f"word {at}") for at in places}, listed)


def _wrong_in_all(words: Sequence[str], listed: WordList) -> list[int]:
    return retyped_wrong(words, ask_words(f"all {len(words)} words, from your copy"), listed)


def _ask(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
    if not sys.stdin.readline():
        raise BadInput("the terminal was closed: nothing was copied")
