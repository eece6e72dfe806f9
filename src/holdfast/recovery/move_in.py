"""`holdfast migrate import`: the agent arrives; `holdfast migrate cancel`: it stays after all.

The import, in this order, and what a kill between two lines leaves:

    a work folder beside the home   removed by the next run
    the package is unsealed         by the vault that the person brought here
    head and files are compared     every byte against the signed manifest
    the journal ends where the head says, and its incarnation is raised: no task is suspect,
                                    because no one has written after the head was signed
    the lease is taken              where there is an arbiter: THE MOMENT, from which the old copy
                                    cannot take the move back; the same package goes on from here
    the folder gets its name        from here on the agent can run

An arbiter in a folder hears of copies on its own machine only; without one the last line is the
moment. No one can know whether the package was taken on a second host too. Here it is taken once:
a folder that has the agent already is replaced only where it was moved away itself, and the
package is newer than all that it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.app.binder import KEYS
from holdfast.app.eviction import check_at_start
from holdfast.app.instances.roster_change import RosterChange
from holdfast.backup.archive.contained_writer import sync_tree
from holdfast.backup.archive.reader import STATE, Snapshot, read_snapshot
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.snapshot.databases import read_mark
from holdfast.core.decoding import decode_json
from holdfast.core.journal_address import FILE, INSTANCE, file_at
from holdfast.core.ports import KeyRing
from holdfast.errors import (
    AgentElsewhere,
    AgentQuarantined,
    BackupDamaged,
    BadInput,
    LogDamaged,
    LogMissing,
    MoveRefused,
    NotAnAgent,
)
from holdfast.host.folder_swap import folders_before, remove_tree, settle, swap_in
from holdfast.host.log import Log
from holdfast.host.private_files import check_place, ensure_private_folder, write_atomically
from holdfast.identity.files.own_log import find_own_log, read_own_log
from holdfast.identity.files.roster_file import read_roster
from holdfast.identity.journal_keys.vault_keys import point_keys
from holdfast.identity.lease.enrolment import destroy_enrolment, find_enrolment, keep_enrolment
from holdfast.identity.lease.instance import Instance
from holdfast.identity.lease.lease_holder import InstanceFile, site_of
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Signed
from holdfast.identity.speaker.open_speaker import VaultSpeaker, home_speaker
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import RosterView
from holdfast.identity.statements.statements import Head, JournalMark, find_fault_in_head
from holdfast.identity.vault.ring import Escrow, change, with_place
from holdfast.identity.vault.vault import Vault
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.moved import (
    MOVED,
    STAGING,
    STANDBY,
    find_mark,
    find_standby,
    has_handed_over,
    remove_mark,
    remove_standby,
)
from holdfast.layout.settings import NAME as SETTINGS
from holdfast.layout.settings import write_identity_settings
from holdfast.layout.witness_address import WitnessAddress
from holdfast.recovery.carry_memory import carry_memory
from holdfast.recovery.move_lease import MoveLease, MoveMeans
from holdfast.recovery.move_package import (
    archive_of,
    digest_of_file,
    head_of,
    is_invitation,
    key_of,
    open_package,
    part_of,
)
from holdfast.recovery.recover_journal import recover_journal

READY = "ready.json"
ARRIVED = "arrived.json"  # the same, in instance/ of the folder that the package became
TREE = "tree"
TAKEN = ".taken"
STANDBY_HINT = (
    "this host has joined and is a standby. If the instance that acts is lost, run `holdfast instance promote` here, "
    "without a file; else `holdfast instance yield NAME FILE` on its host makes the package to give here"
)


class MovedIn(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate import` did."""

    home: str
    id: str
    incarnation: int
    sequence: int
    snapshot: int
    claimed: bool  # the arbiter granted the incarnation to this copy
    kept: str  # where the folder of before lies; empty where there was none
    seconds: float


class MoveCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate cancel` did."""

    home: str
    incarnation: int
    suspect: int  # tasks that look up or ask before they send: no one can know who ran them
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Where things lie on this host; empty: where they lay before."""

    second: str = ""
    arbiter: str = ""
    witnesses: tuple[WitnessAddress, ...] = ()


class ReadyImport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Written when all is done but the claim and the name: an import that was cut short goes on,
    with the key and the counter that it has used."""

    package: str  # its SHA-256
    id: str
    seq: int
    rank: tuple[int, int, int, int]
    archive: str
    incarnation: int  # of the package
    sequence: int


async def move_in(package: Path, target: Path, means: MoveMeans, *, here: HostPaths | None = None) -> MovedIn:
    """Take the package as the agent at `target`.
    `here` says where things lie on this host; what it leaves out is where the package says. Raises MoveRefused: taken
    before, taken back, older than what is here, or of another agent; VaultLocked: sealed for another vault.
    BackupDamaged, ArchiveRefused: not what was sealed."""
    began = time.monotonic()
    check_place(target)
    ensure_private_folder(target.parent)
    settle(target)
    done = await _Arrival(package, target, means, here or HostPaths()).run()
    with contextlib.suppress(OSError):  # it may lie where nothing can be written
        os.rename(package, package.with_name(f"{package.name}{TAKEN}"))
    return msgspec.structs.replace(done, seconds=round(time.monotonic() - began, 3))


@dataclass(frozen=True, slots=True)
class _Arrival:
    package: Path
    target: Path
    means: MoveMeans
    here: HostPaths

    @property
    def work(self) -> Path:
        return self.target.with_name(f".{self.target.name}.moving")

    async def run(self) -> MovedIn:
        taken = self.package.with_name(self.package.name + TAKEN)
        there = self.package if self.package.is_file() else taken
        if not there.is_file():
            raise BadInput(f"there is no package at {self.package}", hint="check the path")
        sha256 = await asyncio.to_thread(digest_of_file, there)
        arrived = find_ready(self.target / INSTANCE / ARRIVED)
        if arrived is not None and arrived.package == sha256 and find_mark(self.target / INSTANCE) is None:
            return await self._arrived(arrived)
        if there == taken:
            joined = find_standby(self.target / INSTANCE) is not None
            raise BadInput(
                f"there is no package at {self.package}: {taken.name} was already taken",
                hint=STANDBY_HINT if joined else "check the path",
            )
        ready = find_ready(self.work / READY)
        state = self.work / TREE / STATE
        if ready is None or ready.package != sha256:
            await asyncio.to_thread(remove_tree, self.work)
            try:
                ready = await self._made_ready(sha256)
            except BaseException:  # also a cancel: a half unpacked package must not stay on the disk
                await asyncio.to_thread(remove_tree, self.work)
                raise
        home = self._home_of(state)
        self._check_newer(ready)
        e, claimed = await self._taken(home, state, ready)
        if has_handed_over(self.target / INSTANCE):  # people may have written to its memory since
            carry_memory(self.target, state)
        kept = self._put(state)
        place_escrow(self.means.vault, self.target)
        self._settle_roster()
        await asyncio.to_thread(remove_tree, self.work)
        return self._done(ready, incarnation=e, claimed=claimed, kept=kept)

    async def _arrived(self, ready: ReadyImport) -> MovedIn:
        """The folder has its name: an earlier run was cut short after that, or has ended."""
        home = load_home(self.target)
        place_escrow(self.means.vault, self.target)
        self._settle_roster()
        await asyncio.to_thread(remove_tree, self.work)
        return self._done(ready, incarnation=ready.incarnation + 1, claimed=home.arbiter is not None)

    def _carry_enrolment(self, state: Path, id: AgentId) -> None:
        """The key by which the roster knows this host stays the one of its folder."""
        key = find_enrolment(self.target / INSTANCE, id=id, clock=self.means.clock)
        if key is not None:
            with key:
                keep_enrolment(state / INSTANCE, key, id=id, clock=self.means.clock)

    def _settle_roster(self) -> None:
        """The folder is in the roster, and no folder of before is; it has the lines that a standby's memory had. Safe
        to repeat."""
        for old in folders_before(self.target):
            if (old / INSTANCE).is_dir():
                destroy_enrolment(old / INSTANCE)
            if os.path.lexists(old / INSTANCE / STANDBY):
                carry_memory(old, self.target)
                remove_standby(old / INSTANCE)
        means = self.means
        RosterChange.at(
            load_home(self.target), means.vault, clock=means.clock, entropy=means.entropy, port=means.port
        ).adopt_here()

    def _done(self, ready: ReadyImport, *, incarnation: int, claimed: bool, kept: str = "") -> MovedIn:
        return MovedIn(
            home=str(self.target),
            id=ready.id,
            incarnation=incarnation,
            snapshot=ready.seq,
            sequence=ready.sequence,
            claimed=claimed,
            kept=kept,
            seconds=0.0,
        )

    async def _made_ready(self, sha256: str) -> ReadyImport:
        """Everything but the claim and the name: unpacked, compared, raised, durable."""
        means = self.means
        tree = self.work / TREE
        for folder in (self.work, tree):
            ensure_private_folder(folder)
        cover, tar = open_package(self.package, means.vault.identity, self.work)
        with key_of(cover) as key:
            head = head_of(cover)
            with tar:
                # Whose head it is can be judged only with the log, which is inside: nothing is used yet.
                snapshot = await asyncio.to_thread(read_snapshot, tar, head, tree, durable=True)
            (self.work / "plain").unlink()
            mark = self._checked(head, key, snapshot)
            record, state = head.record, snapshot.state
            ready = ReadyImport(
                package=sha256,
                id=record.id,
                seq=record.seq,
                rank=record.rank,
                archive=record.archive,
                incarnation=mark.incarnation,
                sequence=mark.sequence,
            )
            self._check_newer(ready)
            furnish(state, means.vault, self.here)
            HeadFile(state / "heads.jsonl").append(head)
            ensure_private_folder(state / INSTANCE)
            self._carry_enrolment(state, record.id)
            await check_at_start(file_at(state / FILE), notices=None, log=Log())
            home = self._home_of(state)
            if (lease := self._lease(home, state)) is not None:
                lease.check_heir(key.public, mark.incarnation)
            keys = self._keys(state)
            await asyncio.to_thread(check_journal_of, state, keys)
            await journal_at(file_at(state / FILE)).raise_incarnation(
                to=mark.incarnation + 1, keys=keys, clock=means.clock
            )
            made = Instance(id=record.id, key=key.public, site=site_of(state / INSTANCE, means.clock))
            InstanceFile(state / INSTANCE, id=record.id, clock=means.clock, entropy=means.entropy).adopt(made, key)
        raw = msgspec.json.encode(ready) + b"\n"
        write_atomically(state / INSTANCE / ARRIVED, raw)
        sync_tree(tree)
        write_atomically(self.work / READY, raw)
        return ready

    def _checked(self, head: Signed[Head], key: KeyPair, snapshot: Snapshot) -> JournalMark:
        """How far the journal had come; all that the package says is true. Raises MoveRefused."""
        means, record = self.means, head.record
        try:
            log = read_own_log(snapshot.state, means.port)
        except (LogMissing, LogDamaged) as error:
            raise MoveRefused(f"the package has no valid key log: {error.message}") from None
        here = find_own_log(self.target, means.port)
        if here is not None and here.id == log.id and log.position < here.position:
            raise MoveRefused(
                "the package was made with keys that were replaced since: the host that made it was locked out",
                hint="destroy it, and invite that host again as a standby",
            )
        fault = find_fault_in_head(head, log, port=means.port)
        if fault is not None:
            raise MoveRefused(f"the head of the package is not valid: {fault.message}")
        self._speaker(snapshot.state).answer("A" * 22)  # only the vault of this agent can say so
        if is_invitation(record.archive, key.public):
            raise MoveRefused(
                f"{self.package} is an invitation: it has no agent to take over",
                hint="`holdfast instance join` makes a standby of it; `holdfast instance yield NAME FILE` on the host "
                "that acts makes the package of a hand-off",
            )
        self._check_addressee(read_roster(snapshot.state, log, means.port), record.id)
        if record.archive != archive_of(snapshot.about.name, key.public):
            raise MoveRefused("the snapshot in the package was not made for this move")
        if record.journal is None or not (snapshot.state / "journal.db").is_file():
            raise MoveRefused("the package has no journal")
        if read_mark(snapshot.state / "journal.db").mark != record.journal:
            raise BackupDamaged("the journal in the package does not match its head: its id or its last record differs")
        return record.journal

    def _check_addressee(self, view: RosterView, id: AgentId) -> None:
        """The package of a hand-off makes one instance the primary: any other folder would take the lease, and wait.
        Raises MoveRefused."""
        key = find_enrolment(self.target / INSTANCE, id=id, clock=self.means.clock)
        if key is None:
            return
        with key:
            own = view.find(key.public)
        if own is not None and own.role is Role.STANDBY:
            named = ", ".join(one.name for one in view.enrolled if one.role is Role.PRIMARY) or "no instance"
            raise MoveRefused(
                f"the package is for {named}, and the folder {self.target} is {own.name}",
                hint=f"use it there; or `holdfast migrate cancel` where it was made, then `holdfast instance yield "
                f"{own.name} FILE`",
            )

    def _check_newer(self, ready: ReadyImport) -> None:
        """What is at the target was moved away, and knows nothing newer. Raises MoveRefused."""
        if not os.path.lexists(self.target):
            return
        try:
            here = load_home(self.target)
        except NotAnAgent:
            if any(self.target.iterdir()):
                raise BadInput(f"{self.target} is not empty, and there is no agent in it") from None
            return
        known = [one.record for one in HeadFile(here.heads_file).read().heads]
        same = [one for one in known if one.id == ready.id]
        if known and not same:
            raise MoveRefused(f"there is another agent in {self.target}")
        if journal_at(here.journal).exists():
            mark = find_mark(here.instance)
            if mark is None or mark.state != MOVED:
                raise MoveRefused(
                    f"there is an agent in {self.target} that was not exported",
                    hint="if you already imported it here, you are done; if not, give another folder with --home",
                )
        if any(one.rank >= ready.rank for one in same if one.archive != ready.archive):
            raise MoveRefused(f"{self.target} has a newer snapshot than the package")

    def _home_of(self, state: Path) -> AgentHome:
        """Its paths are counted from where the home will be."""
        found = load_home(state)
        return AgentHome(folder=self.target, name=found.name, settings=found.settings)

    def _speaker(self, state: Path) -> VaultSpeaker:
        means = self.means
        return home_speaker(state, means.vault, means.clock, means.port)

    def _keys(self, state: Path) -> KeyRing:
        return self.means.keys(state / KEYS)

    def _lease(self, home: AgentHome, state: Path) -> MoveLease | None:
        return MoveLease.of(home, self._speaker(state), self.means, folder=state)

    async def _taken(self, home: AgentHome, state: Path, ready: ReadyImport) -> tuple[int, bool]:
        lease = self._lease(home, state)
        if lease is None:
            return ready.incarnation + 1, False
        try:
            async with lease:
                return await lease.take(lambda: self._keys(state)), True
        except (AgentElsewhere, AgentQuarantined) as error:
            raise MoveRefused(
                f"Holdfast cannot take the lease for this agent: {error.message}",
                hint="the move was cancelled, or another host imported the package: find out "
                "which, then run `holdfast migrate import` again if no other host has the agent",
            ) from error

    def _put(self, state: Path) -> str:
        target = self.target
        aside = target.with_name(f"{target.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        return str(aside) if swap_in(state, target, aside=aside) else ""


def furnish(state: Path, vault: Vault, here: HostPaths) -> None:
    """What no snapshot holds: where things lie on this host, and the way to the vault."""
    os.chmod(state, 0o700)
    found = load_home(state)
    given = found.settings.identity
    given = msgspec.structs.replace(
        given,
        vault=str(vault.folder.absolute()),
        second=here.second or given.second,
        arbiter=here.arbiter or given.arbiter,
        witnesses=tuple(map(str, here.witnesses)) or given.witnesses,
    )
    write_identity_settings(state / SETTINGS, name=found.name, identity=given)
    point_keys(state / KEYS, vault)


def place_escrow(vault: Vault, target: Path) -> None:
    """Copies of the escrow go to this home from now on, and no longer to one that the agent has left: once that folder
    is gone, keys could not be changed any more."""

    def placed(escrow: Escrow) -> Escrow:
        here = (one for one in escrow.places if os.path.isdir(one) and find_mark(Path(one) / INSTANCE) is None)
        return with_place(replace(escrow, places=tuple(here)), target)

    change(vault, placed)


def find_ready(path: Path) -> ReadyImport | None:
    """What an import that was cut short has ready, or one that has ended had; None where there is none."""
    try:
        return decode_json(path.read_bytes(), ReadyImport)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def check_journal_of(state: Path, keys: KeyRing) -> None:
    """Chains, seals and rows of the journal that came. Raises BackupDamaged."""
    findings = journal_at(file_at(state / FILE)).find_damage(keys)
    if findings:
        raise BackupDamaged(f"the journal in the package is damaged: {findings[0]}")


async def cancel_move(home: AgentHome, means: MoveMeans, *, sure: bool) -> MoveCancelled:
    """The agent runs on here.
    Before the package was sealed nothing has happened. Afterwards a person says that no one has taken it (`sure`): an
    arbiter in a folder hears of copies on its own machine only, and one that has heard refuses. Every open task then
    looks up or asks before it sends, because no one can know. The mark goes last: until then this copy does not run.
    Raises MoveRefused where it was taken, or no one says that it was not."""
    mark = find_mark(home.instance)
    if mark is None:
        raise MoveRefused(f"the agent in {home.folder} is not being moved")
    incarnation, suspect = mark.incarnation, 0
    if mark.state == MOVED:
        if not sure:
            raise MoveRefused(
                "this machine cannot know whether the package was imported elsewhere",
                hint="destroy the package, make sure that the agent runs nowhere else, then run "
                "`holdfast migrate cancel --nobody-has-it`; open tasks then become suspect",
            )
        incarnation, suspect = await _taken_back(home, means, mark.incarnation)
    for path in (part_of(Path(mark.package)), Path(mark.package)):
        with contextlib.suppress(OSError):
            path.unlink()
    await asyncio.to_thread(remove_tree, home.instance / "backup" / STAGING)
    remove_mark(home.instance)
    return MoveCancelled(home=str(home.folder), incarnation=incarnation, suspect=suspect, package=mark.package)


async def _taken_back(home: AgentHome, means: MoveMeans, incarnation: int) -> tuple[int, int]:
    speaker = home_speaker(home.folder, means.vault, means.clock, means.port)
    lease = MoveLease.of(home, speaker, means)
    if lease is None:
        done = await recover_journal(home.journal)
        return done.incarnation, done.open_tasks
    async with lease:
        if lease.check_not_taken(incarnation):  # taken back before, by a run that was cut short
            return journal_at(home.journal).incarnation(), 0
        done = await recover_journal(home.journal)
        return await lease.take_back(lambda: means.keys(home.keys_file), incarnation), done.open_tasks
