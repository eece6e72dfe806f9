"""Looking things up in the memory files: by words, the best line first.

The files themselves are searched, as they are now: what a person has written an instant ago is
found, and no index can be out of date. A line counts by how many of the words it has, rare words
more than common ones, the beginning of a word less than the word; of equals the younger goes first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from holdfast.core.ports import Recalled
from holdfast.errors import HoldfastError
from holdfast.home.days import check_day, day_files, parsed
from holdfast.home.exchange import read_quiet
from holdfast.home.place import DAYS, MEMORY_FILE, MemoryPlace

FILES_MAX = 4_000  # more than ten years of days
_WORD = re.compile(r"\w+")
PREFIX_MIN = 3
PREFIX_WORTH = 0.5
RECENT_WORTH = 1e-6  # settles ties alone


def recall(place: MemoryPlace, words: str, *, limit: int, since: str = "") -> list[Recalled]:
    """The lines that fit best; all of them, the youngest first, where no word is given."""
    asked = list(dict.fromkeys(_words(words)))
    every = list(remembered(place, since=check_day(since) if since else ""))
    ages = {day: at for at, day in enumerate(sorted({one.day for one in every}))}
    told = [(one, _words(one.text)) for one in every]
    rare = {word: _rareness(word, [said for _, said in told]) for word in asked}
    scored: list[tuple[float, int, Recalled]] = []
    for at, (one, said) in enumerate(told):
        score = sum(rare[word] * _fit(word, said) for word in asked)
        if score or not asked:
            scored.append((score + RECENT_WORTH * ages[one.day], -at, one))
    scored.sort(key=lambda found: found[:2], reverse=True)
    return [_scored(one, score) for score, _, one in scored[:limit]]


def remembered(place: MemoryPlace, *, since: str = "") -> Iterable[Recalled]:
    """Every line of MEMORY.md, then of the days from the newest on; unreadable files left out."""
    yield from _of_file(place, MEMORY_FILE, "", since)
    for number, (day, _) in enumerate(day_files(place.days)):
        if number >= FILES_MAX or day < since:
            return
        yield from _of_file(place, f"{DAYS}/{day}.md", day, since)


def _of_file(place: MemoryPlace, name: str, day: str, since: str) -> Iterable[Recalled]:
    try:
        raw = read_quiet(place.folder / name)
    except (HoldfastError, OSError):
        return
    for number, line in parsed((raw or b"").decode(errors="replace"), day=day).lines:
        if line.day >= since:
            yield Recalled(
                file=name, line=number, text=line.text, origin=line.origin, day=line.day, id=line.id
            )


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _rareness(word: str, every: Sequence[Sequence[str]]) -> float:
    having = sum(1 for said in every if _fit(word, said))
    return math.log(1 + (len(every) + 1) / (having + 1))


def _fit(word: str, said: Sequence[str]) -> float:
    if word in said:
        return 1.0
    if len(word) >= PREFIX_MIN and any(one.startswith(word) for one in said):
        return PREFIX_WORTH
    return 0.0


def _scored(one: Recalled, score: float) -> Recalled:
    import msgspec

    return msgspec.structs.replace(one, score=round(score, 4))
