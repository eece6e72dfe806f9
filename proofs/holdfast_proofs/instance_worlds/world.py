"""One world, by its seed."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.app.instances import merge_job, roster_change, standing
from holdfast.app.instances.merge_job import open_merging
from holdfast.app.instances.roster_change import RosterChange, with_instance
from holdfast.app.instances.standing import StandingKind, find_standing
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.journal_address import INSTANCE, JournalAddress
from holdfast.demo.machine import Machine, give_identity
from holdfast.demo.server import MEMORY
from holdfast.errors import HoldfastError, JournalBusy
from holdfast.identity.lease.enrolment import keep_enrolment
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import Enrolled
from holdfast.identity.vault.vault import Vault, open_vault
from holdfast.instances.elements import Brought, SharedLine
from holdfast.instances.merging import Merging
from holdfast.instances.shared_files import SharedFile
from holdfast.layout.agent_home import AgentHome, MemoryPlace, load_home
from holdfast.memory.lines import RECENT_MS
from holdfast_proofs.merges.faults import patched

EVENTS = 60
ROUNDS_MAX = 60
LOOK_S, LEASE_S = standing.WATCH_S, 10.0
START_MS = 1_800_000_000_000
NAMES = ("ada", "ben", "cid", "dot")
CLOCK, ENTROPY, PORT = SystemClock(), SystemEntropy(), Sodium()


class SimShared:
    """What the hosts share, as one of them reaches it."""

    def __init__(self, world: World, host: str) -> None:
        self._world, self._host = world, host

    def _table(self) -> dict[str, str]:
        if self._host in self._world.cut:
            raise JournalBusy(f"{self._host} is cut off")
        return self._world.texts

    def read_text(self, name: str) -> str:
        return self._table().get(name, "")

    def change_text(self, name: str, change: Callable[[str], str], *, durable: bool = False) -> str:
        table = self._table()
        table[name] = change(table.get(name, ""))
        return table[name]

    def drop_text(self, name: str) -> None:
        self._table().pop(name, None)

    def take_turn(self, name: str, *, holder: str, who: str, for_s: float) -> str:
        return ""

    def give_turn(self, name: str, *, holder: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SimAdmin:
    """As much of a journal's second port as instances use."""

    shared: SimShared
    hosts: bool = True

    def find_shared(self) -> SimShared:
        return self.shared

    def incarnation(self) -> int:
        return 1


@dataclass(slots=True)
class Folder:
    """One folder of the agent, and the process on it."""

    name: str
    home: AgentHome
    merging: Merging | None = None
    signature: object = None
    acts_until: float = 0.0
    paused_until: float = 0.0
    skew_ms: int = 0
    snapshot: Path | None = None
    written: dict[str, bool] = field(default_factory=dict[str, bool])  # line: the folder was enrolled while it had it
    came_ms: dict[str, int] = field(default_factory=dict[str, int])  # lines that a merge brought, by the host's clock
    unheard: set[str] = field(default_factory=set[str])  # lines that were removed here while it was not enrolled
    untold: set[str] = field(default_factory=set[str])  # lines of a copy that was put back, which its document lacks


@functools.cache
def template() -> tuple[Path, Path]:
    """An agent with one instance, and its vault; made once in a process."""
    root = Path(tempfile.mkdtemp(prefix="holdfast-worlds-", dir=MEMORY if MEMORY.is_dir() else None))
    (root / "ada").mkdir(mode=0o700)
    asyncio.run(_made(root))
    return root / "ada", root / "machine/vault"


async def _made(root: Path) -> None:
    import holdfast

    async with holdfast.open(root / "ada/journal.db", serve=False):
        pass
    await give_identity(root / "ada", Machine(root / "machine"))


class World:
    """One run by its seed."""

    def __init__(self, seed: int, root: Path, vault: Vault) -> None:
        self.random = random.Random(seed)
        self.root, self.vault = root, vault
        self.now = 0.0
        self.texts: dict[str, str] = {}
        self.cut: set[str] = set()
        self.full = ""
        self.count = 0
        self.folders: dict[str, Folder] = {}
        self.maybe: set[str] = set()  # lines that may be there or not: their disk was lost, or their host is removed
        self.removed: set[str] = set()
        self.kept: dict[str, set[str]] = {}  # lines that only a folder without a say removed: which instances show them
        self.listed: list[tuple[float, dict[str, tuple[str, Role]]]] = []  # the roster's history, by key
        self.copies = 0

    # --- the product's ports ----------------------------------------------------------------------

    def journal_at(self, address: JournalAddress, **_: Any) -> Any:  # Any: instead of JournalAdmin
        return SimAdmin(SimShared(self, Path(address.folder).name))

    @contextmanager
    def installed(self) -> Generator[None]:
        written = os.write

        def write(fd: int, data: bytes) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return written(fd, data)

        with ExitStack() as stack:
            for module in (standing, roster_change, merge_job):
                stack.enter_context(patched(module, "journal_at", self.journal_at))
            stack.enter_context(patched(os, "write", write))
            yield

    def now_ms(self, folder: Folder) -> int:
        return START_MS + int(self.now * 1000) + folder.skew_ms

    # --- the run ----------------------------------------------------------------------------------

    def run(self) -> str:
        with self.installed():
            self.begin()
            acts: list[Callable[[], None]] = [self.edit] * 6 + [self.look] * 14 + [self.cut_or_heal] * 3
            acts += [self.pause, self.restart, self.restart, self.set_clock, self.fill, self.restore, self.copy]
            acts += [self.take_twice, self.remove, self.enrol_again, self.change_role, self.keep_snapshot]
            for _ in range(EVENTS):
                self.now += self.random.choice((0.5, 2.0, LOOK_S, LEASE_S))
                self.random.choice(acts)()
                if why := self.find_stranger():
                    return why
            return self.settle() or self.judge()

    def begin(self) -> None:
        source, _ = template()
        names = NAMES[: self.random.randint(2, 4)]
        self._put(names[0], source)
        self.change(names[0], lambda change: change.enrol_here(names[0]))
        for name in names[1:]:
            self.join(name, by=names[0], role=self.random.choice((Role.PRIMARY, Role.PRIMARY, Role.STANDBY)))

    def _put(self, name: str, source: Path) -> Folder:
        folder = self.root / name
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(INSTANCE, "scratch"))
        (folder / INSTANCE).mkdir(mode=0o700)
        self.folders[name] = Folder(name, load_home(folder))
        return self.folders[name]

    def join(self, name: str, *, by: str, role: Role) -> None:
        """As invite and join do: the roster names the key, then the folder is made with it."""
        with KeyPair.new(ENTROPY) as key:
            one = Enrolled(name=name, key=key.public, role=role, host=name)
            self.change(by, lambda change: change.apply(lambda listed: with_instance(listed, one)))
            new = self._put(name, self.folders[by].home.folder)
            keep_enrolment(new.home.instance, key, id=self._id(new), clock=CLOCK)

    def _id(self, folder: Folder) -> Any:  # Any: an AgentId
        return self.roster_change(folder).speaker.id

    def roster_change(self, folder: Folder) -> RosterChange:
        return RosterChange.at(folder.home, self.vault, clock=CLOCK, entropy=ENTROPY, port=PORT)

    def change(self, name: str, act: Callable[[RosterChange], object]) -> bool:
        """An owner's act on that host; nothing where it cannot be done."""
        full, self.full = self.full, ""
        try:
            change = self.roster_change(self.folders[name])
            act(change)
        except HoldfastError:
            return False
        finally:
            self.full = full
        self.note_roster(name)
        return True

    def note_roster(self, name: str) -> None:
        view = self.roster_change(self.folders[name]).view()
        self.listed.append((self.now, {one.key: (one.name, one.role) for one in view.enrolled}))
        for one in self.enrolled():
            self.hear_edits(self.folders[one])

    def hear_edits(self, folder: Folder) -> None:
        """It is enrolled: what was saved in it while it was not counts from now on, because the owner has named the
        folder as it is. A line that its file does not have now does not count."""
        folder.written |= {line: True for line in _lines(folder) if line in folder.written}
        while folder.unheard:
            line = folder.unheard.pop()
            del self.kept[line]
            self.note_removal(folder, line)

    def reachable(self) -> list[str]:
        """Enrolled, and not cut off."""
        return [name for name in self.enrolled() if name not in self.cut]

    def enrolled(self) -> dict[str, Role]:
        """By folder, as the roster says now: its own key is listed."""
        if not self.listed:
            return {}
        listed = self.listed[-1][1]
        own = {name: _key_of(one) for name, one in self.folders.items()}
        return {name: listed[key][1] for name, key in own.items() if key in listed and listed[key][0] == name}

    # --- what happens -----------------------------------------------------------------------------

    def any(self) -> Folder:
        return self.folders[self.random.choice(list(self.folders))]

    def edit(self, name: str = "") -> None:
        folder = self.folders[name] if name else self.any()
        lines = _lines(folder)
        own = [line for line in folder.written if line in lines]
        if own and self.random.random() < 0.15:
            line = self.random.choice(own)
            lines.remove(line)
            self.note_removal(folder, line)
        else:
            self.count += 1
            line = f"- {folder.name} says {self.count:05}, and some words more"
            lines.insert(self.random.randrange(len(lines) + 1), line)
            folder.written[line] = folder.name in self.enrolled()
        swap = folder.home.folder / ".MEMORY.swp"
        swap.write_text("".join(f"{one}\n" for one in lines))
        swap.rename(folder.home.memory_file)

    def note_removal(self, folder: Folder, line: str) -> None:
        """A removal counts where an enrolled instance makes it; in a folder that is not enrolled it counts no more than
        a line that is added there, and those that show the line keep it. A line that came to this host in the last day
        may be put back once (decision 0029): nothing in the file says that the person had seen it. A line that no pass
        had told the document of, in a copy that was put back, is one of now (`untold` in merges/ledger.py): the removal
        takes no line with these words that others have from before, and that this host has not heard of again."""
        enrolled = self.enrolled()
        unknown = self.brought(line, enrolled) - self.brought(line, (folder.name,)) if line in folder.untold else ()
        if folder.name not in enrolled:
            folder.unheard.add(line)
            self.kept[line] = {name for name in enrolled if line in _lines(self.folders[name])}
        elif unknown or self.now_ms(folder) - folder.came_ms.get(line, 0) < RECENT_MS:
            self.maybe.add(line)
        else:
            self.removed.add(line)

    def brought(self, line: str, names: Iterable[str]) -> set[Brought]:
        """The elements of this line in the documents of these folders."""
        return {one.brought for name in names for one in _elements(self.folders[name]) if one.text == line}

    def look(self, name: str = "") -> None:
        """What a worker does every few seconds: whether it may act, and a merge."""
        folder = self.folders[name] if name else self.any()
        if folder.paused_until > self.now:
            return
        with suppress(HoldfastError, OSError):
            found = find_standing(folder.home, clock=CLOCK)
            folder.acts_until = self.now + LEASE_S if found.may_act else 0.0
        with suppress(HoldfastError, OSError):
            if folder.merging is None or folder.signature != merge_job._signature(folder.home):
                folder.signature = merge_job._signature(folder.home)
                opened = open_merging(folder.home)
                folder.merging = None if opened is None else opened[0]
            if folder.merging is not None and folder.merging.is_due(now_ms=self.now_ms(folder)):
                before = set(_lines(folder))
                try:
                    folder.merging.run(now_ms=self.now_ms(folder))
                finally:
                    folder.came_ms |= dict.fromkeys(set(_lines(folder)) - before, self.now_ms(folder))

    def cut_or_heal(self) -> None:
        name = self.random.choice(list(self.folders))
        self.cut ^= {name}

    def pause(self) -> None:
        self.any().paused_until = self.now + self.random.uniform(1, 5 * LEASE_S)

    def restart(self) -> None:
        folder = self.any()
        folder.merging, folder.acts_until = None, 0.0

    def set_clock(self) -> None:
        self.any().skew_ms = self.random.choice((0, -3_600_000, 60_000, 86_400_000))

    def fill(self) -> None:
        """Its disk is full during one look."""
        self.full = self.any().name
        try:
            self.look(self.full)
        finally:
            self.full = ""

    def keep_snapshot(self) -> None:
        folder = self.any()
        if folder.snapshot is None:
            folder.snapshot = self.root / f"{folder.name}.snapshot"
            ignored = shutil.ignore_patterns(INSTANCE)
            shutil.copytree(folder.home.folder, folder.snapshot, ignore=ignored)

    def restore(self) -> None:
        """The disk is lost; the folder is put back from its copy, and its owner enrols it again."""
        folder = self.any()
        others = [name for name in self.reachable() if name != folder.name]
        if folder.snapshot is None or folder.name not in self.enrolled() or not others:
            return
        self.lose_lines(folder)
        shutil.rmtree(folder.home.folder)
        snapshot = folder.snapshot
        new = self._put(folder.name, snapshot)
        new.written, new.came_ms, new.snapshot, new.skew_ms = folder.written, folder.came_ms, snapshot, folder.skew_ms
        new.untold = set(_lines(new)).difference(one.text for one in _elements(new))
        self.change(others[0], lambda change: change.remove(folder.name))
        self.look(folder.name)  # it is a copy by now
        if folder.name not in self.cut:
            self.change(folder.name, lambda change: change.enrol_here(folder.name))

    def lose_lines(self, folder: Folder) -> None:
        """What no other instance shows is gone with this one, whoever wrote it; what was removed on it may be back."""
        known = {line for name in self.enrolled() if name != folder.name for line in _lines(self.folders[name])}
        self.maybe |= {line for line in folder.written if line not in known or line in self.removed}
        self.maybe |= set(_lines(folder)) - known
        for names in self.kept.values():
            names.discard(folder.name)

    def copy(self) -> None:
        """The whole folder is copied, with its instance key."""
        folder = self.any()
        if self.copies < 2 and folder.home.folder.exists():
            self.copies += 1
            name = f"copy{self.copies}"
            shutil.copytree(folder.home.folder, self.root / name)
            self.folders[name] = Folder(name, load_home(self.root / name))

    def take_twice(self) -> None:
        """The package of an enrolled instance was used on a second host too, after the first has run."""
        names = [name for name in self.reachable() if self.folders[name].acts_until > 0]
        if names and self.copies < 2:
            self.copies += 1
            folder, name = self.folders[self.random.choice(names)], f"copy{self.copies}"
            new = self._put(name, folder.home.folder)
            key = _pair_of(folder)
            if key is not None:
                with key:
                    keep_enrolment(new.home.instance, key, id=self._id(folder), clock=CLOCK)

    def remove(self) -> None:
        names = list(self.enrolled())
        by = [name for name in self.reachable() if len(names) > 2]
        if by:
            gone = self.random.choice(names)
            helper = self.random.choice(by)
            if helper != gone and self.change(helper, lambda change: change.remove(gone)):
                self.lose_lines(self.folders[gone])
                self.edit(gone)  # a person has not heard of it
                for name in (gone, *names):
                    self.look(name)

    def enrol_again(self) -> None:
        out = [name for name in self.folders if name in NAMES and name not in self.enrolled() and name not in self.cut]
        if out:
            name = self.random.choice(out)
            self.change(name, lambda change: change.enrol_here(name))

    def change_role(self) -> None:
        names = self.reachable()
        if names:
            name, role = self.random.choice(list(self.enrolled())), self.random.choice((Role.PRIMARY, Role.STANDBY))
            self.change(self.random.choice(names), lambda change: change.give_role(name, role))

    # --- what must be true ------------------------------------------------------------------------

    def find_stranger(self) -> str:
        since = self.now - LEASE_S - LOOK_S
        current = [listed for at, listed in self.listed if at >= since]
        before = [listed for at, listed in self.listed if at < since]
        for name, folder in self.folders.items():
            if folder.acts_until <= self.now:
                continue
            if name not in NAMES:
                return f"at {self.now:g} s: {name} acts, and is a copy"
            key = _key_of(folder)
            roles = [listed[key][1] for listed in (*before[-1:], *current) if key in listed]
            if Role.PRIMARY not in roles:
                return f"at {self.now:g} s: {name} acts, and its roles were {[one.value for one in roles]}"
        return ""

    def settle(self) -> str:
        """The network is whole, all run, and looks change nothing more."""
        self.cut, before = set(), None
        for folder in self.folders.values():
            folder.paused_until, folder.merging = 0.0, None
        for _ in range(ROUNDS_MAX):
            self.now += 700.0
            for name in self.folders:
                self.look(name)
            after = {name: _lines(one) for name, one in self.folders.items()}, dict(self.texts)
            if after == before:
                return ""
            before = after
        return f"something still changes after {ROUNDS_MAX} rounds"

    def judge(self) -> str:
        enrolled = self.enrolled()
        for name, folder in self.folders.items():
            found = find_standing(folder.home, clock=CLOCK)
            wanted = enrolled.get(name)
            kind = StandingKind.COPY if wanted is None else StandingKind(wanted.value)
            if found.kind is not kind:
                return f"{name} is {kind.value} by the roster, and finds that it is {found.kind.value}: {found.text}"
        if len(enrolled) < 2:
            return ""
        texts = {name: _lines(self.folders[name]) for name in enrolled}
        if len({tuple(one) for one in texts.values()}) > 1:
            waits = {name: self.folders[name].merging for name in enrolled}
            return f"MEMORY.md differs: { ({name: one and one.state.files for name, one in waits.items()}) }"
        counts = Counter(next(iter(texts.values())))
        return self._judge_lines(counts, enrolled)

    def _judge_lines(self, counts: Counter[str], enrolled: dict[str, Role]) -> str:
        for name, folder in self.folders.items():
            for line, was_enrolled in folder.written.items():
                if counts[line] > 1:
                    return f"{line!r} is there {counts[line]} times"
                if line in self.maybe:
                    continue
                if line in self.removed and counts[line]:
                    return f"{line!r} was removed and is back"
                if name in enrolled and line not in self.removed and not counts[line]:
                    return f"{line!r} is lost"
                if self.kept.get(line) and not counts[line]:
                    return f"{line!r} was removed in a folder that is not enrolled, and is gone"
                if name not in enrolled and not was_enrolled and counts[line]:
                    return f"{line!r} was written in a folder that is not enrolled, and was taken"
        return ""


def _lines(folder: Folder) -> list[str]:
    path = folder.home.memory_file
    return path.read_text().splitlines() if path.exists() else []


def _elements(folder: Folder) -> list[SharedLine]:
    place = MemoryPlace(folder=folder.home.folder)
    shared = SharedFile(place, folder.home.memory_file, instance=folder.name).document
    return [] if shared.document is None else shared.document.elements()


def _pair_of(folder: Folder) -> KeyPair | None:
    from holdfast.identity.files.own_log import find_own_log
    from holdfast.identity.lease.enrolment import find_enrolment

    log = find_own_log(folder.home.folder, PORT)
    return None if log is None else find_enrolment(folder.home.instance, id=log.id, clock=CLOCK)


def _key_of(folder: Folder) -> str:
    key = _pair_of(folder)
    if key is None:
        return ""
    with key:
        return key.public


def find_breach(seed: int) -> str:
    """What is wrong in this world; empty where nothing is."""
    source, vault = template()
    with tempfile.TemporaryDirectory(dir=source.parent) as folder, open_vault(vault) as keys:
        return World(seed, Path(folder), keys).run()


def drop_template() -> None:
    """Of this process."""
    shutil.rmtree(template()[0].parent, ignore_errors=True)
    template.cache_clear()
