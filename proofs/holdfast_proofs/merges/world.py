"""One schedule: the instances, what people do to their files, and the judgement at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from holdfast.instances.line_document import Author
from holdfast.instances.shared import SharedDocument, Update
from holdfast.memory.lines import RECENT_MS, entry_hash, entry_id, is_telling, key_of, merge, removal_mark, rendered
from holdfast.memory.shared_lines import merged_with

INSTANCES = ("a", "b", "c", "d", "e")
EVENTS = 36
ROUNDS_MAX = 30
FIRST = ["# Memory", "", "- k001", "- k002", "- k003", ""]
REMARKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What a backup of one instance's folder has."""

    file: tuple[str, ...]
    base: tuple[str, ...] | None  # the sidecar of the file
    write: int
    document: bytes | None
    projected: int = 0  # remarks of the journal that are in the file
    ours: frozenset[str] = frozenset()
    gone: frozenset[tuple[str, int]] = frozenset()  # entries that a person removed, and by which write


@dataclass(slots=True, kw_only=True)
class Truth:
    """What people did with a line, and which ends are right beside that."""

    copies: int = 1
    removed: bool = False
    may_return: bool = False  # though it was removed
    may_be_lost: bool = False  # though it was not: only a folder that was replaced by its backup had it


class Died(Exception):
    """The process ended inside a pass."""


@dataclass(slots=True, kw_only=True)
class Instance:
    """One instance: its disk, and the document that its process has open."""

    name: str
    disk: Disk
    document: SharedDocument = field(init=False)
    blind: bool = False  # it is not known what the file showed last
    backups: list[Disk] = field(default_factory=list[Disk])
    touched: list[set[str]] = field(default_factory=list[set[str]])  # since each backup

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        stored = self.disk.document
        self.document = (
            SharedDocument(instance=self.name, file="MEMORY.md")
            if stored is None
            else SharedDocument.load(stored, instance=self.name, file="MEMORY.md")
        )

    def store(self) -> None:
        if self.document.document is not None:
            self.disk = replace(self.disk, document=self.document.stored())


class World:
    """A schedule by its seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.count = 0
        self.truth: dict[str, Truth] = {line: Truth() for line in FIRST if is_telling(line)}
        self.told_back: set[str] = set()  # lines that a merge report lists
        self.flying: list[tuple[str, Update]] = []
        founder = SharedDocument(instance="a", file="MEMORY.md")
        founder.found(FIRST)
        founder.begin(FIRST, 0, {}, self.author("a"))
        founder.finish(FIRST, 1, self.author("a"))
        self.remarks = [
            rendered(id=entry_id(str(at)), at_ms=0, text=f"r{at}", origin="m", timed=False) for at in range(REMARKS)
        ]
        self.instances = {
            name: Instance(
                name=name, disk=Disk(file=tuple(FIRST), base=tuple(FIRST), write=1, document=founder.stored())
            )
            for name in INSTANCES
        }

    def author(self, name: str, disk: Disk | None = None) -> Author:
        self.now_ms += RECENT_MS  # no line counts as recent: near lines are another test
        if disk is None:
            return Author(instance=name, at_ms=self.now_ms)
        return Author(instance=name, at_ms=self.now_ms, ours=disk.ours)

    def run(self) -> str:
        """What is wrong at the end; empty where nothing is."""
        acts = [act for act, weight in ACTS for _ in range(weight)]
        for _ in range(EVENTS):
            act = self.random.choice(acts)
            act(self, self.instances[self.random.choice(INSTANCES)])
        return self.settle() or self.judge()

    # --- what happens -------------------------------------------------------------------------

    def edit(self, one: Instance) -> None:
        """A person saves the file."""
        lines = list(one.disk.file)
        at = self.random.randrange(len(lines) + 1)
        what = self.random.choice(("add", "add", "remove", "change", "move", "copy", "same", "blank"))
        if what in ("add", "same", "blank") or not lines:
            new = self.new_line() if what != "same" else f"- same {self.random.randrange(3)}"
            new = "" if what == "blank" else new
            if new and new in lines:
                return
            lines.insert(at, new)
            self.bring(one, new)
        else:
            at = self.random.randrange(len(lines))
            line = lines[at]
            if not is_telling(line) and what != "remove":
                return
            if what in ("remove", "change", "move"):
                del lines[at]
            if what == "change":
                lines.insert(at, self.new_line())
                self.bring(one, lines[at])
            if what in ("move", "copy"):
                to = self.random.randrange(len(lines) + 1)
                lines.insert(to, line)
                self.truth[line].copies += what == "copy"
                # A move is a removal and a new line, which a host that removes the line had not seen. Of two lines that
                # change places it is not known which one was moved. A copy whose original is removed later is a move.
                for moved in lines[min(at, to) : max(at, to) + 1]:
                    self.truth.get(moved, Truth()).may_return = True
            elif is_telling(line):
                self.truth[line].removed = True
                # No sidecar knows that the file showed the line: it was lost, or the pass that wrote it was killed
                # before it wrote the sidecar. Then the save may be one of an older text, which removes nothing.
                self.truth[line].may_return |= one.blind or line not in (one.disk.base or ())
            self.touch(one, line)
        one.disk = replace(one.disk, file=tuple(lines))

    def new_line(self) -> str:
        self.count += 1
        return f"- n{self.count:03}"

    def bring(self, one: Instance, line: str) -> None:
        if is_telling(line):
            known = self.truth.get(line)
            if known is None:
                self.truth[line] = Truth()
            else:
                known.may_return = True  # what another person removes, this host had not seen
            self.touch(one, line)

    def touch(self, one: Instance, line: str) -> None:
        for touched in one.touched:
            touched.add(line)

    def project(self, one: Instance) -> None:
        """The next remark of the journal, written without the document."""
        disk = one.disk
        if disk.projected == len(self.remarks):
            return
        line = self.remarks[disk.projected]
        key = key_of(line)
        base = list(disk.base) if disk.base is not None else list(disk.file)
        known = {key_of(found) for found in (*disk.file, *base)}
        fresh = [] if key in known or entry_hash(line) in dict(disk.gone) else [line]
        lines = tuple(merge(base, [*base, *fresh], disk.file).lines)
        if fresh:
            self.truth.setdefault(line, Truth())
        one.disk = written(replace(disk, projected=disk.projected + 1, ours=disk.ours | {key}), lines)

    def merge_pass(self, one: Instance, *, dies: int = 0) -> None:
        """As `memory/projection.py` does it."""
        if one.document.document is None:
            return
        disk, author = one.disk, self.author(one.name, one.disk)
        start = one.document.begin(disk.base, disk.write, dict(disk.gone), author)
        merged = tuple(merged_with(start.lines, disk.file, base=start.base, gone=start.gone, ours=disk.ours).lines)
        if start.base is None:
            self.told_back |= set(merged) - (set(start.lines) & set(disk.file))
        one.disk = replace(one.disk, file=merged)
        if dies == 1:
            raise Died
        came = {key_of(line) for line in merged if entry_hash(line) and line not in disk.file}
        one.disk = written(replace(one.disk, ours=disk.ours | came), merged)
        if dies == 2:
            raise Died
        one.document.finish(merged, one.disk.write, author)
        if dies == 3:
            raise Died
        one.blind = False
        one.store()

    def die(self, one: Instance) -> None:
        try:
            self.merge_pass(one, dies=self.random.randrange(1, 4))
        except Died:
            one.open()

    def send(self, one: Instance) -> None:
        other = self.random.choice([name for name in INSTANCES if name != one.name])
        if self.random.random() < 0.5:
            self.flying.append((other, one.document.update_for(other)))
        else:
            update = one.document.update_for_all(set(INSTANCES) - {one.name})
            self.flying += [(name, update) for name in INSTANCES if name != one.name]

    def deliver(self, _one: Instance) -> None:
        for _ in range(3):
            if not self.flying:
                return
            at = self.random.randrange(len(self.flying))
            to, update = self.flying[at]
            luck = self.random.random()
            if luck > 0.15:
                del self.flying[at]
            if luck < 0.85:  # else it is lost
                self.take(self.instances[to], update)

    def exchange(self, _one: Instance) -> None:
        """All hear of all: what is compacted afterwards is known everywhere, until one is restored."""
        for _ in range(2):
            for one in self.instances.values():
                update = one.document.update_for_all(set(INSTANCES) - {one.name})
                for name in INSTANCES:
                    if name != one.name:
                        self.take(self.instances[name], update)

    def take(self, one: Instance, update: Update) -> bool:
        changed = one.document.receive(update, self.author(one.name, one.disk))
        one.store()
        return changed

    def compact(self, one: Instance) -> None:
        if one.document.document is not None:
            one.document.compact(INSTANCES)
            one.store()

    def back_up(self, one: Instance) -> None:
        one.backups.append(one.disk)
        one.touched.append(set())

    def restore(self, one: Instance) -> None:
        if not one.backups:
            return
        at = self.random.randrange(len(one.backups))
        others = [self.instances[name] for name in INSTANCES if name != one.name]
        known = one.document.document is not None and any(
            other.document.document is not None and other.document.document.knows(one.document.document.version())
            for other in others
        )
        # What only this folder knew is gone with it: lines that no other has, and removals that no other was told of.
        if not known or one.disk.base != one.disk.file or one.document.seen_write != one.disk.write:
            elsewhere = {line for other in others for line in (*other.disk.file, *other.document.lines())}
            for line in one.touched[at] & self.truth.keys():
                self.truth[line].may_return = True
                self.truth[line].may_be_lost |= line not in elsewhere
        one.disk = one.backups[at]
        del one.backups[at + 1 :], one.touched[at + 1 :]
        one.open()
        # A line that no pass had told the document of is new again: no instance can tell it from one that is added now.
        for line in set(one.disk.file) - set(one.document.lines()):
            self.truth.get(line, Truth()).may_return = True

    def come_back_old(self, one: Instance) -> None:
        """All know everything and drop their history; then one is restored from before that, and edited."""
        if not one.backups:
            return
        self.exchange(one)
        for other in self.instances.values():
            self.merge_pass(other)
        self.exchange(one)
        for other in self.instances.values():
            self.compact(other)
        self.restore(one)
        self.edit(one)
        self.merge_pass(one)

    def lose_sidecar(self, one: Instance) -> None:
        """What Holdfast keeps beside the file, or a part of it."""
        which = self.random.randrange(3)
        one.blind = True
        for line in set(one.disk.base or ()) - set(one.disk.file) if which != 1 else ():
            self.truth.get(line, Truth()).may_return = True  # removed, and nothing knows of it any more
        one.disk = replace(
            one.disk,
            base=one.disk.base if which == 1 else None,
            write=one.disk.write if which == 1 else 0,
            document=one.disk.document if which == 0 else None,
        )
        one.open()

    # --- the end ------------------------------------------------------------------------------

    def settle(self) -> str:
        """Deliver what is under way, and then everything to all, until nothing changes."""
        self.random.shuffle(self.flying)
        for to, update in self.flying:
            self.take(self.instances[to], update)
        for _ in range(ROUNDS_MAX):
            for one in self.instances.values():
                if one.document.may_found(INSTANCES):
                    one.document.found(one.disk.file)
                while one.disk.projected < len(self.remarks):
                    self.project(one)
                self.merge_pass(one)
            changed = False
            for one in self.instances.values():
                update = one.document.update_for_all(set(INSTANCES) - {one.name})
                for name in INSTANCES:
                    if name != one.name:
                        changed |= self.take(self.instances[name], update)
            if not changed and not any(one.document.wants_whole for one in self.instances.values()):
                return ""
        return f"the instances still change after {ROUNDS_MAX} rounds"

    def judge(self) -> str:
        files = {one.disk.file for one in self.instances.values()}
        if len(files) > 1:
            return f"the files differ: {sorted(files)[:2]}"
        counts = Counter(next(iter(files)))
        for line, truth in self.truth.items():
            found = counts[line]
            if found > truth.copies:
                return f"{line!r} is there {found} times"
            if not found and not truth.removed and not truth.may_be_lost:
                return f"{line!r} is lost"
            # Of a line that a person copied, one may be removed; what the merge report lists, a person knows.
            excused = truth.may_return or truth.copies > 1 or line in self.told_back
            if found and truth.removed and not excused:
                return f"{line!r} was removed and is back"
        return ""


def written(disk: Disk, lines: tuple[str, ...]) -> Disk:
    """The file, and then its sidecar, with what a person removed."""
    removed = [line for line in disk.base or () if is_telling(line) and line not in lines]
    return replace(
        disk,
        file=lines,
        base=lines,
        write=disk.write + 1,
        ours=disk.ours - {key_of(line) for line in removed},
        gone=disk.gone | {(removal_mark(line), disk.write + 1) for line in removed},
    )


Act = Callable[[World, Instance], None]
ACTS: tuple[tuple[Act, int], ...] = (
    (World.edit, 8),
    (World.project, 2),
    (World.merge_pass, 6),
    (World.send, 6),
    (World.deliver, 6),
    (World.die, 1),
    (World.compact, 2),
    (World.exchange, 1),
    (World.back_up, 2),
    (World.restore, 1),
    (World.come_back_old, 1),
    (World.lose_sidecar, 1),
)
