"""Snapshots of an agent: made in all its places at once, listed, and restored for a test.

One snapshot is staged, and every place is fed from it, each at its own pace and with its own
result (place_snapshots.py). `made` and `verified` are different facts, and only the second counts.

One process at a time makes or checks snapshots of an agent, by a lock in its instance folder.
Staging and scratch are there too; the next run removes what a kill left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from holdfast.backup.archive.manifest import ENTRIES_MAX
from holdfast.backup.archive.reader import HEAD_NAME
from holdfast.backup.chain.chain import Chain, joined, valid_heads
from holdfast.backup.chain.heads import HEADS, HeadFile, Held, parse_copy
from holdfast.backup.chain.sources import (
    FORK_HINT,
    LeftHead,
    Overview,
    fork_text,
    leave_head,
    look_around,
    read_near,
    survey,
)
from holdfast.backup.engine import SILENT, Amount, Progress
from holdfast.backup.places.backup_places import BackupPlaces, open_places
from holdfast.backup.places.cloud_copy import bring
from holdfast.backup.places.companion_files import log_in_companions, read_companions
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.place_states import PlaceStates
from holdfast.backup.places.places import Place, check_there, get_place, place_error
from holdfast.backup.places.published import check_not_replaced
from holdfast.backup.record import Warned, find_missing, find_older, own_heads, record_listing, take_over
from holdfast.backup.report import MadeSnapshot, NowReport, PlaceResult, VerifyReport, head_fields, result_of
from holdfast.backup.snapshot.kept import clear
from holdfast.backup.snapshot.place_snapshots import SCRATCH, Check, PlaceSnapshots, projection_check, sealed_check
from holdfast.backup.snapshot.staging import Staged, Subject, seal_staged, stage
from holdfast.backup.turns import check_backs_up, next_number, taking_snapshot
from holdfast.core.clock import Clock, SystemClock
from holdfast.core.ports import KeyRing
from holdfast.errors import BackupBusy, BackupInterrupted, HoldfastError, PlaceNotFound, SnapshotFailed
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import ensure_private_folder, open_private, write_atomically
from holdfast.host.version import find_version
from holdfast.identity.files.own_log import find_pending
from holdfast.identity.journal_keys.keyfile import KeyFile
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.signed import Signed
from holdfast.identity.speaker.open_speaker import home_speaker, open_speaker
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.statements import Head
from holdfast.identity.vault.ring import Escrow, read_escrow
from holdfast.identity.vault.vault import Vault
from holdfast.identity.witness.open_witnesses import fetch_copies, open_witnesses
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome

LOCK = "snapshot.lock"
STAGING = "staging"
ROOM_BYTES = 1 << 30  # the kept staging folder leaves at least so much of the disk free
NAME_CHARS_MAX = 80
_ODD = re.compile(r"[^A-Za-z0-9._-]")


class Backups:
    """The snapshots of one agent, with its places and its speaker at hand."""

    def __init__(
        self,
        places: BackupPlaces,
        speaker: Speaker,
        *,
        keys: KeyRing | None,
        clock: Clock | None = None,
        port: Signatures | None = None,
        checks: Sequence[Check] = (),
    ) -> None:
        self.home = places.home
        self.places = places
        self._speaker = speaker
        self._clock = clock or SystemClock()
        self._port = port or Sodium()
        self._progress = places.engine.progress
        self._folder = self.home.instance / "backup"
        self._at = PlaceSnapshots(places, keys, checks, self._clock, self._folder)

    async def now(self, only: Sequence[str] = (), *, check: bool = True) -> NowReport:
        """A snapshot of the agent as it is now, in all places or these, each restored for a test.
        What happens in a place is in the report and in its state, and stops no other place. Raises BackupBusy: another
        process is at it; SnapshotFailed: the folder could not be staged, or a newer incarnation has backups."""
        async with self._alone():
            return await self._now(lambda: self._chosen(only), check=check)

    async def into_new(self, drafts: Sequence[Place], switch: Callable[[NowReport], Awaitable[None]]) -> NowReport:
        """A snapshot in the repositories that these places are to have next, restored for a test. `switch` takes over
        those that have it, before any other process makes a backup. Raises as `now`."""
        async with self._alone():
            report = await self._now(lambda: tuple(drafts), check=True)
            await switch(report)
            return report

    async def _now(self, choose: Callable[[], tuple[Place, ...]], *, check: bool) -> NowReport:
        check_backs_up(self.home)
        chosen = choose()
        began = time.monotonic()
        beside = await self._companions()
        await self._check_not_replaced(beside)
        chain, older = await self._chain_to_continue(beside)
        staged, head = await self._snapshot(chain, older)
        staged_s = time.monotonic() - began
        named = [one.record.archive for one in (*chain.heads, head)]
        results, left = await self._to_places(chosen, staged, head, named, check=check)
        return NowReport(
            snapshot=MadeSnapshot(**head_fields(head.record), notes=staged.notes),
            staging_s=round(staged_s, 3),
            places=tuple(results),
            relays=left.relays,
            seconds=round(time.monotonic() - began, 3),
            warnings=(*(() if older is None else (older,)), *_forks(chain)),
        )

    async def _check_not_replaced(self, beside: Mapping[str, dict[str, bytes]]) -> None:
        """Raises KeysReplaced where a place or a witness knows that somebody else speaks for the agent. One is enough
        to stop the backup to all of them: the others may only not have heard of it yet."""
        log, pending = self._speaker.log(), find_pending(self.home.folder)
        mine = () if pending is None else (pending.digest,)
        reached = open_witnesses(self.home.witnesses, port=self._port)
        copies = {f"place {name}": log_in_companions(files) for name, files in beside.items()}
        held, _silent = await fetch_copies(log.id, reached.by_key)
        copies |= {f"witness {reached.addresses[key]}": copy for key, copy in held.items()}
        for where, copy in copies.items():
            check_not_replaced(log, copy, where=where, port=self._port, pending=mine, home=self.home)

    async def _chain_to_continue(self, beside: Mapping[str, dict[str, bytes]]) -> tuple[Chain, Warned | None]:
        """The chain that the next head continues, and a warning if the folder is behind it.
        A folder that lost its chain, or was put back, must not begin a second one."""
        chain = await self._near_chain(beside)
        if chain.newest is None or self._find_older(chain) is not None:
            chain = (await self.look()).chain
        return chain, self._find_older(chain)

    def _find_older(self, chain: Chain) -> Warned | None:
        found = find_older(own_heads(self.places), chain)
        return None if found is None or self._has_all_of(chain) else found

    def _has_all_of(self, chain: Chain) -> bool:
        """Whether other hosts made the snapshots that this folder does not know: the journal that they share with it
        has come as far as the newest one says."""
        admin, mark = journal_at(self.home.journal), chain.newest and chain.newest.record.journal
        if mark is None or not admin.hosts:
            return False
        with contextlib.suppress(HoldfastError):
            found = admin.position()
            return found.journal_id == mark.id and (found.incarnation, found.sequence) >= (
                mark.incarnation,
                mark.sequence,
            )
        return False

    async def look(self) -> Overview:
        """What there is, where, and how far each place is behind."""
        before = self.states()
        engine, escrow = self.places.engine, read_escrow(self.places.vault)
        listed = await look_around(engine, self.places.read(), escrow)
        found = await survey(engine, listed, await self._others(), self._speaker.log(), escrow, port=self._port)
        named = [one.record.archive for one in found.chain.heads]
        for one in listed:
            if one.error is None:
                record_listing(self.places.states, one.place.name, listed=one.archives, named=named, before=before)
        warned = self._find_older(found.chain)
        if warned is not None:
            found = replace(found, findings=(*found.findings, f"{warned.message}; {warned.hint}"))
        return found

    async def verify(self, only: Sequence[str] = (), *, archive: str = "") -> VerifyReport:
        """Restore the newest snapshot of each place for a test, or this one.
        Raises BackupBusy, SnapshotNotFound where no place has any."""
        async with self._alone():
            chosen = self._chosen(only)
            # A backup that was killed may have left a place without its newest head beside it.
            await self.places.refresh_companions(tuple(place.name for place in chosen))
            found = await self.look()
            standing = {one.place.name: one for one in found.places}
            results = await asyncio.gather(
                *(
                    self._at.verify(place, standing[place.name].held, archive, error=standing[place.name].error)
                    for place in chosen
                )
            )
            return VerifyReport(places=tuple(results), findings=self._findings(found))

    def states(self) -> dict[str, PlaceState]:
        return self.places.states.read()

    async def _snapshot(self, chain: Chain, older: Warned | None) -> tuple[Staged, Signed[Head]]:
        newest = chain.newest
        folder = self._folder / STAGING
        ensure_private_folder(folder)
        staged = await self._staged(self._subject(newest), folder)
        self._progress.say(f"copied {staged.files:,} files, {staged.bytes:,} bytes for the snapshot")
        about = staged.about
        if newest is not None and about.e < newest.record.e:
            raise SnapshotFailed(
                f"another copy of the agent replaced this one: this copy has incarnation {about.e}, "
                f"but incarnation {newest.record.e} has made snapshots",
                hint="stop this copy. To use this copy again instead of the other one, run `holdfast recover`",
            )
        archive = archive_name(self.home.name, about.e, about.seq, about.at)
        head = seal_staged(self._speaker, staged, archive=archive, newest=newest)
        write_atomically(folder / HEAD_NAME, head.line() + b"\n")
        take_over(self.places, chain, older, now_ms=self._clock.wall_ms())
        HeadFile(self.home.heads_file).append(head)
        return staged, head

    async def _staged(self, subject: Subject, folder: Path) -> Staged:
        over = threading.Event()

        def on_file(files: int, size: int) -> None:
            if over.is_set():
                raise BackupInterrupted("the snapshot was cancelled")
            self._progress.reached("staging", Amount(files=files, bytes=size))

        try:
            return await asyncio.to_thread(stage, subject, folder, on_file=on_file, boot=self._clock.boot_id)
        finally:
            over.set()  # where this is a cancel, the thread need not copy on

    def _subject(self, newest: Signed[Head] | None) -> Subject:
        home, journal = self.home, self.home.journal
        has_journal = journal_at(journal).exists()
        before = None if newest is None else newest.record
        places = (str(place.root) for place in self.places.read() if place.place_id)
        rules, seal_for = home.covering(), ""
        if home.settings.adopted.seal_secrets:
            with read_escrow(self.places.vault).secrets_identity() as identity:
                seal_for = identity.recipient
        return Subject(
            folder=home.state,
            journal=journal if has_journal else None,
            id=self._speaker.id,
            name=home.name,
            incarnation=None if has_journal else (before.e if before else 1),
            seq=next_number(home, above=before.seq if before else 0),
            at=self._clock.wall_ms() // 1000,
            holdfast=find_version(),
            engine=self.places.engine.label,
            rules=replace(rules, apart=(*rules.apart, *places), entries_max=ENTRIES_MAX, seal=bool(seal_for)),
            seal_for=seal_for,
        )

    async def _to_places(
        self, chosen: Sequence[Place], staged: Staged, head: Signed[Head], named: Sequence[str], *, check: bool
    ) -> tuple[list[PlaceResult], LeftHead]:
        done: dict[str, PlaceResult] = {}
        left: list[LeftHead] = []
        first = asyncio.Lock()

        async def job(place: Place) -> None:
            result = PlaceResult(place=place.name, archive=head.record.archive)
            done[place.name] = result
            await self._at.make(place, staged, head, named, result)
            async with first:
                if not left:
                    left.append(await self._leave(head))
            if check:
                await self._at.check(place, head, result)

        errors = await run_jobs(chosen, job, states=self.places.states, now_ms=self._clock.wall_ms)
        if left:
            await self.places.refresh_companions()  # the head to the places that do not hold its snapshot
        for name, error in errors.items():
            result = done.setdefault(name, PlaceResult(place=name))
            wrong = error or find_missing(name, self.places.states.of(name))
            if wrong is not None:
                result_of(result, wrong)
        return [done[name] for name in errors], left[0] if left else LeftHead()

    async def _leave(self, head: Signed[Head]) -> LeftHead:
        """The head to witnesses and relays: once the first place holds its snapshot, and before the long test."""
        left = await leave_head(self.home, head, self._speaker.log())
        for text in left.troubles:
            self._progress.say(text)
        return left

    async def _near_chain(self, beside: Mapping[str, dict[str, bytes]]) -> Chain:
        """What the folder, the companion files and the witnesses know; nothing is listed.
        A far host is asked too: a folder that was put back would use its numbers a second time."""
        log = self._speaker.log()
        held = (*(await self._others()).values(), *(parse_copy(files.get(HEADS)) for files in beside.values()))
        return joined(valid_heads(one.heads, log, port=self._port)[0] for one in held)

    async def _companions(self) -> dict[str, dict[str, bytes]]:
        """The companion files of every place that answers; what is wrong with another one its own job says."""
        places = self.places.read()
        answers = await asyncio.gather(*map(self._companions_at, places))
        return {place.name: files for place, files in zip(places, answers, strict=True)}

    async def _companions_at(self, place: Place) -> dict[str, bytes]:
        try:
            return await read_companions(self.places.engine, place)
        except HoldfastError:
            return {}

    async def _others(self) -> dict[str, Held]:
        return await read_near(self.home, self._speaker.id)

    def _findings(self, found: Overview) -> tuple[str, ...]:
        gaps = tuple(f"head {seq} is missing; only the next head mentions it" for seq in found.chain.gaps)
        places = tuple(f"place {one.place.name}: {text}" for one in found.places for text in one.findings)
        return (*found.findings, *gaps, *places)

    def _chosen(self, only: Sequence[str]) -> tuple[Place, ...]:
        places = self.places.read()
        if not places:
            raise PlaceNotFound(
                f"agent {self.home.name} has no place for backups", hint="add one: `holdfast place add NAME FOLDER`"
            )
        return tuple(get_place(places, name) for name in only) if only else places

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        with alone(self._folder):
            self._clear()
            try:
                async with taking_snapshot(self.home):
                    yield
            finally:
                self._clear()

    def _clear(self) -> None:
        for path in self._folder.glob(f"{SCRATCH}*"):
            remove_tree(path)
        clear(self._folder / STAGING, room_bytes=ROOM_BYTES)


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """One process at a time makes, checks or restores snapshots of an agent. Raises BackupBusy."""
    ensure_private_folder(folder)
    fd = open_private(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupBusy("another process is making or restoring a snapshot of this agent") from None
        yield
    finally:
        os.close(fd)


async def open_backups(
    home: AgentHome, *, ask: Callable[[], str] | None = None, vault: Vault | None = None, progress: Progress = SILENT
) -> Backups:
    """The snapshots of the agent in this folder, with its vault open, or with this one.
    Raises EngineMissing, EngineTooOld, VaultMissing, VaultLocked, LogMissing."""
    places, clock = await open_places(home, ask=ask, vault=vault, progress=progress), SystemClock()
    signed = home.signer is not None and vault is None
    speaker = open_speaker(home, clock) if signed else home_speaker(home.folder, places.vault, clock)
    escrow = read_escrow(places.vault)
    keys = ring_of(escrow)
    return Backups(places, speaker, keys=keys, checks=(projection_check(keys), sealed_check(escrow)))


def ring_of(escrow: Escrow) -> KeyFile:
    """The keys of the journal as a ring, out of the escrow alone."""
    keys = escrow.keys
    return KeyFile(
        k_effect=keys.k_effect, journal_keys=keys.journal_keys, current_journal_key=keys.current, journals=keys.journals
    )


def _forks(chain: Chain) -> list[Warned]:
    """Two heads with one number, unless a restore explains them."""
    return [
        Warned(code="two-heads", message=fork_text(one), hint=FORK_HINT) for one in chain.forks if not one.after_restore
    ]


def archive_name(agent: str, incarnation: int, seq: int, at: int) -> str:
    """`ada-1-7-20261115T190000Z`: unique, because the number is."""
    name = _ODD.sub("-", agent)[:NAME_CHARS_MAX].lstrip("-._") or "agent"
    return f"{name}-{incarnation}-{seq}-{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}"


JOB_S_MAX = 8 * 3600.0  # a first backup over a slow line; above what one run of the engine may take

Job = Callable[[Place], Awaitable[None]]
NowMs = Callable[[], int]
JobErrors = dict[str, HoldfastError | None]  # by place, in the given order


async def run_jobs(
    places: Sequence[Place], job: Job, *, states: PlaceStates, now_ms: NowMs, timeout_s: float = JOB_S_MAX
) -> JobErrors:
    """Do the job for every place at once and record the result of each.
    No place waits for another and none stops another. The sentinel of a place is checked first. Never raises for what
    happens at a place; only a cancel of the whole run ends them all."""

    async def one(place: Place) -> HoldfastError | None:
        error = await _error_of(place, job, timeout_s)
        states.tried(place.name, error, now_ms=now_ms())
        return error

    errors = await asyncio.gather(*map(one, places))
    return {place.name: error for place, error in zip(places, errors, strict=True)}


async def _error_of(place: Place, job: Job, timeout_s: float) -> HoldfastError | None:
    try:
        async with asyncio.timeout(timeout_s):
            await bring(place)
            await asyncio.to_thread(check_there, place)  # a dead network mount may hang
            await job(place)
    except TimeoutError:
        return BackupInterrupted(
            f"place {place.name}: Holdfast stopped its work there, because it took longer than {timeout_s:g} s"
        )
    except (HoldfastError, OSError) as error:
        return place_error(error, place.name)
    return None
