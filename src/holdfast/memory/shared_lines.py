"""The port to a document that several instances share: what takes the place of the base in a merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.memory import lines
from holdfast.memory.lines import Merged, entry_hash, key_of

# A write that merged with a document: its number, the stored version, and the lines of that which it did not leave.
MergedAt = tuple[int, str, tuple[str, ...]]
NEVER: MergedAt = (0, "", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the document says when a pass begins. `base`: the lines that both it and the file had last; None where that
    is not known: then nothing counts as removed, but the entries in `gone` (hashes) do, where Holdfast wrote them.
    `near`: lines that arrived and say nearly the same as one of ours. `unsure`: lines that stayed though one side may
    have removed them, from before this pass. `version`, `stored`: of the document as it is stored, and its lines then,
    for the sidecar."""

    lines: list[str]
    base: list[str] | None
    gone: frozenset[str] = frozenset()
    near: tuple[tuple[str, str], ...] = ()
    unsure: tuple[str, ...] = ()
    version: str = ""
    stored: Sequence[str] = ()

    def noted(self, write: int, shown: Sequence[str]) -> MergedAt:
        """What the sidecar of a file says that shows these lines after this pass."""
        removed = Counter(filter(lines.is_telling, self.stored)) - Counter(shown)
        return write, self.version, tuple(sorted(removed.elements()))


class SharedLines(Protocol):
    """One pass over one file. Both calls are made under the lock of the place."""

    def begin(
        self,
        base: Sequence[str] | None,
        write: int,
        gone: Mapping[str, int],
        ours: Collection[str],
        *,
        file: Sequence[str],
        life: str,
        merged: MergedAt,
    ) -> Start:
        """`base`, `write`, `life`, `merged`: what the file's sidecar has. `gone`: lines (their marks) that were removed
        from the file, and by which write. `ours`: keys of lines that Holdfast brought in. `file`: its lines now, and
        those that will be put back."""
        ...

    def finish(self, lines: Sequence[str], write: int, ours: Collection[str], *, life: str) -> None:
        """The file and its sidecar have these lines; durable on return."""
        ...


def merged_with(
    document: Sequence[str],
    file: Sequence[str],
    *,
    base: Sequence[str] | None,
    gone: Collection[str],
    ours: Collection[str],
) -> Merged:
    """The document with the changes of the file since `base`. `gone`, `ours`: as in `Start`, and keys of lines that
    Holdfast brought in.
    A line that both have keeps its place in the document: a line that moves is removed and brought in again, and would
    come back where another instance removes it meanwhile."""
    if base is not None:
        return merged_at(base, file, document)
    left = [line for line in file if not gone or entry_hash(line) not in gone or key_of(line) not in ours]
    return lines.union(left, document, key=whole_line)


def merged_at(base: Sequence[str], file: Sequence[str], document: Sequence[str]) -> Merged:
    """Both sides' changes to the base. A line that both sides show stays, however often either had it; so of two equal
    lines one stays where each side has removed one, and a line that one side copied and the other moved stays twice."""
    if list(file) == list(document):
        return Merged(lines=list(file))
    merged = lines.merge(base, file, document, key=whole_line)
    counts = Counter(base), Counter(file), Counter(document)
    left = _with_shown(_without_removed(merged.lines, *counts), file, document, *counts)
    return Merged(lines=left, duplicates=merged.duplicates, near=merged.near)


def _with_shown(
    merged: list[str],
    one_side: Sequence[str],
    other_side: Sequence[str],
    base: Counter[str],
    file: Counter[str],
    document: Counter[str],
) -> list[str]:
    """With the lines that both sides show, as often as they want them together."""
    found, left = Counter(merged), merged
    for line in file.keys() & document.keys():
        low, high = sorted((file[line] - base[line], document[line] - base[line]))
        wanted = base[line] + (low + high if low < 0 < high else low if high <= 0 else high)
        if lines.is_telling(line):
            for _ in range(max(1, wanted) - found[line]):
                left = _put_in(left, line, one_side if file[line] >= document[line] else other_side)
    return left


def _put_in(some: list[str], line: str, side: Sequence[str]) -> list[str]:
    """Behind the line that it follows on this side."""
    last = len(side) - 1 - side[::-1].index(line)
    places = {one: at for at, one in enumerate(some)}
    at = next((places[one] + 1 for one in side[:last][::-1] if one in places), 0)
    return [*some[:at], line, *some[at:]]


def _without_removed(merged: list[str], base: Counter[str], file: Counter[str], document: Counter[str]) -> list[str]:
    """Without the lines that the file has removed and that the document has only in another place than the base."""
    removed = base - file
    extra = {line: file[line] + max(0, document[line] - base[line]) for line in removed if lines.is_telling(line)}
    found = Counter(merged)
    surplus = Counter({line: found[line] - most for line, most in extra.items()})
    left: list[str] = []
    for line in merged:
        if surplus[line] > 0:
            surplus[line] -= 1
        else:
            left.append(line)
    return left


def without_removed(before: Sequence[str], after: Sequence[str], words: Collection[str]) -> list[str]:
    """The lines that were there before, without those with these words that were removed since."""
    kept = lines.changes(before, after)[0] if words else [True] * len(before)
    return [line for line, stays in zip(before, kept, strict=True) if stays or line not in words]


def unequal(one: Collection[str], other: Collection[str]) -> set[str]:
    """The lines that one side has more often than the other; of short ones those that one side does not have."""
    counts, others = Counter(one), Counter(other)
    differ = {line for line in counts.keys() | others.keys() if counts[line] != others[line]}
    return {line for line in differ if lines.is_telling(line) or not counts[line] or not others[line]}


def whole_line(line: str) -> str:
    """Between instances two versions of one entry are two lines: one may be an edit."""
    return line
