"""Words as people copy them: read forgivingly, understood strictly.

Capitals, line breaks, numbering ("7.", "7)"), commas and full-width letters do not matter, and
four letters are enough: in both lists (BIP-39 English, SLIP-39) they name one word. Nothing is
guessed: whatever is not a word of the list, or its beginning, is None and named by its place.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

PREFIX_CHARS = 4
TEXT_CHARS_MAX = 4_096  # 33 words of 8 letters are 300; a page that was pasted whole fits

_SPACES = re.compile(r"[\s,;]+")
_NUMBERING = re.compile(r"^[0-9]{1,2}[.):]?")


class WordList:
    """The words of one standard, by number and by what people write of them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._by_prefix = {word[:PREFIX_CHARS]: word for word in self.words}
        if len(self._by_prefix) != len(self.words):
            raise ValueError("four letters do not name one word of this list")

    def find(self, written: str) -> int | None:
        """The number of the word that is meant, or None."""
        exact = self._numbers.get(written)
        if exact is not None:
            return exact
        if len(written) < PREFIX_CHARS:
            return None
        word = self._by_prefix.get(written[:PREFIX_CHARS])
        return self._numbers[word] if word is not None and word.startswith(written) else None

    def read(self, text: str) -> list[int | None]:
        """The numbers of the words of a text, None for those that are not understood."""
        return [self.find(one) for one in split(text)]


def split(text: str) -> list[str]:
    """The words as written, in small letters, without their numbering."""
    plain = unicodedata.normalize("NFKC", text[:TEXT_CHARS_MAX]).lower()
    bare = (_NUMBERING.sub("", one, count=1) for one in _SPACES.split(plain))
    return [one for one in bare if one]
