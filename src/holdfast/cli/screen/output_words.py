"""How a person gets the words of an agent: copied by hand at a terminal, or from a descriptor.

Holdfast never writes them to standard output or to its own files. Copying by hand shows one word at a time, asks for
four of them, then for all. A word is wiped off the screen before the next one is shown. A terminal may keep its own
history; the page says so.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence

from holdfast.cli.input.terminal import ask_line, ask_sheet, ask_words
from holdfast.cli.screen.screen import talk
from holdfast.core.clock import SystemEntropy
from holdfast.errors import BadInput
from holdfast.host.private_files import write_all
from holdfast.identity.paper.phrase import Phrase, WordList, english, places_to_ask, retyped_wrong, wrong_places

TRIES = 3
_WIPE = "\x1b[1A\x1b[2K"  # up one line, and clear it


def words_out(fd: str | None, name: str) -> Callable[[Phrase], None]:
    """The function that shows the words. Raises BadInput if nobody would see them."""
    if fd is None:
        if not sys.stdin.isatty() or not sys.stderr.isatty():
            raise BadInput(
                "the 24 words can be shown only at a terminal",
                hint="run the command at a terminal, or give --words-fd N to write the words to descriptor N",
            )
        return lambda phrase: copy_by_hand(f"recovery words of {name}", phrase.words, english())
    if not fd.isascii() or not fd.isdigit() or int(fd) in (0, 1):
        raise BadInput(f"--words-fd: descriptor {fd!r} is not allowed", hint="use descriptor 3 or higher")
    try:
        found = os.fstat(int(fd))
        appends = fcntl.fcntl(int(fd), fcntl.F_GETFL) & os.O_APPEND
    except (OSError, OverflowError) as error:
        raise BadInput(f"--words-fd {fd} is not open") from error
    if stat.S_ISREG(found.st_mode):
        _check_file(fd, found, appends=bool(appends))
    return lambda phrase: _written(phrase, int(fd))


def _check_file(fd: str, found: os.stat_result, *, appends: bool) -> None:
    """Refuse a file that a second run would empty, or that others may read: it is the only copy."""
    if not appends:
        raise BadInput(
            f"--words-fd {fd} is not open for appending: a second run would overwrite the words",
            hint=f"open the file for appending: {fd}>> FILE",
        )
    if found.st_mode & 0o077:
        raise BadInput(
            f"--words-fd {fd} is a file that others may read (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"run `umask 077`, then use a new file in /dev/shm: {fd}>> /dev/shm/FILE",
        )


def _written(phrase: Phrase, fd: int) -> None:
    try:
        write_all(fd, (" ".join(phrase.words) + "\n").encode())
    except OSError as error:
        raise BadInput(f"--words-fd {fd} cannot be written: {error.strerror}") from error


def check_person() -> None:
    """Raises BadInput without a terminal."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise BadInput("copying by hand needs a terminal", hint="print a sheet with --text instead")


def copy_by_hand(title: str, words: Sequence[str], listed: WordList) -> None:
    """Return after the person has written the words down and typed them all again.
    Raises BadInput if the copy stays wrong; it names positions, never words."""
    check_person()
    talk(f"{title}: write each word down, then press Enter. Make sure that no one else sees this screen")
    _show(words, range(1, len(words) + 1))
    some = places_to_ask(len(words), SystemEntropy())
    _until_right(words, listed, lambda: wrong_places(words, _typed_at(some), listed))
    prompt = f"all {len(words)} words, from your copy"
    _until_right(words, listed, lambda: retyped_wrong(words, ask_sheet(prompt), listed))


def _until_right(words: Sequence[str], listed: WordList, ask: Callable[[], list[int]]) -> None:
    """Ask; then ask again only for the words that were wrong. Those that stay wrong are shown again: the same words
    are good, the copy is not."""
    wrong = ask()
    for left in reversed(range(TRIES)):
        if not wrong:
            return
        where = "the number of words" if wrong == [0] else f"word {', '.join(map(str, wrong))}"
        talk(f"your copy differs in {where}; check it" + (" and try again" if left else ""))
        if left:
            if wrong != [0] and left < TRIES - 1:
                _show(words, wrong)
            wrong = ask() if wrong == [0] else wrong_places(words, _typed_at(wrong), listed)
    raise BadInput("the copy is still wrong", hint="run the command again, and copy the words again")


def _show(words: Sequence[str], places: Iterable[int]) -> None:
    for number in places:
        if not ask_line(f"word {number} of {len(words)}: {words[number - 1]}   [Enter] "):
            raise BadInput("the terminal was closed: nothing was copied")
        sys.stderr.write(_WIPE)
        sys.stderr.flush()


def _typed_at(places: Sequence[int]) -> dict[int, str]:
    return {at: ask_words(f"word {at}") for at in places}
