"""The recovery phrase: 32 random bytes as 24 words of BIP-39's English list, and the repair of one mistake.

The secret is the 32 bytes; words are how people keep them. The checksum of 24 words has only 8
bits, so one wrong phrase in 256 passes it: anyone who can, also compares what is derived from the
phrase with the public key log (`find_phrase` of paper_acts.py does).

A `Phrase` never shows itself; `words` is for the sheet of paper and for nothing else.

A phrase with one mistake is found again; a phrase with two is refused. Tried: one word wrong or unreadable,
one word left out, two words swapped, and what was typed as it is. Of these about one in 256 passes the
phrase's own checksum, so the checksum decides nothing: the caller says, by `matches`, whether a candidate is
the one behind the public key log (its recovery key has the digest that the log names) or behind the check
line of the sheet. A candidate that no one confirms is never returned, and where several are confirmed none
is.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from holdfast.core.clock import Entropy
from holdfast.errors import BadPhrase
from holdfast.identity.records.secret_bytes import SecretBytes, Wiped

if TYPE_CHECKING:
    from mnemonic import Mnemonic

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
            raise ValueError("two words of this list begin with the same four letters")

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


SECRET_BYTES = 32
WORDS = 24
WORD_BITS = 11


class Phrase(Wiped):
    """The secret behind a recovery sheet. Wipe it, or use it in a `with` block."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise BadPhrase(f"the secret of a phrase must have {SECRET_BYTES} bytes; this one has {len(secret)}")
        self._secret = SecretBytes(secret)

    @property
    def secret(self) -> bytes:
        return self._secret.reveal()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(words_of(self._secret.reveal()))

    def seed(self, passphrase: str = "") -> SecretBytes:
        """BIP-39's 64 bytes, from which all keys of the paper are derived."""
        return SecretBytes(seed_of(self.words, passphrase))

    def wipe(self) -> None:
        self._secret.wipe()

    def __eq__(self, other: object) -> bool:
        return self._secret == other._secret if isinstance(other, Phrase) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Phrase(...)"


def new_phrase(entropy: Entropy) -> Phrase:
    return Phrase(entropy.bytes(SECRET_BYTES))


def read_phrase(text: str) -> Phrase:
    """The phrase that someone typed or scanned. Raises BadPhrase, naming places, never words."""
    numbers = english().read(text)
    unknown = [place for place, number in enumerate(numbers, 1) if number is None]
    if len(numbers) != WORDS:
        raise BadPhrase(f"a recovery phrase has {WORDS} words; you gave {len(numbers)}")
    if unknown:
        raise BadPhrase(f"{places_text(unknown)} not in the word list")
    secret = find_secret([number for number in numbers if number is not None])
    if secret is None:
        raise BadPhrase("the checksum of the words is wrong: one word is wrong, or two are swapped")
    return Phrase(secret)


def words_of(secret: bytes) -> list[str]:
    """BIP-39's words of 16 to 32 bytes."""
    try:
        return _bip39().to_mnemonic(secret).split()
    except ValueError:
        raise BadPhrase(f"BIP-39 has no phrase for a secret of {len(secret)} bytes") from None


def find_secret(numbers: Sequence[int]) -> bytes | None:
    """The bytes behind these words, or None where the checksum says that they are not right."""
    if len(numbers) not in range(12, 25, 3):
        return None
    whole = 0
    for number in numbers:
        whole = whole << WORD_BITS | number
    check_bits = len(numbers) // 3
    secret = (whole >> check_bits).to_bytes(check_bits * 4, "big")
    check = hashlib.sha256(secret).digest()[0] >> (8 - check_bits)
    return secret if check == whole & ((1 << check_bits) - 1) else None


def seed_of(words: Sequence[str], passphrase: str = "") -> bytes:
    return _bip39().to_seed(" ".join(words), passphrase)


@functools.cache
def english() -> WordList:
    return WordList(_bip39().wordlist)


@functools.cache
def _bip39() -> Mnemonic:
    from mnemonic import Mnemonic

    return Mnemonic("english")


def places_text(places: Sequence[int]) -> str:
    named = ", ".join(str(place) for place in places)
    return f"word {named} is" if len(places) == 1 else f"words {named} are"


ASKED = 4


def places_to_ask(count: int, entropy: Entropy) -> list[int]:
    """Four different places among so many words, from 1, in rising order."""
    chosen: set[int] = set()
    while len(chosen) < min(ASKED, count):
        # Of 65,536 values no place gets more than one in a thousand too many.
        chosen.add(int.from_bytes(entropy.bytes(2), "big") % count + 1)
    return sorted(chosen)


def wrong_places(words: Sequence[str], answers: Mapping[int, str], listed: WordList) -> list[int]:
    """The places at which the answer is not the word; empty where all are right."""
    return [
        place
        for place, answer in answers.items()
        if listed.find(answer.strip().lower()) != listed.find(words[place - 1])
    ]


def retyped_wrong(words: Sequence[str], text: str, listed: WordList) -> list[int]:
    """The places at which the whole text, typed again, differs; [0] where its length does."""
    typed = listed.read(text)
    if len(typed) != len(words):
        return [0]
    return [
        place for place, (number, word) in enumerate(zip(typed, words, strict=True), 1) if number != listed.find(word)
    ]


_LISTED = 2_048


@dataclass(frozen=True, slots=True)
class Repaired:
    """A phrase that was confirmed, and what had to be changed for it, in words for a person."""

    phrase: Phrase
    change: str  # empty where nothing was


def repair(text: str, matches: Callable[[Phrase], bool]) -> Repaired:
    """The one phrase that is meant by this text. Raises BadPhrase where there is none.

    `matches` is called up to a few hundred times; one that derives a key takes about 0.3 s in all.
    """
    confirmed: list[Repaired] = []
    for candidate in candidates(english().read(text)):
        if confirmed and candidate.phrase == confirmed[0].phrase:
            continue  # several changes may lead to the same words
        if matches(candidate.phrase):
            confirmed.append(candidate)
            if not candidate.change:
                break
    if not confirmed:
        raise BadPhrase(
            "these words do not belong to this agent, and correcting one word does not help",
            hint="compare each word with the sheet, and check that the sheet belongs to this agent",
        )
    if len(confirmed) > 1:
        raise BadPhrase(f"Holdfast cannot repair these words: {len(confirmed)} different corrections are possible")
    return confirmed[0]


def candidates(numbers: Sequence[int | None]) -> Iterator[Repaired]:
    """Every phrase within one mistake whose checksum is right; the typed one first."""
    known = [number for number in numbers if number is not None]
    unknown = [place for place, number in enumerate(numbers) if number is None]
    if len(numbers) == WORDS and not unknown:
        yield from _phrase(known, "")
        yield from _swapped(known)
        for place in range(WORDS):
            yield from _changed(known, place)
    elif len(numbers) == WORDS and len(unknown) == 1:
        place = unknown[0]
        yield from _changed([*known[:place], 0, *known[place:]], place)
    elif len(numbers) == WORDS - 1 and not unknown:
        for place in range(WORDS):
            for number in range(_LISTED):
                what = f"word {place + 1} was missing"
                yield from _phrase([*known[:place], number, *known[place:]], what)
    elif len(numbers) != WORDS:
        raise BadPhrase(f"a recovery phrase has {WORDS} words; you gave {len(numbers)}")
    else:
        raise BadPhrase(f"{len(unknown)} words are unreadable; Holdfast can repair at most one")


def _swapped(known: list[int]) -> Iterator[Repaired]:
    for left, right in combinations(range(WORDS), 2):
        swapped = known.copy()
        swapped[left], swapped[right] = known[right], known[left]
        if swapped != known:
            yield from _phrase(swapped, f"words {left + 1} and {right + 1} were swapped")


def _changed(known: list[int], place: int) -> Iterator[Repaired]:
    for number in range(_LISTED):
        if number != known[place]:
            changed = [*known[:place], number, *known[place + 1 :]]
            yield from _phrase(changed, f"word {place + 1} was wrong")


def _phrase(numbers: list[int], change: str) -> Iterator[Repaired]:
    secret = find_secret(numbers)
    if secret is not None:
        yield Repaired(Phrase(secret), change)
