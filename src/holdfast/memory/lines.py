"""The lines of the memory files: how an entry is written, how a file is read, how versions merge.

An entry is one line with a mark at its end, which no text can forge: text that looks like a mark is
escaped. The mark holds the entry's id, so that it is recognized wherever it is and however its text
was edited, and its origin, so that a model's or a tool's word is not taken for the user's.

A day's file only grows: entries have ids, so the join of two copies is the set of their entries,
and other lines stay where they are. A last line without an end is a torn tail, left by a writer that
died. It is read like every other line, and reported.

The merge works by whole lines, from the version that both sides began with. A line that either side
added is in the result; a line that neither removed is in the result; a line that both changed is
there in both forms. The order of each side is kept. Of a line that both added, one copy is dropped;
of two that are nearly the same both stay and are reported, because only a person knows which is meant.

A line that is missing from a side counts as removed by it. An editor that saves a text loaded before
our last write did not remove what that write added: `unseen` tells the two apart. A line that our
write added counts as removed only if the text has an entry of that write or a later one, and so was
loaded after it; or if the line was put back before and is missing again much later.

Pure: values in, values out.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import SequenceMatcher

import msgspec

from holdfast.errors import BadInput

MARK = "<!-- hf "
ID_CHARS = 16
FILE_ORIGIN = "file"  # of a line without a mark
_MARKED = re.compile(
    r"(?P<text>.*?) ?<!-- hf (?P<id>[0-9a-f]{16}) "
    r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) (?P<origin>[^<>]{1,300}) -->\s*",
    re.ASCII,
)
_ITEM = re.compile(r"\s*[-*+] +")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d +")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLine:
    """What is read of a line; `id` is empty for a line that is not ours."""

    text: str  # without bullet, time and mark
    id: str = ""
    day: str = ""
    origin: str = FILE_ORIGIN


def entry_id(remark_id: str) -> str:
    """The id of the entry that this remark becomes."""
    digest = hashlib.sha256(b"holdfast/entry/1\0" + remark_id.encode()).hexdigest()
    return digest[:ID_CHARS]


def rendered(*, id: str, at_ms: int, text: str, origin: str, timed: bool) -> str:
    """The entry's line, without its end. `timed`: of a day's file, where the time leads."""
    at = moment(at_ms)
    clock = f"{at:%H:%M:%S} " if timed else ""
    said = re.sub(r"[<>]+", " ", one_line(origin)).strip()
    return f"- {clock}{one_line(text)} {MARK}{id} {at:%Y-%m-%dT%H:%M:%SZ} {said} -->"


def one_line(text: str) -> str:
    """Text that is one line and looks like no mark."""
    return " ".join(text.split()).replace("<!--", "&lt;!--").replace("-->", "--&gt;")


def read(line: str) -> MemoryLine:
    """What a line says, no matter who wrote it."""
    if MARK in line and (found := _MARKED.fullmatch(line)) is not None:
        text = _CLOCK.sub("", _ITEM.sub("", found["text"], count=1), count=1)
        return MemoryLine(text=text.strip(), id=found["id"], day=found["at"][:10], origin=found["origin"].strip())
    return MemoryLine(text=_ITEM.sub("", line, count=1).strip())


def key_of(line: str) -> str:
    """By what a line is known again: an entry by its id, any other by what it says."""
    if MARK in line and (found := _MARKED.fullmatch(line)) is not None:
        return found["id"]
    return f"={line}"


def is_entry_key(key: str) -> bool:
    return not key.startswith("=")


def mark_time(line: str) -> str:
    """When an entry was said; empty for a line that is not ours."""
    found = _MARKED.fullmatch(line) if MARK in line else None
    return "" if found is None else found["at"]


def entry_hash(line: str) -> str:
    """By what an entry is known after it was removed, as it was; empty for a line that is not ours."""
    return removal_mark(line) if is_entry_key(key_of(line)) else ""


def removal_mark(line: str) -> str:
    """By what any line is known after it was removed: that of a line which is not ours begins with `=`."""
    mark = hashlib.sha256(line.encode(errors="surrogateescape")).hexdigest()[:ID_CHARS]
    return mark if is_entry_key(key_of(line)) else f"={mark}"


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


NEAR_RATIO = 0.85
NEAR_WORDS = 4
NEAR_MAX = 100  # lines of a side that are compared, and pairs that are reported
RECENT_MS = 24 * 3_600_000  # how long a text may have been open in an editor
RECENT_MAX = 1_000
BELIEVED_MS = 600_000  # a line that was put back and is missing again this much later is removed
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


class Gone(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A line (its mark) that was removed from the file, and by which write: a document that other instances share may
    not know it yet. Of lines that are not ours: only where there is such a document."""

    write: int
    at_ms: int
    entry: str


def split(text: str) -> tuple[list[str], bool]:
    """The lines, and whether the last of them has no end: a torn tail."""
    *lines, tail = text.split("\n")
    return (lines, False) if not tail else ([*lines, tail], True)


def joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def merge(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str], *, key: Callable[[str], str] = key_of
) -> Merged:
    """Both sides' changes to the base. Lines that both added are one if their `key` is one."""
    kept, mine = changes(base, ours)
    also_kept, others = changes(base, theirs)
    left = Counter(key(line) for gap in others for line in gap if line.strip())
    lines: list[str] = []
    fresh: list[str] = []
    duplicates = 0
    for at, (own, foreign) in enumerate(zip(mine, others, strict=True)):
        lines.extend(foreign)
        for line in own:
            if left[key(line)] > 0:
                left[key(line)] -= 1
                duplicates += 1
            elif line.strip() or line not in foreign:
                lines.append(line)
                fresh.append(line)
        if at < len(base) and kept[at] and also_kept[at]:
            lines.append(base[at])
    added = [line for gap in others for line in gap]
    return Merged(lines=lines, duplicates=duplicates, near=near(fresh, added))


def union(ours: Sequence[str], theirs: Sequence[str], *, key: Callable[[str], str] = key_of) -> Merged:
    """Every line of either side: nothing counts as removed."""
    kept, _ = changes(ours, theirs)
    return merge([line for line, both in zip(ours, kept, strict=True) if both], ours, theirs, key=key)


def joined_in(base: Sequence[str] | None, ours: Sequence[str], displaced: Sequence[str]) -> Merged:
    """Every line of a displaced version too, but for those of the base that ours has removed since."""
    if base is None:
        return union(ours, displaced)
    kept, _ = changes(base, displaced)
    return merge([line for line, both in zip(base, kept, strict=True) if both], ours, displaced)


def unseen(recent: Collection[Added], theirs: Collection[str], *, now_ms: int) -> tuple[set[str], set[str]]:
    """Of the lines we have added and that are not in theirs: those to put back, those removed.
    `theirs`: the keys of its lines."""
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


def changes(
    base: Sequence[str], side: Sequence[str], *, steady: Collection[str] = ()
) -> tuple[list[bool], list[list[str]]]:
    """Which lines of the base the side has kept, and what it has put before each and at the end. Of two lines that
    have changed places, one that is `steady` is kept."""
    kept = [False] * len(base)
    gaps: list[list[str]] = [[] for _ in range(len(base) + 1)]
    head = _common(base, side, lambda at: at)
    tail = _common(base[head:], side[head:], lambda at: -1 - at)
    for at in (*range(head), *range(len(base) - tail, len(base))):
        kept[at] = True
    old, new = base[head : len(base) - tail], side[head : len(side) - tail]
    low = first = 0
    for at, where in (*_matches(old, new, steady), (len(old), len(new))):
        gaps[head + low].extend(new[first:where])
        if at < len(old):
            kept[head + at] = True
        low, first = at + 1, where + 1
    return kept, gaps


def _matches(old: Sequence[str], new: Sequence[str], steady: Collection[str]) -> Iterator[tuple[int, int]]:
    """Pairs of equal lines, both rising. Lines that each side has once come first, so that the time that this takes
    grows with the number of lines and not with its square; the lines between two of them are compared one by one."""
    low = first = 0
    for at, where in (*_anchors(old, new, steady), (len(old), len(new))):
        if low < at and first < where and (at - low > 1 or where - first > 1 or old[low] == new[first]):
            matcher = SequenceMatcher(None, old[low:at], new[first:where], autojunk=False)
            for one, other, size in matcher.get_matching_blocks():
                yield from ((low + one + more, first + other + more) for more in range(size))
        if at < len(old):
            yield at, where
        low, first = at + 1, where + 1


def _anchors(old: Sequence[str], new: Sequence[str], steady: Collection[str]) -> list[tuple[int, int]]:
    """Lines that each side has exactly once and that say something, as many as are in the same order on both: first of
    those that are `steady`, then of the others that fit between them."""
    counts, others = Counter(filter(is_telling, old)), Counter(filter(is_telling, new))
    places = {line: at for at, line in enumerate(new) if others[line] == 1}
    pairs = [(at, places[line]) for at, line in enumerate(old) if counts[line] == 1 and line in places]
    if fixed := _rising([pair for pair in pairs if old[pair[0]] in steady]):
        fences = [(-1, -1), *fixed, (len(old), len(new))]
        after = ((pair, bisect_left(fences, pair)) for pair in pairs)
        pairs = [pair for pair, at in after if fences[at - 1][1] < pair[1] <= fences[at][1]]
    return _rising(pairs)


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """As many of these pairs, which rise by their first place, as rise by the other one too."""
    ends: list[int] = []  # the smallest place at which a rising run of each length ends
    runs: list[int] = []
    for _, where in pairs:
        length = bisect_left(ends, where)
        ends[length : length + 1] = [where]
        runs.append(length)
    found: list[tuple[int, int]] = []
    wanted = len(ends) - 1
    for pair, length in zip(reversed(pairs), reversed(runs), strict=True):
        if length == wanted:
            found.append(pair)
            wanted -= 1
    return found[::-1]


def _common(base: Sequence[str], side: Sequence[str], place: Callable[[int], int]) -> int:
    count, most = 0, min(len(base), len(side))
    while count < most and base[place(count)] == side[place(count)]:
        count += 1
    return count


def near(ours: Sequence[str], theirs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of lines that say nearly the same."""
    found: list[tuple[str, str]] = []
    told = [(line, *_said(line)) for line in theirs[:NEAR_MAX] if is_telling(line)]
    for line in ours[:NEAR_MAX]:
        text, words = _said(line)
        for other, said, others in told:
            # Comparing letters takes long: two long lines without common words are not nearly the same.
            if min(len(words), len(others)) >= NEAR_WORDS and 2 * len(words & others) < max(len(words), len(others)):
                continue
            matcher = SequenceMatcher(None, text, said, autojunk=False)
            if is_telling(line) and matcher.quick_ratio() >= NEAR_RATIO <= matcher.ratio():
                found.append((line, other))
    return tuple(found[:NEAR_MAX])


def _said(line: str) -> tuple[str, set[str]]:
    text = read(line).text.casefold()
    return text, set(text.split())


_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLog:
    """A file's lines as they are read, numbered from 1."""

    lines: tuple[tuple[int, MemoryLine], ...]
    torn: bool


def day_of(at_ms: int, *, back: int = 0) -> str:
    """The day, UTC; `back` days before."""
    return f"{moment(at_ms) - timedelta(days=back):%Y-%m-%d}"


def is_day(text: str) -> bool:
    return _DAY.fullmatch(text) is not None


def check_day(text: str) -> str:
    if not is_day(text):
        raise BadInput(f"{text!r} is not a valid day", hint="write a day as 2026-11-15")
    return text


def heading(day: str) -> list[str]:
    """The first lines of a new day's file."""
    return [f"# {day}", ""]


def parsed(text: str, *, day: str = "") -> DayLog:
    """What a file says: lines that say nothing and headings left out."""
    lines, torn = split(text)
    found: list[tuple[int, MemoryLine]] = []
    for number, line in enumerate(lines, start=1):
        one = read(line)
        if one.text and not one.text.startswith("#"):
            found.append((number, one if one.day else MemoryLine(text=one.text, id=one.id, day=day, origin=one.origin)))
    return DayLog(lines=tuple(found), torn=torn)
