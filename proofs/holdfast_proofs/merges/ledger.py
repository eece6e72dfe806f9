"""What people did to the lines of a memory, and which ends of a schedule are right.

Whoever brings a line in makes an *add*. Whoever removes a line from a file removes the adds that this file showed, and
no others. A document knows the adds and removals of all changes that it knows, so at the end this is exact: a line
with an add that nobody removed must be there, and a line whose adds are all removed must not. Nothing is excused that
merely looks like a conflict.

The rules name cases in which a change cannot be known for certain. Each is a `Why`, it is given to one add or one
removal and not to a line, and whoever sees that add and removes it ends it. A line may be there or not only while it
has no certain add, but an uncertain one, or one whose removal is uncertain. How often that was needed is in the
figures. Without the excuse exactly these schedules are red:

- `moved`: a person moved the line, or one that changed places with it, and another host removed it without having seen
  that. A move is a removal and a new line. A person who removes a line and writes it anew, between two passes, moves
  it: in the old place the file is as it was, and nothing can tell, unless the sidecar was written in between.
- `listed`: the sidecar or the document of a host was lost, or two hosts that were restored have no common
  version, and the merge report lists the line: that of the pass after it, or that of hosts that hear of the removal.
- `forgotten`: a removal that only the lost document of one host knew, of a line that came to this host again later; or
  of an entry that no document had yet, where the sidecar is lost: another host writes it from the same journal; or of
  an entry that the journal brought to this host once more, where both are lost.
- `untold`: a backup has an edit that no pass had told the document of: after a restore it is an edit of now.
- `copied`: a person had the line twice and removed one of the two; which one is not known, but one stays, unless
  another person removes a line of these: to copy a line and to remove one of the two, between two passes, is nothing
  that a document can know, and whoever removes the line then removes what is left. Nor can it know that a person
  removed one of the two and then made the copy again: the file has the line as often as before. So that copy is no add
  of its own: it takes the removal back, and is the copy that was there. Or a person copied an entry, and another host
  removed it: an entry is known by its id, and stays away however often it was there.
- `replaced`: only one folder had the change, and it was replaced by its backup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.instances.line_document import LineDocument, Version


class Why(StrEnum):
    """Why a change is not certain; see the head of the module."""

    LISTED = "listed"
    UNTOLD = "untold"
    FORGOTTEN = "forgotten"
    COPIED = "copied"
    MOVED = "moved"
    REPLACED = "replaced"


LOSSES: frozenset[Why] = frozenset({Why.COPIED})  # of adds that must be there otherwise


@dataclass(frozen=True, slots=True)
class Add:
    line: str
    why: Why | None = None
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    add: int
    event: int  # one act may remove several adds
    why: Why | None = None
    left: int = 1  # of a removal of one of several equal lines: how many the file still shows


@dataclass(frozen=True, slots=True)
class Changes:
    adds: frozenset[int] = frozenset()
    removals: frozenset[Removal] = frozenset()

    def __or__(self, other: Changes) -> Changes:
        return Changes(self.adds | other.adds, self.removals | other.removals)

    def __sub__(self, other: Changes) -> Changes:
        return Changes(self.adds - other.adds, self.removals - other.removals)


NONE = Changes()


@dataclass(slots=True)
class Sight:
    """What one open document knows of the ledger."""

    looked: set[int] = field(default_factory=set[int])
    known: Changes = field(default_factory=Changes)


class Ledger:
    """All that was done in one schedule."""

    def __init__(self, lines: Iterable[str], *, without: Why | None = None) -> None:
        """`without`: an excuse that does not count."""
        self._without = without
        self.adds: list[Add] = []
        self.replaced = Changes()  # what only a folder had that was replaced by its backup
        self.excused: Counter[Why] = Counter()
        self._events = 0
        self._told: list[tuple[Version, Changes]] = []  # from which version on a document knows the changes
        self.first = frozenset(self.add(line) for line in lines)

    def add(self, line: str, why: Why | None = None, *, is_copy: bool = False) -> int:
        self.adds.append(Add(line, why, is_copy))
        return len(self.adds) - 1

    def doubt(self, add: int, why: Why) -> None:
        self.adds[add] = replace(self.adds[add], why=why)

    def of(self, line: str, adds: Iterable[int]) -> list[int]:
        return [one for one in adds if self.adds[one].line == line]

    def is_of_one_copy(self, removal: Removal, line: str) -> bool:
        return removal.why is Why.COPIED and self.adds[removal.add].line == line

    def is_whole(self, removal: Removal, line: str) -> bool:
        """Whether it left no such line in its file."""
        return removal.why is not Why.COPIED and self.adds[removal.add].line == line

    def removal(self, adds: Iterable[tuple[int, Why | None]], *, left: int = 1) -> frozenset[Removal]:
        self._events += 1
        return frozenset(Removal(one, self._events, why, left) for one, why in adds)

    def removed_again(self, removals: Collection[Removal], again: Mapping[int, int]) -> frozenset[Removal]:
        """The same acts once more, where they removed adds that are made `again`."""
        events = sorted({one.event for one in removals if one.add in again})
        new = {event: self._events + at for at, event in enumerate(events, start=1)}
        self._events += len(events)
        return frozenset(
            replace(one, add=again.get(one.add, one.add), event=new.get(one.event, one.event)) for one in removals
        )

    def told(self) -> frozenset[int]:
        """The adds that some document was told of."""
        return frozenset[int]().union(*(changes.adds for _, changes in self._told))

    def tell(self, version: Version, changes: Changes) -> None:
        self._told.append((version, changes))

    def known(self, document: LineDocument | None, sight: Sight) -> Changes:
        if document is not None:
            for at, (version, changes) in enumerate(self._told):
                if at not in sight.looked and document.knows(version):
                    sight.looked.add(at)
                    sight.known |= changes
        return sight.known

    def _why(self, add: int) -> Why | None:
        """Without an excuse for lines that are missing its adds are certain; without another one they are none."""
        why = self.adds[add].why
        return None if why is self._without and why in LOSSES else why

    def judge(self, known: Changes, shown: Collection[str]) -> str:
        """What is wrong where all files show these lines; empty where nothing is."""
        counts = Counter(shown)
        certain = {one for one in range(len(self.adds)) if self._why(one) is None}
        replaced = frozenset[int]() if self._without is Why.REPLACED else self.replaced.adds
        if missing := certain - known.adds - replaced:
            return f"nobody knows any more that {self.adds[min(missing)].line!r} was added"
        by_line: dict[str, list[int]] = {}
        for one in range(len(self.adds)):
            by_line.setdefault(self.adds[one].line, []).append(one)
        removals: dict[int, list[Removal]] = {}
        for removal in known.removals:
            removals.setdefault(removal.add, []).append(removal)
        for line, adds in by_line.items():
            if wrong := self._judge_line(line, [one for one in adds if one in known.adds], removals, counts[line]):
                return wrong
            certain = [one for one in adds if self._why(one) is None and one not in known.adds]
            self.excused[Why.REPLACED] += bool(certain and not counts[line])
        return ""

    def _is_copy_lost(self, adds: list[int], removals: dict[int, list[Removal]]) -> bool:
        """Who removes one of two leaves one, and that is missing only where somebody else removed a line of these. The
        copies that two people made at once show as one line: who removes that removes both adds, so a removal takes as
        many adds as do not fit into the lines that are left."""
        partly = {one: {each.event for each in removals.get(one, ()) if each.why is Why.COPIED} for one in adds}
        wholly = {one for one in adds if any(each.why is not Why.COPIED for each in removals.get(one, ()))}
        left = {one: events for one, events in partly.items() if events and one not in wholly}
        taken = {event for one in wholly for event in partly[one]}
        events = frozenset[int]().union(*left.values())
        lines = {each.event: each.left for one in left for each in removals[one]}
        takes = sum(max(1, sum(event in found for found in partly.values()) - lines[event]) for event in events)
        return bool(events - taken) or takes < len(left)

    def _judge_line(self, line: str, adds: list[int], removals: dict[int, list[Removal]], found: int) -> str:
        out = (None, self._without)
        may = [one for one in adds if all(removal.why not in out for removal in removals.get(one, ()))]
        may = [one for one in may if self._why(one) is None or self._why(one) is not self._without]
        certain = [one for one in may if self._why(one) is None]
        must = [one for one in certain if one not in removals]
        if found > 1 + sum(self.adds[one].is_copy for one in may):
            return f"{line!r} is there {found} times"
        if not found and must:
            return f"{line!r} is lost"
        if found and not may:
            return f"{line!r} was removed and is back"
        if found and not must:
            whys = {why for one in may for why in (self.adds[one].why, *(each.why for each in removals.get(one, ())))}
            self.excused[next(why for why in Why if why in whys)] += 1
        if not found and self._is_copy_lost([one for one in adds if self._why(one) is None], removals):
            return f"{line!r} is lost: one of its copies was removed"
        if not found:
            self.excused.update(why for why in LOSSES if any(self.adds[one].why is why for one in may))
        return ""
