"""The agent as it is before a drill, and whether it is the same after it.

Order matters. First the journal is looked at, and copied where the drill needs a copy: opening a database may settle
its files. Then every file of the agent is marked: size, times, inode, and the digest of what it holds. After the drill
the files are marked again before anything else is opened. A stopped agent must be equal, byte for byte. Beside a
working one only what its own work changes may differ, and each such change is judged: the key log, the witnesses and
the keys are equal, the granted incarnation is the same, new records belong to its own sessions, new heads are signed
and chained by it.

A timer's backup works for a stopped agent too, and Holdfast does not run an adopted agent, so it cannot tell that one
is stopped. What these two change is their own work; every other file of a stopped agent is equal.

Of a repository at a place the data files are marked by size, times and inode alone: they may have many gigabytes, and
no one but the kernel sets the time of a file's last change of status.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.app.binder import open_journal
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.chain.sources import witness_file
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import Place, read_places
from holdfast.core.clock import SystemClock
from holdfast.core.ids import TaskId
from holdfast.core.journal_address import FILE
from holdfast.errors import HoldfastError, NotProven
from holdfast.host.private_files import disk_of
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.lease.arbiter import FolderArbiter
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.statements.statements import find_fault_in_head, follows
from holdfast.identity.vault.slots import find_unattended
from holdfast.identity.vault.vault import read_slots
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter, Journal, SessionRow
from holdfast.layout.agent_home import BY_JOURNAL, AgentHome
from holdfast.layout.covered import CoveredKind, covered_files
from holdfast.layout.settings import read_fields, write_identity_settings, write_journal_url
from holdfast.layout.witness_address import folders_of
from holdfast.runtime.task.talk import ASK
from holdfast.surfaces.alarms import FILE as ALARMS
from holdfast.surfaces.report import FOLDER as REPORTS

SHADOW_HOST = "shadow"  # the name of a shadow's machine, so of its workers
ARBITER = "/srv/holdfast-drill-arbiter"  # in place of a shared journal: one in a file grants nothing
ENDED = ("succeeded", "failed", "cancelled")
HASHED_BYTES_MAX = 64 << 20
PREFIX = "hf1"  # of the id of any agent
TASKS_MAX = 100_000
TASKS_READ = 50  # the newest ones, for what the agent uses
# What a recovery writes again in the restored folder.
REWRITTEN = frozenset(
    (
        *("escrow.age", "handoff.md", "heads.jsonl", "holdfast.toml"),
        *("identity.json", FILE, "kel.jsonl", "places.json", "receipts.jsonl"),
    )
)
# Prints the digest of each file below a folder.
HASHES = """
import hashlib, json, os, sys
found = {}
for at, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(at, name)
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as file:
                found[os.path.relpath(path, sys.argv[1])] = hashlib.file_digest(file, "sha256").hexdigest()
print(json.dumps(found))
"""


class Mark(NamedTuple):
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str


Marks = dict[str, Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """What the journal has acknowledged."""

    id: str
    incarnation: int
    sequence: int
    newest_ms: int
    tasks: frozenset[str]
    live: bool  # a session holds a lease now
    workers: frozenset[str]
    sessions: tuple[SessionRow, ...] = ()
    open_tasks: tuple[str, ...] = ()  # the newest ones first
    model_steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """One agent, looked at."""

    home: AgentHome
    log: KeyLog
    places: tuple[Place, ...]
    journal: JournalFacts | None
    marks: Marks = field(repr=False)
    granted: int  # incarnation, by its arbiter; 0: none

    @property
    def folder_places(self) -> tuple[Place, ...]:
        """Places that a shadow can reach: folders of this machine. A disk that is not mounted leaves an empty one."""
        return tuple(one for one in self.places if one.kind is PlaceKind.FOLDER and one.own.is_dir())

    def is_beside(self, path: Path) -> bool:
        """Whether the path is lost together with the agent's folder: it is on the same disk."""
        return disk_of(path) == disk_of(self.home.folder)

    def lost_with_host(self) -> tuple[Path, ...]:
        """What the loss of this machine takes. Places are not in it: a machine that has them all has no backup, and
        the drill says so."""
        home = self.home
        witnesses = [one for one in folders_of(home.witnesses) if self.is_beside(one)]
        given = [home.state, home.vault, home.second, home.arbiter, home.signer, *witnesses, *self.unlock_files()]
        given.append(Path.home() / ".config" / "holdfast")
        return tuple(dict.fromkeys(one for one in given if one is not None))

    def unlock_files(self) -> tuple[Path, ...]:
        found: list[Path] = []
        for folder in (self.home.vault, self.home.second):
            if folder is not None and folder.is_dir():
                found += [Path(slot.source) for slot in read_slots(folder) if slot.kind == "file"]
        return tuple(found)

    def everything(self) -> tuple[Path, ...]:
        """All paths of the agent: absent where a third party checks its answer."""
        roots = (one.root for one in self.places if one.kind is not PlaceKind.SSH)
        return tuple(dict.fromkeys((*self.lost_with_host(), *folders_of(self.home.witnesses), *roots)))

    def find_locked(self) -> str:
        """Why a process without a person cannot open its vault; empty where it can."""
        vault = self.home.vault
        if vault is None:
            return "the agent has no vault"
        if find_unattended(read_slots(vault)):
            return ""
        return "the vault opens only with a passphrase, and a drill cannot type it"

    def check_opens(self) -> None:
        """Raises NotProven where a process without a person cannot open its vault."""
        if locked := self.find_locked():
            raise NotProven(
                locked, hint="give it another way to open: `holdfast identity add-unlock --unlock-file FILE`"
            )


async def look(home: AgentHome) -> Production:
    """The agent as it is now. Raises NotProven where there is no identity: nothing could be recovered or signed."""
    log = find_own_log(home.folder, Sodium())
    if log is None:
        raise NotProven(
            f"the agent in {home.folder} has no identity", hint="make one: `holdfast init NAME --home FOLDER`"
        )
    journal = await _journal_facts(home)
    return Production(
        home=home,
        log=log,
        places=read_places(home.places_file),
        journal=journal,
        granted=_granted(home, log),
        marks=mark_all(home),
    )


async def _journal_facts(home: AgentHome) -> JournalFacts | None:
    admin = journal_at(home.journal)
    if not admin.exists():
        return None
    opened, _ = await open_journal(home.journal, create=False)
    try:
        sessions = await opened.list_sessions()
        rows = await opened.list_tasks(Filter(limit=TASKS_MAX))
        return JournalFacts(
            id=opened.journal_id,
            incarnation=opened.incarnation,
            sequence=admin.newest_record(),
            newest_ms=max((row.changed_ms for row in rows), default=0),
            tasks=frozenset(str(row.task_id) for row in rows),
            live=any(one.alive for one in sessions),
            workers=frozenset(one.worker for one in sessions),
            sessions=tuple(sessions),
            open_tasks=tuple(str(row.task_id) for row in rows if row.state not in ENDED),
            model_steps=await _asks_models(opened, [row.task_id for row in rows[:TASKS_READ]]),
        )
    finally:
        await opened.close()


async def _asks_models(journal: Journal, newest: Sequence[TaskId]) -> bool:
    """Whether one of these tasks asked a model."""
    for task_id in newest:
        try:
            if any(step.tool == ASK for step in (await journal.read_task(task_id)).steps.values()):
                return True
        except HoldfastError:
            continue  # erased, or damaged: others say it too
    return False


def _granted(home: AgentHome, log: KeyLog) -> int:
    if home.arbiter is None or not home.arbiter.is_dir():
        return 0
    seen = FolderArbiter(home.arbiter, clock=SystemClock()).look(log.id)
    return 0 if seen is None else seen.e


def copy_for_shadow(home: AgentHome, to: Path) -> tuple[tuple[Path, Path], ...]:
    """Files that a running copy of the agent needs besides what a shadow sees anyway: the journal as it was after some
    commit, and settings with a journal in a file and without a signer. Made before the agent is marked."""
    to.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies: list[tuple[Path, Path]] = []
    admin = journal_at(home.journal)
    if admin.exists():
        (to / FILE).touch(0o600)
        admin.copy(to / FILE)
        copies.append((to / FILE, home.folder / FILE))
    settings = to / home.settings_file.name
    settings.write_bytes(home.settings_file.read_bytes())
    settings.chmod(0o600)
    if read_fields(settings).get("journal_url"):
        write_journal_url(settings, "")
    old = home.settings.identity
    identity = replace(old, signer="", arbiter=ARBITER if old.arbiter == BY_JOURNAL else old.arbiter)
    write_identity_settings(settings, name=home.name, identity=identity)
    return (*copies, (settings, home.settings_file))


def gone_in_copy(home: AgentHome) -> tuple[Path, ...]:
    """What a running copy makes for itself: this host's own files, and who may act. It is no instance of the agent, and
    without the roster it is no copy of one either."""
    own = (*gone_with_journal(home), home.roster_file, home.settings_file)
    return own if home.arbiter is None else (*own, home.arbiter)


def gone_with_journal(home: AgentHome) -> tuple[Path, ...]:
    """The journal's file, and what this host has seen of it."""
    return (*(home.folder / f"{FILE}{end}" for end in ("", "-wal", "-shm")), home.instance)


def mark_all(home: AgentHome) -> Marks:
    """Every file that belongs to the agent, wherever it is. Witnesses and arbiters may serve other agents too."""
    marks: Marks = {}
    log = find_own_log(home.folder, Sodium())
    own = "" if log is None else log.id
    given = (home.state, home.vault, home.second, home.arbiter, *folders_of(home.witnesses))
    for root in dict.fromkeys(one for one in given if one is not None):
        for path in _files(root, skip=home.folder / REPORTS):
            name = os.path.basename(path)
            if name.startswith(own) or not name.startswith(PREFIX):
                _add(marks, path, hashed=True)
    for place in read_places(home.places_file):
        if place.kind is not PlaceKind.SSH and place.own.is_dir():
            for path in _files(place.own, skip=None):
                _add(marks, path, hashed="/repository/data/" not in path)
    return marks


def _files(root: Path, *, skip: Path | None) -> Iterator[str]:
    for folder, names, files in os.walk(root):
        if skip is not None:
            names[:] = [name for name in names if os.path.join(folder, name) != str(skip)]
        for name in files:
            yield os.path.join(folder, name)


def _add(marks: Marks, path: str, *, hashed: bool, bytes_max: int = HASHED_BYTES_MAX) -> None:
    try:
        found = os.lstat(path)
        digest = ""
        if stat.S_ISLNK(found.st_mode):
            digest = os.readlink(path)
        elif hashed and stat.S_ISREG(found.st_mode) and found.st_size <= bytes_max:
            digest = hash_file(path)
    except OSError as error:
        marks[path] = Mark(-1, 0, 0, 0, error.strerror or "")
        return
    marks[path] = Mark(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, digest)


def hash_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def find_harm(before: Production) -> tuple[list[str], int]:
    """What of production is not as it was and is not explained by its own work: nothing is the only good answer. And
    how many files changed."""
    home = before.home
    after = mark_all(home)  # before anything is opened
    changed = sorted(path for path in before.marks.keys() | after.keys() if before.marks.get(path) != after.get(path))
    if not changed:
        return [], 0
    now = await look(home)
    live = now.journal is not None and (now.journal.live or before.journal is None or before.journal.live)
    heads = _head_files(home, before.log.id)
    harm: list[str] = []
    if live:
        keys = [one for one in (home.vault, home.second) if one is not None]
        fixed = (home.log_file, home.receipts_file, home.identity_file, *keys, *folders_of(home.witnesses))
        harm += [f"{path} changed" for path in changed if _is_below(path, fixed) and Path(path) not in heads]
    else:
        own = _own_work(before, now, changed, heads)
        for path in changed:
            if not _is_below(path, own) and not _is_adopted(home, path):
                harm.append(f"{path} changed although the agent is stopped")
    if now.granted != before.granted:
        harm.append(f"the arbiter granted incarnation {now.granted}; before the drill it was {before.granted}")
    harm += [f"a worker of a shadow wrote to the journal: {one}" for one in _shadow_workers(now)]
    return [*harm, *_foreign_heads(before, now, [one for one in heads if str(one) in changed])], len(changed)


def _head_files(home: AgentHome, id: str) -> tuple[Path, ...]:
    """Where a backup appends its head: the agent's own file, then those of witnesses."""
    return (home.heads_file, *(witness_file(one, id).path for one in folders_of(home.witnesses)))


def _is_adopted(home: AgentHome, path: str) -> bool:
    """Whether the file is an adopted agent's own."""
    return home.state != home.folder and _is_below(path, (home.state,)) and not _is_below(path, (home.folder,))


def _is_below(path: str, folders: Iterable[Path]) -> bool:
    return any(Path(path).is_relative_to(one) for one in folders)


def _own_work(before: Production, now: Production, changed: Sequence[str], heads: Sequence[Path]) -> tuple[Path, ...]:
    """Files and folders that change although no worker runs: what a look at the level keeps; what a reader of the
    journal makes again, where it has no new record; and, where a backup worked, its files and places."""
    home = before.home
    found = [home.levels_file, home.instance / ALARMS, home.instance / f"{ALARMS}.lock"]
    if _records(before) == _records(now):
        found += [home.folder / f"{FILE}{end}" for end in ("-wal", "-shm")]
    works = (home.instance / "backup", home.instance / "borg")
    if any(_is_below(path, works) for path in changed):
        found += [*works, *heads, *(one.own for one in before.places if one.kind is not PlaceKind.SSH)]
    return tuple(found)


def _records(seen: Production) -> tuple[str, int, int] | None:
    journal = seen.journal
    return None if journal is None else (journal.id, journal.incarnation, journal.sequence)


def _shadow_workers(now: Production) -> list[str]:
    workers = now.journal.workers if now.journal is not None else frozenset[str]()
    return sorted(one for one in workers if one.partition(":")[0] == SHADOW_HOST)


def _foreign_heads(before: Production, now: Production, changed: Sequence[Path]) -> list[str]:
    """Heads in the changed files that are not the agent's own. The agent's file has the whole chain; a witness that was
    away has gaps, but no head that the agent does not have."""
    harm: list[str] = []
    if not changed:
        return harm
    try:
        heads = HeadFile(now.home.heads_file).read().heads
        for one, other in zip((None, *heads), heads, strict=False):
            fault = find_fault_in_head(other, before.log, port=Sodium())
            if fault is not None or (one is not None and not follows(other, one)):
                harm.append(f"head {other.record.seq} of the backups is not the agent's own")
        known = {one.digest for one in heads}
        for path in changed:
            found = HeadFile(path).read()
            last = [one for one in found.heads[-1:] if one.digest not in known]
            harm += [*(f"{path}: head {one.record.seq} is not the agent's own" for one in last), *found.findings]
    except HoldfastError as error:
        return [*harm, error.message]
    return harm


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCompared:
    """The files of a restored folder beside those of production."""

    compared: int
    differing: tuple[str, ...]  # of files that have not changed since the snapshot
    lost: tuple[str, ...]  # changed or new since the snapshot
    lost_ms: int  # when the newest of these was changed; 0: none is lost
    moved: tuple[str, ...]  # of these, by the times of the kernel alone: the file says that it is older
    root_before: str
    root_after: str


Covered = tuple[tuple[str, CoveredKind], ...]


def list_covered(home: AgentHome) -> Covered:
    """Every file that a backup covers, by its path in the agent's folder."""
    return tuple(covered_files(home.state, home.covering()))


def hashes_in(folder: Path) -> dict[str, str]:
    """The digest of each file below a folder of this machine."""
    return {
        os.path.relpath(path, folder): hash_file(path) for path in _files(folder, skip=None) if os.path.isfile(path)
    }


def _mark_whole(marks: Marks, path: str, kind: CoveredKind) -> Mark | None:
    """The mark of a file, with the digest of a large one; of a database, with the time of what waits beside it."""
    mark = marks.get(path)
    if kind is CoveredKind.DATABASE and mark is not None:
        beside = marks.get(f"{path}-wal", mark)
        newest = beside if beside.size and beside.mtime_ns > mark.mtime_ns else mark
        return mark._replace(mtime_ns=newest.mtime_ns, ctime_ns=newest.mtime_ns)
    if kind is not CoveredKind.FILE or mark is None:
        return None
    if mark.size > HASHED_BYTES_MAX and not mark.sha256:
        found: Marks = {}
        _add(found, path, hashed=True, bytes_max=mark.size)
        return found[path]
    return mark


def compare_files(
    production: Production, restored: Mapping[str, str], *, snapshot_s: int, covered: Covered | None
) -> FilesCompared:
    """`restored`: the digest of each file of the agent's folder on the restored machine. A file that production has not
    touched since the snapshot must be there and be equal; one that it has touched counts as lost if it differs. A copy
    that keeps its time of change (`cp -p`) is seen by the time that the kernel alone sets. The copy of a database has
    other bytes: it must be there, and counts as lost if it was written since. The journal is counted by its records.
    `covered`: what there was, if production is gone."""
    state = production.home.state
    own = "" if state == production.home.folder else f"{production.home.folder.relative_to(state).as_posix()}/"
    differing: list[str] = []
    lost: list[str] = []
    moved: list[str] = []
    roots = (hashlib.sha256(), hashlib.sha256())
    count = lost_ns = 0
    for path, kind in list_covered(production.home) if covered is None else covered:
        mark = _mark_whole(production.marks, str(state / path), kind)
        if mark is None or path.removeprefix(own) in REWRITTEN:
            continue
        there = restored.get(path, "")
        count += 1
        since_ns = snapshot_s * 1_000_000_000
        old, changed_ns = mark.mtime_ns < since_ns, max(mark.mtime_ns, mark.ctime_ns)
        if kind is CoveredKind.DATABASE and there and old:
            continue
        if there != mark.sha256 and changed_ns >= since_ns:
            lost.append(path)
            moved += [path] if old else []
            lost_ns = max(lost_ns, changed_ns)
        elif there != mark.sha256:
            differing.append(path)
        elif old:
            roots[0].update(f"{path}\0{mark.sha256}\n".encode())
            roots[1].update(f"{path}\0{there}\n".encode())
    return FilesCompared(
        compared=count,
        differing=tuple(differing),
        lost=tuple(lost),
        lost_ms=lost_ns // 1_000_000,
        moved=tuple(moved),
        root_before=roots[0].hexdigest(),
        root_after=roots[1].hexdigest(),
    )
