"""An agent's folder out of its snapshots.

The newest valid head that any source knows says how far the backups had come; the newest snapshot
that some place still holds is taken, and the distance between the two is reported. It is fetched
past a lock that a dead machine may hold, into a folder beside the target, compared whole with its
signed manifest, its journal checked; then the caller prepares it (a new incarnation, a new
identity); and only then it takes the place of the target in one act (folder_swap.py), whose old state
is kept under another name. A kill anywhere leaves the target as it was or as it was restored, never a
mixture; the next run finishes or removes what is left beside it.

Where a place turns out to be damaged the next one that holds the same snapshot is taken; then the snapshot is
joined, each file from a place that has it whole (restore_files.py); then an older snapshot is taken, and the
report says so, as it happens and at the end (restore_choice.py). Single files are fetched without the rest.

What a snapshot never holds is taken over from the old folder, where there is one: this host's
`instance/`, with its high-water mark of the journal, and the pointer to the vault.

instance/restored.json says that a folder was restored, and from which snapshots it may be. It is written
before the folder takes its place, so that a recovery that was cut short after that resumes, instead of
restoring again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.backup.archive.contained_writer import sync_tree
from holdfast.backup.archive.manifest import SnapshotNote
from holdfast.backup.archive.reader import Snapshot
from holdfast.backup.backups import STAGING, alone
from holdfast.backup.chain.chain import Lag, behind
from holdfast.backup.chain.heads import HEADS, HeadFile, Held
from holdfast.backup.chain.sources import Overview, look_around, survey
from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.places import Passphrases, Place, repository_of
from holdfast.backup.report import head_fields
from holdfast.backup.restore.restore_choice import Failures, Passed, RestoreCandidate, Wish, candidates, moment
from holdfast.backup.restore.restore_files import DamagedFile, FileRestore, FoundFiles, check_free, outermost, put_files
from holdfast.backup.snapshot.place_snapshots import SCRATCH, Check, check_snapshot, fetch
from holdfast.core.clock import iso
from holdfast.core.decoding import decode_json
from holdfast.core.ports import KeyRing
from holdfast.errors import BackupBusy, BadInput, HoldfastError
from holdfast.host.folder_swap import remove_tree, settle, swap_in
from holdfast.host.manifest import find_bad_name
from holdfast.host.private_files import (
    FOLDER_MODE,
    check_place,
    disk_error,
    ensure_private_folder,
    open_private,
    read_private,
    write_atomically,
)
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.statements.statements import Head
from holdfast.journal.bind import use_all_alone
from holdfast.layout.agent_home import home_in

INSTANCE = "instance"
CARRIED = ("keys.json",)
BUSY_WAIT_S = 5.0
NAMED_MAX = 100  # links and notes in a report; the rest is counted

Prepare = Callable[[Path, int], Awaitable[None]]  # a restored folder, and when its snapshot began, in unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a restore needs: where to look, what opens it, and whose heads count."""

    engine: BackupEngine  # its program; a restore takes a fresh base folder
    places: Sequence[Place]
    escrow: Passphrases
    log: KeyLog
    keys: KeyRing | None = None
    others: Mapping[str, Held] = field(default_factory=dict[str, Held])  # heads from elsewhere
    checks: Sequence[Check] = ()
    port: Signatures = field(default_factory=Sodium)


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    done: bool
    seq: int
    archive: str
    place: str
    at: int  # unix seconds, for older programs
    time: str  # the same as ISO 8601
    incarnation: int
    journal_sequence: int | None
    files: int
    bytes: int
    newest_known: int  # number of the newest head that anybody has
    behind: Lag | None  # that head; None where it is the one that was restored
    passed: tuple[Passed, ...] = ()
    damaged: tuple[DamagedFile, ...] = ()  # of single files: those that no place has whole
    paths: tuple[str, ...] = ()  # of single files: those that are, or would be, restored
    links_left: tuple[str, ...] = ()  # links that lead outside are not made again
    links_left_count: int = 0  # in all: of a long list the first are named
    notes: tuple[SnapshotNote, ...] = ()  # of the snapshot: what was left out of it, what changed meanwhile
    notes_count: int = 0
    findings: tuple[str, ...] = ()
    kept: str = ""  # where the old state is
    look_s: float = 0.0
    fetch_s: float = 0.0
    check_s: float = 0.0
    swap_s: float = 0.0


async def restore_to(
    target: Path, means: Means, wish: Wish | None = None, *, dry_run: bool = False, prepare: Prepare | None = None
) -> RestoreReport:
    """Put the agent's folder, or some of its files, at `target`, from the best snapshot there is.
    `prepare` gets the whole restored folder before it takes its place; what it raises leaves the target as it was. With
    `dry_run` nothing is fetched or changed. Raises SnapshotNotFound: no place holds a snapshot that a valid head names,
    or not that one; BackupDamaged, ArchiveRefused and others: of the last one tried, where none could be used;
    JournalBusy, BackupBusy: another process uses the agent's folder."""
    wish = wish or Wish()
    for path in wish.files:
        if any(find_bad_name(name) for name in path.split("/")):
            raise BadInput(f"{path!r} is not a path inside the agent's folder")
    wish = replace(wish, files=outermost(wish.files))
    run = _Restore(Path(os.path.abspath(target)), means, wish)
    return await run.plan() if dry_run else await run.run(prepare)


class _Restore:
    def __init__(self, target: Path, means: Means, wish: Wish) -> None:
        self._target = target
        self._means = means
        self._wish = wish
        self._failures = Failures()
        # Single files go into a folder that may be a mount of its own, or under one of others.
        inside = bool(wish.files) and target.is_dir()
        if not target.name and not inside:
            raise BadInput(f"Holdfast cannot restore an agent into {target}: give a folder below it")
        self._near = target if inside else target.parent
        self._own = f".{target.name}" if not inside else ".holdfast"
        self._work = self._near / f"{self._own}.restoring-{os.urandom(4).hex()}"

    async def plan(self) -> RestoreReport:
        try:
            found, look_s = await self._look()
            made = candidates(found, self._wish)
            if self._wish.files:
                some = await self._file_restore().plan(made)
                return self._of_files(found, some, done=False, look_s=look_s)
        finally:
            await asyncio.to_thread(remove_tree, self._work)
        return self._report(found, made[0].head.record, made[0].places[0], done=False, look_s=look_s)

    async def run(self, prepare: Prepare | None) -> RestoreReport:
        check_place(self._target, allow_network_fs=True)
        check_free(self._target, self._wish.files)
        if not self._target.parent.is_dir():  # one that is there may be open to others
            ensure_private_folder(self._target.parent)
        async with AsyncExitStack() as held:
            held.enter_context(_turn(self._near / f"{self._own}.restore.lock"))
            await asyncio.to_thread(self._clear)
            await self._hold(held)
            try:
                return await self._run(prepare)
            finally:
                await asyncio.to_thread(self._drop_work)

    async def _run(self, prepare: Prepare | None) -> RestoreReport:
        found, look_s = await self._look()
        began = time.monotonic()
        made = candidates(found, self._wish)
        if self._wish.files:
            return await self._run_files(found, made, look_s=look_s)
        chosen, place, snapshot, check_s = await self._fetched(made)
        fetched = time.monotonic()
        kept = await self._put(snapshot, found, prepare)
        took = {"fetch_s": fetched - began - check_s, "check_s": check_s, "swap_s": time.monotonic() - fetched}
        return msgspec.structs.replace(
            self._report(found, chosen.head.record, place, done=True, look_s=look_s, **took),
            kept=kept,
            links_left=snapshot.links_left[:NAMED_MAX],
            links_left_count=len(snapshot.links_left),
            notes=snapshot.notes[:NAMED_MAX],
            notes_count=len(snapshot.notes),
        )

    async def _look(self) -> tuple[Overview, float]:
        means, began = self._means, time.monotonic()
        ensure_private_folder(self._work)
        listed = await look_around(self._fresh(), means.places, means.escrow)
        found = await survey(self._fresh(), listed, means.others, means.log, means.escrow, port=means.port)
        return found, time.monotonic() - began

    def _fresh(self) -> BackupEngine:
        return self._means.engine.fresh(self._work / "base")

    async def _fetched(self, made: Sequence[RestoreCandidate]) -> tuple[RestoreCandidate, Place, Snapshot, float]:
        """The first that is what its head says, with a usable journal."""
        say = self._means.engine.progress.say
        for number, one in enumerate(made):
            for place in one.places:
                try:
                    snapshot, check_s = await self._tried(one, place)
                except HoldfastError as error:
                    self._failures.add(one.head.record, place.name, error)
                    say(f"skipped snapshot {one.head.record.seq} at {place.name}: {error}")
                    continue
                if one is not made[0]:
                    say(_loss(made[0].head.record, one.head.record))
                return one, place, snapshot, check_s
            self._failures.check_older(one.head.record)
            joined = await self._joined(one, made[number + 1 :])
            if joined is not None:
                place, snapshot, check_s = joined
                return one, place, snapshot, check_s
        error = self._failures.last()
        error.hint += "; to restore single undamaged files: `holdfast recover --file PATH --to FOLDER`"
        raise error

    async def _tried(self, one: RestoreCandidate, place: Place) -> tuple[Snapshot, float]:
        work = self._work / "tree"
        await asyncio.to_thread(remove_tree, work)
        ensure_private_folder(work)
        repository = repository_of(place, self._means.escrow)
        snapshot = await fetch(self._fresh(), repository, one.head, work, durable=True)
        return snapshot, await self._checked(snapshot)

    async def _checked(self, snapshot: Snapshot) -> float:
        began = time.monotonic()
        await asyncio.to_thread(check_snapshot, snapshot, self._means.keys, self._means.checks)
        return time.monotonic() - began

    async def _joined(
        self, one: RestoreCandidate, older: Sequence[RestoreCandidate]
    ) -> tuple[Place, Snapshot, float] | None:
        """The snapshot that no place has whole, from all of them together; None where that is not possible."""
        head, say = one.head.record, self._means.engine.progress.say
        say(f"no place has an undamaged snapshot {head.seq}: looking for each of its files in all places")
        await asyncio.to_thread(remove_tree, self._work / "tree")
        found = await self._file_restore(Failures()).join(one, older)
        if found is None:
            return None
        place, snapshot = found
        try:
            check_s = await self._checked(snapshot)
        except HoldfastError as error:
            self._failures.add(head, place.name, error)
            return None
        say(f"snapshot {head.seq} was joined from undamaged files of several places or snapshots")
        return place, snapshot, check_s

    def _file_restore(self, failures: Failures | None = None) -> FileRestore:
        failures = failures or self._failures
        return FileRestore(self._fresh(), self._means.escrow, self._work, failures, self._wish.files)

    async def _run_files(self, found: Overview, made: Sequence[RestoreCandidate], *, look_s: float) -> RestoreReport:
        began = time.monotonic()
        some = await self._file_restore().gather(made)
        fetched = time.monotonic()
        try:
            await asyncio.to_thread(put_files, some, self._target, self._wish.files)
        except OSError as error:
            raise disk_error(error, self._target) from error
        took = {"fetch_s": fetched - began, "swap_s": time.monotonic() - fetched}
        return self._of_files(found, some, done=True, look_s=look_s, **took)

    async def _put(self, snapshot: Snapshot, found: Overview, prepare: Prepare | None) -> str:
        state = snapshot.state
        await asyncio.to_thread(self._complete, state, found)
        if prepare is not None:
            await prepare(state, snapshot.about.at)
        await asyncio.to_thread(_set_mode, state, snapshot.about.mode)
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        aside = self._target.with_name(f"{self._target.name}.before-{stamp}")
        await asyncio.to_thread(sync_tree, state)  # what was added after the fetch, before the name leads to it
        # Not in a thread: a signal must not let go of a swap that is half done.
        return str(aside) if swap_in(state, self._target, aside=aside) else ""

    def _drop_work(self) -> None:
        """Never with a swap that was cut off: then the old folder may be in there."""
        if not self._wish.files:
            try:
                settle(self._target)
            except (HoldfastError, OSError):
                return  # its note stays, and the next run settles it
        remove_tree(self._work)

    def _complete(self, state: Path, found: Overview) -> None:
        """What no snapshot holds: this host's own, and the heads since."""
        for folder in {state, home_in(state)}:
            os.chmod(folder, FOLDER_MODE)
        old, new = home_in(self._target), home_in(state)
        HeadFile(new / HEADS).append_missing(found.chain.heads)
        for name in CARRIED:
            if (old / name).is_file() and not os.path.lexists(new / name):
                shutil.copy2(old / name, new / name, follow_symlinks=False)
        if (old / INSTANCE).is_dir():
            shutil.copytree(old / INSTANCE, new / INSTANCE, symlinks=True, ignore=_not_carried)

    async def _hold(self, held: AsyncExitStack) -> None:
        """No other process may use the folder that is about to be replaced."""
        instance = home_in(self._target) / INSTANCE
        if self._wish.files or not instance.is_dir():
            return
        held.enter_context(alone(instance / "backup"))
        for use in await use_all_alone(instance, wait_s=BUSY_WAIT_S):
            held.enter_context(use)

    def _clear(self) -> None:
        if self._target.name:
            settle(self._target)
        for path in self._near.glob(f"{self._own}.restoring-*"):
            remove_tree(path)

    def _of_files(self, found: Overview, some: FoundFiles, *, done: bool, **took: float) -> RestoreReport:
        restored = some.restored
        return msgspec.structs.replace(
            self._report(found, some.chosen.head.record, some.place, done=done, **took),
            files=len(restored),
            bytes=sum(one.size for one in restored),
            damaged=some.damaged,
            paths=tuple(one.path for one in restored),
            links_left=some.links_left[:NAMED_MAX],
            links_left_count=len(some.links_left),
        )

    def _report(self, found: Overview, head: Head, place: Place, *, done: bool, **took: float) -> RestoreReport:
        """`took`: the seconds that each part took, by the name of its field."""
        newest = found.chain.newest
        known = head if newest is None else newest.record
        places = (f"place {one.place.name}: {text}" for one in found.places for text in one.findings)
        report = RestoreReport(
            target=str(self._target),
            done=done,
            **head_fields(head),
            place=place.name,
            at=head.at,
            time=iso(head.at * 1000),
            newest_known=known.seq,
            behind=behind(known, head),
            passed=tuple(self._failures.passed),
            findings=(*found.findings, *places),
        )
        return msgspec.structs.replace(report, **{name: round(seconds, 3) for name, seconds in took.items()})


def _set_mode(state: Path, mode: int) -> None:
    """A home of Holdfast's is for its owner alone. The folder of an adopted agent, around one, gets
    the mode it had, less what no adopted folder may have: a write bit for everybody."""
    if home_in(state) != state and mode >= 0:
        os.chmod(state, (mode | FOLDER_MODE) & ~0o002)


def _loss(wanted: Head, taken: Head) -> str:
    """What it costs that an older one was taken."""
    lag = behind(wanted, taken)
    steps = "" if lag is None or lag.steps is None else f" and {lag.steps:,} records of the journal"
    seconds = 0 if lag is None else lag.seconds
    return (
        f"WARNING: no place has an undamaged snapshot {wanted.seq} of {moment(wanted.at)}; the newest "
        f"undamaged one is {taken.seq} of {moment(taken.at)}: {seconds:,} s{steps} are lost"
    )


def finish_swap(target: Path) -> None:
    """After a restore that was killed when the name led to the new folder already: the old one is moved to where it is
    kept. Raises BackupBusy, BackupDamaged."""
    with _turn(target.with_name(f".{target.name}.restore.lock")):
        settle(target)


@contextmanager
def _turn(path: Path) -> Generator[None]:
    """One restore to a target at a time; its file is removed afterwards. Raises BackupBusy."""
    while True:
        fd = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise BackupBusy(f"another process is restoring {path.name}") from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                break
        os.close(fd)  # its holder removed the name meanwhile
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _not_carried(folder: str, names: list[str]) -> list[str]:
    """Sockets and the like, and what backups left under way."""
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    kept = {name for name, mode in modes.items() if stat.S_ISREG(mode) or stat.S_ISDIR(mode)}
    return [name for name in names if name not in kept or name == STAGING or name.startswith(SCRATCH)]


RESTORED = "restored.json"
MARK_BYTES_MAX = 64 * 1024
MARK_FORMAT = 1


class RestoredMark(msgspec.Struct, frozen=True, kw_only=True):
    format: int = MARK_FORMAT
    heads: tuple[str, ...]  # digests: the newest that were known then
    restored_ms: int
    incarnation: int | None


def write_mark(instance: Path, mark: RestoredMark) -> None:
    ensure_private_folder(instance)
    write_atomically(instance / RESTORED, msgspec.json.encode(mark) + b"\n")


def find_mark(instance: Path) -> RestoredMark | None:
    """None where the folder was never restored, or the file cannot be read."""
    try:
        found = decode_json(read_private(instance / RESTORED, MARK_BYTES_MAX), RestoredMark)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if found.format == MARK_FORMAT else None
