"""A phrase with one mistake is found again; a phrase with two is refused.

Tried: one word wrong or unreadable, one word left out, two words swapped, and what was typed as
it is. Of these about one in 256 passes the phrase's own checksum, so the checksum decides
nothing: the caller says, by `matches`, whether a candidate is the one behind the public key log
(its recovery key has the digest that the log names) or behind the check line of the sheet. A
candidate that no one confirms is never returned, and where several are confirmed none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from holdfast.errors import BadPhrase
from holdfast.identity.paper.phrase import WORDS, Phrase, english, find_secret

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
            "these are not the words of this agent, not even with one mistake",
            hint="compare each word with the sheet; is it the sheet of this agent?",
        )
    if len(confirmed) > 1:
        raise BadPhrase(f"{len(confirmed)} phrases are within one mistake of these words")
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
        raise BadPhrase(f"a recovery phrase has {WORDS} words; {len(numbers)} were given")
    else:
        raise BadPhrase(f"{len(unknown)} words are unreadable; at most one can be repaired")


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
