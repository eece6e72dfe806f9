"""One schedule: the instances, what people do to their files, and the judgement at the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.instances.line_document import Author
from holdfast.instances.shared import SharedDocument, Update
from holdfast.memory.lines import RECENT_MS, entry_hash, entry_id, is_telling, key_of, merge, removal_mark, rendered
from holdfast.memory.shared_lines import NEVER, MergedAt, merged_with
from holdfast_proofs.merges.ledger import NONE, Changes, Ledger, Removal, Sight, Why

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
    life: int = 0  # of the sidecar
    merged: MergedAt = NEVER  # its last write that merged with the document
    projected: int = 0  # remarks of the journal that are in the file
    ours: frozenset[str] = frozenset()
    gone: frozenset[tuple[str, int]] = frozenset()  # lines that were removed, and by which write
    # What follows is not on a disk: the ledger's adds.
    pending: Changes = NONE  # what was done to the file, and no document knows
    showed: frozenset[int] = frozenset()  # that the file shows
    forgot: bool = False  # the document was lost since the last pass


class Died(Exception):
    """The process ended inside a pass."""


@dataclass(slots=True, kw_only=True)
class Instance:
    """One instance: its disk, and the document that its process has open."""

    name: str
    disk: Disk
    document: SharedDocument = field(init=False)
    backups: list[Disk] = field(default_factory=list[Disk])
    sight: Sight = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.sight = Sight()
        stored = self.disk.document
        self.document = (
            SharedDocument(instance=self.name, file="MEMORY.md")
            if stored is None
            else SharedDocument.load(stored, instance=self.name, file="MEMORY.md")
        )

    def store(self) -> None:
        if self.document.document is not None:
            self.disk = replace(self.disk, document=self.document.stored())


def update_to(document: SharedDocument, *others: str) -> Update:
    """What any of these instances lacks, as `Merging` sends it without parts."""
    return document.update_since(document.floor(others), whole=document.is_asked(others))


class World:
    """A schedule by its seed."""

    def __init__(self, seed: int, *, without: Why | None = None) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.count = 0
        self.lives = 0  # sidecars that took the place of lost ones
        self.ledger = Ledger((line for line in FIRST if is_telling(line)), without=without)
        self.remark_adds: dict[str, int] = {}
        self.anew: dict[int, int] = {}  # adds of lines that were removed since the last pass, and by which act
        self.went_back: set[str] = set()  # the instances that were restored, or lost their documents
        self.flying: list[tuple[str, Update]] = []
        founder = SharedDocument(instance="a", file="MEMORY.md")
        founder.found(FIRST)
        founder.begin(FIRST, 0, {}, self.author("a"), file=FIRST, life="0")
        founder.finish(FIRST, 1, self.author("a"), life="0")
        self.remarks = [
            rendered(id=entry_id(str(at)), at_ms=0, text=f"r{at}", origin="m", timed=False) for at in range(REMARKS)
        ]
        first = self.ledger.first
        self.ledger.tell(founder.version, Changes(first))
        disk = Disk(file=tuple(FIRST), base=tuple(FIRST), write=1, document=founder.stored(), showed=first)
        self.instances = {name: Instance(name=name, disk=disk) for name in INSTANCES}

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
            to = self.random.randrange(len(lines) + 1) if what in ("move", "copy") else at
            if what in ("move", "copy"):
                lines.insert(to, line)
            if what == "copy":
                self.copy(one, lines, to)
            elif what == "move":
                # Of two lines that change places it is not known which one was moved.
                for moved in set(lines[min(at, to) : max(at, to) + 1]):
                    self.bring(one, moved, Why.MOVED)
            else:
                self.remove(one, line, left=lines.count(line))
                if line in lines:
                    # To copy a line and then to remove one of the two is to move it.
                    self.move(one, lines, line, at)
        one.disk = replace(one.disk, file=tuple(lines))

    def new_line(self) -> str:
        self.count += 1
        return f"- n{self.count:03}"

    def bring(self, one: Instance, line: str, why: Why | None = None, *, is_copy: bool = False) -> None:
        if is_telling(line):
            add = self.ledger.add(line, why, is_copy=is_copy)
            removed = [each.event for each in one.disk.pending.removals if self.ledger.is_whole(each, line)]
            if removed and why is None and not is_copy:
                self.anew[add] = max(removed)
            self.pend(one, Changes(frozenset([add])))

    def move(self, one: Instance, lines: Sequence[str], line: str, at: int) -> None:
        places = [at, *(place for place, left in enumerate(lines) if left == line)]
        for moved in set(lines[min(places) : max(places) + 1]):
            self.bring(one, moved, Why.MOVED)

    def copy(self, one: Instance, lines: Sequence[str], at: int) -> None:
        """A person copies a line to this place."""
        line, base, pending = lines[at], one.disk.base or (), one.disk.pending
        partly = [each.event for each in pending.removals if self.ledger.is_of_one_copy(each, line)]
        if partly and lines.count(line) <= base.count(line):
            # To remove one of two lines and then to copy the other, between two passes, is to move it.
            left = frozenset(each for each in pending.removals if each.event != max(partly))
            one.disk = replace(one.disk, pending=replace(pending, removals=left))
            self.move(one, lines, line, at)
        else:
            # An entry that is removed stays away, also where it was copied meanwhile.
            self.bring(one, line, Why.COPIED if entry_hash(line) else None, is_copy=True)

    def note_moves(self, one: Instance) -> None:
        """What was removed since the last pass and written anew, and is in the file's sidecar, was moved, or nothing
        happened to it: a pass cannot know more."""
        file, base = one.disk.file, one.disk.file if one.disk.base is None else one.disk.base
        for add in one.disk.pending.adds & self.anew.keys():
            line, pending = self.ledger.adds[add].line, one.disk.pending
            if line in base and line in file:
                left = frozenset(each for each in pending.removals if each.event != self.anew[add])
                one.disk = replace(one.disk, pending=replace(pending, removals=left))
                self.ledger.doubt(add, Why.MOVED)
                passed = set(base[: base.index(line)]).symmetric_difference(file[: file.index(line)])
                for moved in passed.intersection(base, file):
                    self.bring(one, moved, Why.MOVED)

    def remove(self, one: Instance, line: str, *, left: int = 0) -> None:
        """A person removes what the file shows. `left`: how often it shows the line still."""
        disk = one.disk
        adds = self.ledger.of(line, disk.showed | disk.pending.adds)
        why = Why.COPIED if left else None
        self.pend(one, Changes(removals=self.ledger.removal(((add, why) for add in adds), left=left)))
        if disk.base is None:
            self.forget(one)

    def forget(self, one: Instance) -> None:
        """Without a sidecar nothing knows that an entry was there which no document has: another host writes it too."""
        unknown = frozenset(self.remark_adds.values()) - self.known(one).adds
        removals = {
            replace(gone, why=gone.why or Why.FORGOTTEN) if gone.add in unknown else gone
            for gone in one.disk.pending.removals
        }
        one.disk = replace(one.disk, pending=replace(one.disk.pending, removals=frozenset(removals)))

    def pend(self, one: Instance, changes: Changes) -> None:
        one.disk = replace(one.disk, pending=one.disk.pending | changes)

    def known(self, one: Instance) -> Changes:
        return self.ledger.known(one.document.document, one.sight)

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
            add = self.remark_adds.get(line)
            self.remark_adds[line] = add = self.ledger.add(line) if add is None else add
            disk = replace(disk, pending=disk.pending | Changes(frozenset([add])))
        one.disk = written(replace(disk, projected=disk.projected + 1, ours=disk.ours | {key}), lines)

    def merge_pass(self, one: Instance, *, dies: int = 0) -> None:
        """As `memory/projection.py` does it. A file and its sidecar change as one there: a pass that is killed between
        the two is as one that is killed after them (`merges.kills` kills it at each call)."""
        if one.document.document is None:
            return
        self.note_moves(one)
        disk = one.disk
        author = self.author(one.name, disk)
        gone, life = dict(disk.gone), str(disk.life)
        start = one.document.begin(disk.base, disk.write, gone, author, file=disk.file, life=life, merged=disk.merged)
        merged = tuple(merged_with(start.lines, disk.file, base=start.base, gone=start.gone, ours=disk.ours).lines)
        known, pending = self.known(one), disk.pending
        if start.base is None:
            pending = self.unsure(disk, known, start.lines)
        listed = set(start.unsure).difference(one.document.unsure)
        pending |= Changes(frozenset(self.ledger.add(line, Why.LISTED) for line in listed))
        shows = known.adds | pending.adds
        if dies == 1:
            raise Died
        one.disk = replace(disk, file=merged, showed=shows, pending=pending)
        came = {key_of(line) for line in merged if is_telling(line) and line not in disk.file}
        noted_at = start.noted(disk.write + 1, merged)
        one.disk = written(replace(one.disk, ours=disk.ours | came, merged=noted_at), merged)
        if dies == 2:
            raise Died
        one.document.finish(merged, one.disk.write, author, life=life)
        if dies == 3:
            raise Died
        one.disk = replace(one.disk, pending=Changes(), forgot=False)
        one.store()
        self.ledger.tell(one.document.version, pending)

    def unsure(self, disk: Disk, known: Changes, document: Sequence[str]) -> Changes:
        """What a pass does that does not know what the file showed: all lines stay, and are in its report."""
        file, pending = disk.file, disk.pending
        back = Counter(filter(is_telling, file)) - Counter(document)
        adds = pending.adds.union(
            self.ledger.add(line, Why.LISTED, is_copy=bool(at) or line in document)
            for line, count in back.items()
            for at in range(count)
        )
        stay = set(document).difference(file)
        removals = set[Removal]()
        for one in pending.removals:
            line = self.ledger.adds[one.add].line
            if line in stay:
                removals.add(replace(one, why=Why.LISTED))
            else:  # where the journal has brought an entry again, only the lost document knew that the file had it
                again = disk.forgot and entry_hash(line) and line in file
                known_of = one.add in known.adds and not again
                removals.add(one if known_of else replace(one, why=one.why or Why.FORGOTTEN))
        return Changes(adds, frozenset(removals))

    def die(self, one: Instance) -> None:
        try:
            self.merge_pass(one, dies=self.random.randrange(1, 4))
        except Died:
            one.open()

    def send(self, one: Instance) -> None:
        other = self.random.choice([name for name in INSTANCES if name != one.name])
        if self.random.random() < 0.5:
            self.flying.append((other, update_to(one.document, other)))
        else:
            update = update_to(one.document, *set(INSTANCES) - {one.name})
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
                update = update_to(one.document, *set(INSTANCES) - {one.name})
                for name in INSTANCES:
                    if name != one.name:
                        self.take(self.instances[name], update)

    def take(self, one: Instance, update: Update) -> bool:
        before, known = one.document.version, self.known(one)
        changed = one.document.receive(update, self.author(one.name, one.disk))
        after = one.document.document
        if after is not None and not after.knows(before):  # it has taken another document, and its lines into that
            one.sight = Sight()
            # Compaction leaves a common version, unless both were restored, or lost their documents.
            told = one.document.unsure if {one.name, update.instance} <= self.went_back else ()
            listed = Changes(frozenset(self.ledger.add(line, Why.LISTED) for line in told))
            self.ledger.tell(one.document.version, known | self.known(one) | listed)
        if changed:
            one.store()
        return changed

    def compact(self, one: Instance) -> None:
        if one.document.document is not None:
            one.document.compact(INSTANCES)
            one.store()

    def back_up(self, one: Instance) -> None:
        one.backups.append(one.disk)

    def restore(self, one: Instance) -> None:
        if not one.backups:
            return
        at = self.random.randrange(len(one.backups))
        before = self.known(one) | one.disk.pending
        one.disk = one.backups[at]
        del one.backups[at + 1 :]
        one.open()
        self.went_back.add(one.name)
        before |= one.disk.pending
        self.tell_again(one)
        self.give_up(before)

    def tell_again(self, one: Instance) -> None:
        """What a backup has that no document was told then is done now, also where all were told meanwhile; and so is
        what the backup has removed of it since."""
        pending, again = one.disk.pending, dict[int, int]()
        for add in sorted(pending.adds & self.ledger.told() - set(self.remark_adds.values())):
            old = self.ledger.adds[add]
            elsewhere = any(add in self.known(other).adds for other in self.instances.values())
            why = old.why or (Why.UNTOLD if elsewhere else None)
            again[add] = self.ledger.add(old.line, why, is_copy=old.is_copy)
        adds = frozenset(again.get(add, add) for add in pending.adds)
        # A killed pass has shown them too: who removes one of them now removes what is done now.
        showed = frozenset(again.get(add, add) for add in one.disk.showed)
        removals = self.ledger.removed_again(pending.removals, again)
        one.disk = replace(one.disk, pending=Changes(adds, removals), showed=showed)

    def give_up(self, before: Changes) -> None:
        """What a folder had and no folder has now."""
        for other in self.instances.values():
            before -= self.known(other) | other.disk.pending
        self.ledger.replaced |= before

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
        if which != 1:
            one.disk = replace(one.disk, base=None, write=0, merged=NEVER, gone=frozenset(), ours=frozenset())
            self.lives += 1
            one.disk = replace(one.disk, life=self.lives)
            self.forget(one)
        if which != 0:
            before = self.known(one)
            self.went_back.add(one.name)
            # The lines that the file shows are there; who removed others is not known any more.
            adds = frozenset(add for add in before.adds if self.ledger.adds[add].line in one.disk.file)
            removals = frozenset(replace(gone, why=gone.why or Why.FORGOTTEN) for gone in before.removals)
            one.disk = replace(one.disk, document=None, forgot=True)
            self.pend(one, Changes(adds, removals))
            one.open()
            self.give_up(before)
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
                update = update_to(one.document, *set(INSTANCES) - {one.name})
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
        return self.ledger.judge(self.known(self.instances["a"]), next(iter(files)))


def written(disk: Disk, lines: tuple[str, ...]) -> Disk:
    """The file, and then its sidecar, with what a person removed."""
    noted = [line for line in disk.base or () if entry_hash(line) or key_of(line) in disk.ours]
    removed = [line for line in noted if line not in lines]
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
