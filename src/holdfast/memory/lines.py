"""A merge of two versions of a file by whole lines, at the version that both began with.

What holds, whatever the three are: a line that either side has added is in the result; a line that
neither has removed is in the result; a line that both have changed is there in both forms. The
order of each side is kept. Of a line that both have added, one copy is dropped; of two that are
nearly the same both stay, and are told, because only a person knows which is meant.

A line that is gone from a side is taken as removed by it. Who saves a text that was loaded before
our last write has not removed what that write added: `unseen` tells the two apart. A line that a
write of ours has added counts as removed only where the text has an entry that came with that
write or a later one, and so was loaded after it; or where the line was put back before and is
gone again much later. Pure: values in, values out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import msgspec

from holdfast.memory.entries import is_entry_key, key_of, read

NEAR_RATIO = 0.85
NEAR_MAX = 100  # lines of a side that are compared, and pairs that are told
RECENT_MS = 24 * 3_600_000  # how long a text may have been open in an editor
RECENT_MAX = 1_000
BELIEVED_MS = 600_000  # a line that was put back and is gone again this much later is removed
TELLING_CHARS = 4  # a shorter line (a blank one, a rule) says nothing about who has seen it


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    lines: list[str]
    duplicates: int = 0
    near: tuple[tuple[str, str], ...] = ()


class Added(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A line that writes of ours brought into the file: the first one and the newest."""

    first: int
    write: int
    at_ms: int
    key: str
    put_back_ms: int = 0


def split(text: str) -> tuple[list[str], bool]:
    """The lines, and whether the last of them has no end: a torn tail."""
    *lines, tail = text.split("\n")
    return (lines, False) if not tail else ([*lines, tail], True)


def joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def merge(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> Merged:
    """Both sides' changes to the base."""
    kept, mine = _changes(base, ours)
    also_kept, others = _changes(base, theirs)
    left = Counter(key_of(line) for gap in others for line in gap if line.strip())
    lines: list[str] = []
    fresh: list[str] = []
    duplicates = 0
    for at, (own, foreign) in enumerate(zip(mine, others, strict=True)):
        lines.extend(foreign)
        for line in own:
            key = key_of(line)
            if left[key] > 0:
                left[key] -= 1
                duplicates += 1
            elif line.strip() or line not in foreign:
                lines.append(line)
                fresh.append(line)
        if at < len(base) and kept[at] and also_kept[at]:
            lines.append(base[at])
    added = [line for gap in others for line in gap]
    return Merged(lines=lines, duplicates=duplicates, near=_near(fresh, added))


def union(ours: Sequence[str], theirs: Sequence[str]) -> Merged:
    """Every line of either side: nothing counts as removed."""
    kept, _ = _changes(ours, theirs)
    return merge([line for line, both in zip(ours, kept, strict=True) if both], ours, theirs)


def unseen(recent: Collection[Added], theirs: Collection[str], *, now_ms: int) -> tuple[set[str], set[str]]:
    """Of the lines we have added and that are not in theirs: those to put back, those removed.

    `theirs`: the keys of its lines.
    """
    # Only an entry proves anything: it can come from nowhere but a version of ours.
    seen = max((one.first for one in recent if is_entry_key(one.key) and one.key in theirs), default=0)
    back: set[str] = set()
    removed: set[str] = set()
    for one in recent:
        if one.key in theirs:
            continue
        again = one.put_back_ms and now_ms - one.put_back_ms > BELIEVED_MS
        (removed if one.write <= seen or again else back).add(one.key)
    return back, removed


def is_telling(line: str) -> bool:
    """Whether it can be known again by what it says."""
    return len(line.strip()) >= TELLING_CHARS


def shortened(recent: Sequence[Added], *, now_ms: int) -> list[Added]:
    return [one for one in recent if now_ms - one.at_ms < RECENT_MS][-RECENT_MAX:]


def _changes(base: Sequence[str], side: Sequence[str]) -> tuple[list[bool], list[list[str]]]:
    """Which lines of the base the side has kept, and what it has put before each and at the end."""
    kept = [False] * len(base)
    gaps: list[list[str]] = [[] for _ in range(len(base) + 1)]
    head = _common(base, side, lambda at: at)
    tail = _common(base[head:], side[head:], lambda at: -1 - at)
    for at in (*range(head), *range(len(base) - tail, len(base))):
        kept[at] = True
    old, new = base[head : len(base) - tail], side[head : len(side) - tail]
    if not old or not new:
        gaps[head].extend(new)
        return kept, gaps
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for what, low, high, first, last in matcher.get_opcodes():
        if what == "equal":
            kept[head + low : head + high] = [True] * (high - low)
        else:
            gaps[head + low].extend(new[first:last])
    return kept, gaps


def _common(base: Sequence[str], side: Sequence[str], place: Callable[[int], int]) -> int:
    count, most = 0, min(len(base), len(side))
    while count < most and base[place(count)] == side[place(count)]:
        count += 1
    return count


def _near(ours: Sequence[str], theirs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    told = [(line, read(line).text.casefold()) for line in theirs[:NEAR_MAX] if is_telling(line)]
    for line in ours[:NEAR_MAX]:
        text = read(line).text.casefold()
        for other, said in told:
            matcher = SequenceMatcher(None, text, said, autojunk=False)
            if is_telling(line) and matcher.quick_ratio() >= NEAR_RATIO <= matcher.ratio():
                found.append((line, other))
    return tuple(found[:NEAR_MAX])
