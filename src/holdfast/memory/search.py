"""Looking things up in the memory files: by words, the best line first.

The files themselves are searched, as they are now: what a person has written an instant ago is
found, and no index can be out of date. A line counts by how many of the words it has, rare words
more than common ones, the beginning of a word less than the word; of equals the younger goes first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.core.ports import Recalled, Recollection, Unread
from holdfast.errors import HoldfastError
from holdfast.layout.agent_home import DAYS, MEMORY_FILE, MemoryPlace
from holdfast.memory.exchange import read_quiet
from holdfast.memory.lines import check_day, is_day, parsed

FILES_MAX = 4_000  # more than ten years of days
_WORD = re.compile(r"\w+")
PREFIX_MIN = 3
PREFIX_WORTH = 0.5
RECENT_WORTH = 1e-6  # settles ties alone


def recall(
    place: MemoryPlace, words: str, *, limit: int, since: str = "", waiting: Sequence[Recalled] = ()
) -> Recollection:
    """The lines that fit best; all of them, the youngest first, where no word is given.
    `waiting`: lines that are to be written into the files; one that is there already counts once."""
    asked = list(dict.fromkeys(_words(words)))
    unread: list[Unread] = []
    every = list(_remembered(place, check_day(since) if since else "", unread))
    there = {one.id for one in every if one.id}
    every += [one for one in waiting if one.id not in there and one.day >= since]
    ages = {day: at for at, day in enumerate(sorted({one.day for one in every}))}
    told = [(one, _words(one.text)) for one in every]
    rare = {word: _rareness(word, [said for _, said in told]) for word in asked}
    scored: list[tuple[float, int, Recalled]] = []
    for at, (one, said) in enumerate(told):
        score = sum(rare[word] * _fit(word, said) for word in asked)
        if score or not asked:
            scored.append((score + RECENT_WORTH * ages[one.day], -at, one))
    scored.sort(key=lambda found: found[:2], reverse=True)
    lines = tuple(msgspec.structs.replace(one, score=round(score, 4)) for score, _, one in scored[:limit])
    return Recollection(lines=lines, unread=tuple(unread))


def _remembered(place: MemoryPlace, since: str, unread: list[Unread]) -> Iterable[Recalled]:
    """Every line of MEMORY.md, then of the days from the newest on; what cannot be read is named in `unread`."""
    yield from _of_file(place, MEMORY_FILE, "", since, unread)
    try:
        for number, (day, _) in enumerate(day_files(place.days)):
            if day < since:
                return
            if number >= FILES_MAX:
                unread.append(Unread(file=DAYS, why=f"days before {day} are not searched"))
                return
            yield from _of_file(place, f"{DAYS}/{day}.md", day, since, unread)
    except OSError as error:
        unread.append(Unread(file=DAYS, why=f"it cannot be read: {error.strerror}"))


def _of_file(place: MemoryPlace, name: str, day: str, since: str, unread: list[Unread]) -> Iterable[Recalled]:
    try:
        raw = read_quiet(place.folder / name)
    except (HoldfastError, OSError) as error:
        unread.append(unread_of(name, error))
        return
    for number, line in parsed((raw or b"").decode(errors="replace"), day=day).lines:
        if line.day >= since:
            yield Recalled(file=name, line=number, text=line.text, origin=line.origin, day=line.day, id=line.id)


def unread_of(name: str, error: HoldfastError | OSError) -> Unread:
    if isinstance(error, HoldfastError):
        return Unread(file=name, why=error.message, hint=error.hint)
    return Unread(file=name, why=str(error))


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _rareness(word: str, every: Sequence[Sequence[str]]) -> float:
    having = sum(1 for said in every if _fit(word, said))
    return math.log(1 + (len(every) + 1) / (having + 1))


def _fit(word: str, said: Sequence[str]) -> float:
    if word in said:
        return 1.0
    begun = len(word) >= PREFIX_MIN and any(one.startswith(word) for one in said)
    return PREFIX_WORTH if begun else 0.0


def day_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Day and path of each log, the newest first."""
    try:
        names = sorted((path.name for path in folder.iterdir()), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.endswith(".md") and is_day(name[:-3]):
            yield name[:-3], folder / name
