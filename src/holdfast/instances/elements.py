"""The elements of a line document: which of them a file shows, and the new ones of a change. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.memory.lines import entry_hash, is_telling, key_of

Brought = tuple[str, str, int]  # what an element keeps where it moves: its line, who brought it in, and when
WITHDRAWN = "~"  # begins the mark of a line that is no entry, in `gone`


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who changes a document. `ours`: keys of lines that Holdfast brought into the file by itself; `tasks`: which task
    said an entry, by its id."""

    instance: str
    at_ms: int
    ours: Collection[str] = ()
    tasks: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True, kw_only=True)
class SharedLine:
    """A line, and who brought it in. An empty `instance`: it was there before the instances shared the file; no time:
    an instance had it in its file when its document or the file's sidecar was lost."""

    text: str
    number: int = 0
    instance: str = ""
    at_ms: int = 0
    task: str = ""
    places: tuple[int, ...] = ()  # its elements

    @property
    def brought(self) -> Brought:
        return self.text, self.instance, self.at_ms


def as_shown(elements: Sequence[SharedLine], gone: Collection[str]) -> list[SharedLine]:
    groups: dict[tuple[str, int], SharedLine] = {}
    found: list[SharedLine] = []
    hidden = gone_places(elements, gone)
    for place, line in enumerate(elements):
        if place in hidden:
            continue
        known = groups.setdefault((line.text, line.number), line) if is_telling(line.text) else line
        if known is line:
            found.append(line)
        known.places += (place,)
    return found


def gone_places(elements: Sequence[SharedLine], gone: Collection[str]) -> set[int]:
    if not gone:
        return set()
    withdrawn = any(one.startswith(WITHDRAWN) for one in gone)
    return {
        at
        for at, one in enumerate(elements)
        if entry_hash(one.text) in gone or (withdrawn and withdrawal(one.brought) in gone)
    }


def withdrawal(brought: Brought) -> str:
    return WITHDRAWN + hashlib.sha256("\0".join(map(str, brought)).encode(errors="surrogateescape")).hexdigest()[:16]


def lowest_kept(
    shown: Sequence[SharedLine], kept: list[bool], gaps: list[list[str]]
) -> tuple[list[bool], list[list[str]]]:
    """Where there are fewer equal lines than before, those with the lowest numbers stay, whichever place they have: two
    instances that each remove one of two remove the same one. Where one is only moved, the others stay as they are:
    what is brought in again does not hear that another instance removes it."""
    numbers: dict[str, list[int]] = {}
    for one in shown:
        numbers.setdefault(one.text, []).append(one.number)
    copied = {text: sorted(found) for text, found in numbers.items() if len(found) > 1 and is_telling(text)}
    if copied:
        stay = Counter(one.text for one, stays in zip(shown, kept, strict=True) if stays)
        new = Counter(line for gap in gaps for line in gap)
        for at, one in enumerate(shown):
            lowest = copied.get(one.text, ())
            fewer = stay[one.text] + new[one.text] < len(lowest)
            if kept[at] and fewer and one.number not in lowest[: stay[one.text]]:
                kept[at] = False
                gaps[at + 1].insert(0, one.text)
    return kept, gaps


def numbered(
    stay: Sequence[SharedLine], before: Sequence[SharedLine], gaps: Sequence[Sequence[str]], author: Author
) -> dict[int, list[list[str | int]]]:
    """The new elements by the gap that they fill. A line that was there `before`, in another place or another document,
    keeps its number and who brought it in."""
    used = {(one.text, one.number) for one in stay}
    moved: dict[str, list[SharedLine]] = {}
    for one in before:
        moved.setdefault(one.text, []).append(one)
    found: dict[int, list[list[str | int]]] = {}
    for at, gap in enumerate(gaps):
        for text in gap:
            free = [one for one in moved.get(text, ()) if (text, one.number) not in used]
            line = free[0] if free else _brought(text, author)
            number = line.number
            while (text, number) in used:
                number += 1
            used.add((text, number))
            value: list[str | int] = [text, number, line.instance, line.at_ms]
            found.setdefault(at, []).append([*value, line.task] if line.task else value)
    return found


def _brought(text: str, author: Author) -> SharedLine:
    task = author.tasks.get(key_of(text), "")
    return SharedLine(text=text, instance=author.instance, at_ms=author.at_ms, task=task)
