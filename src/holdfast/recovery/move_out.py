"""`holdfast migrate export`: the agent leaves this host, in one sealed file.

In this order, and what a kill between two lines leaves:

    moved.json: moving     no one opens the journal any more; workers see it and stop
    the journal is unused  proven by its lock; calls under way have ended or stay open in it
    the lease is ours      where there is an arbiter: only the holder may give it away
    the hand-off is new    written from the journal, which no one changes from here on
    the snapshot is staged and its head signed: it names the last record of the journal
    PACKAGE.part           whole and sealed; no one looks for that name
    moved.json: moved      THE MOMENT: from here on this copy does not run
    the lease is yielded   to the key in the package, as often as needed
    PACKAGE                by a rename
    the head is left       at witnesses and relays that can be reached; a run that is repeated does so again

Before the moment a run starts over, and `migrate cancel` makes everything as it was. After it a
run goes on: the same package, the same key.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.app.binder import open_journal
from holdfast.app.handoff import refresh_handoff
from holdfast.backup.archive.manifest import ENTRIES_MAX
from holdfast.backup.archive.reader import HEAD_NAME
from holdfast.backup.backups import alone
from holdfast.backup.chain.chain import joined, valid_heads
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.chain.sources import RelayHead, leave_head, read_near
from holdfast.backup.snapshot.staging import Subject, seal_staged, stage
from holdfast.errors import BadInput, IsStandby, JournalBusy, MovedAway, MoveRefused, NotAJournal, SnapshotFailed
from holdfast.host.folder_swap import remove_tree
from holdfast.host.log import Log
from holdfast.host.private_files import ensure_private_folder, sync_folder, write_atomically
from holdfast.host.version import find_version
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.records.signed import Signed
from holdfast.identity.speaker.open_speaker import home_speaker
from holdfast.identity.statements.statements import Head
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.moved import MOVED, MOVING, STAGING, MovedMark, find_mark, find_standby, write_mark
from holdfast.recovery.move_lease import MoveLease, MoveMeans
from holdfast.recovery.move_package import Cover, archive_of, check_new_package, digest_of_file, part_of, write_package

STOP_WAIT_S = 60.0  # for workers to see the mark and end their calls

Say = Callable[[str], None]


class MovedOut(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate export` did."""

    package: str
    sha256: str
    id: str
    incarnation: int
    sequence: int
    snapshot: int
    to: str
    yielded: bool  # to the package, at the arbiter
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    relays: tuple[RelayHead, ...] = ()  # which of them have the head of the package


class MoveOut:
    """One agent's way out."""

    def __init__(
        self, home: AgentHome, means: MoveMeans, *, say: Say, wait_s: float = STOP_WAIT_S, heir: str = ""
    ) -> None:
        """`heir`: the name of the enrolled standby that takes over."""
        self._home = home
        self._heir = heir
        self._command = f"holdfast instance yield {heir} FILE" if heir else "holdfast migrate export FILE"
        self._means = means
        self._say = say
        self._wait_s = wait_s
        self._speaker = home_speaker(home.folder, means.vault, means.clock, means.port)

    def check(self, package: Path) -> None:
        """Whether the move can begin; nothing is changed. Raises BadInput, MoveRefused, NotAJournal, IsStandby,
        MovedAway."""
        home = self._home
        if find_standby(home.instance) is not None:
            raise IsStandby(
                f"the instance in {home.folder} is a standby, so there is nothing to hand over",
                hint="run the command on the host that acts: `holdfast instance list` shows which one that is",
            )
        mark = find_mark(home.instance)
        # A hand-over that was made already is not made again, nor to another one: that one may act by now.
        made = mark if mark is not None and mark.state == MOVED and mark.instance else None
        if made is not None and (self._heir != made.instance or _find_package(made) is None):
            raise _gone(made)
        if home.state != home.folder:
            # A package is Holdfast's own folder: the agent's own files would stay behind unseen.
            raise MoveRefused(
                f"the agent in {home.state} was adopted: a package would not contain the agent's own files",
                hint="stop the agent, run `holdfast backup now`, then `holdfast recover` on the other host",
            )
        check_new_package(package, home.folder)
        admin = journal_at(home.journal)
        if admin.hosts:
            # Other hosts would go on with it, beside the copy in the package.
            raise MoveRefused(
                f"the journal of {home.name} is on a server, where other hosts use it too: nothing needs to move",
                hint="start a worker on the other host: see `holdfast explain postgres`; to take the journal along, "
                "run `holdfast journal copy --to journal.db` first",
            )
        if not admin.exists():
            admin.check_not_lost()
            raise NotAJournal(
                f"{home.name} has no journal yet: it never ran, so there is nothing to move",
                hint="run `holdfast backup now`, then `holdfast recover` on the other host",
            )
        if os.path.lexists(package) and (mark is None or mark.state != MOVED):
            raise BadInput(f"{package} already exists", hint="choose another name: Holdfast does not overwrite files")

    async def run(self, package: Path) -> MovedOut:
        """Raises JournalBusy while someone has the journal open; the move can then be taken up
        again or cancelled. AgentElsewhere or AgentQuarantined where this copy holds no lease."""
        home, began = self._home, time.monotonic()
        self.check(package)
        ensure_private_folder(home.instance)
        with alone(home.instance / "backup"):
            mark = find_mark(home.instance)
            if mark is not None and mark.state == MOVED:
                return await self._left(mark, self._finished(mark, package))
            write_mark(
                home.instance, MovedMark(state=MOVING, package=str(package), instance=self._heir, at=self._now())
            )
            done, mark = await self._leave(package)
            self._finish(mark)
            done = await self._left(mark, done)
        return msgspec.structs.replace(done, yielded=bool(mark.yielded), seconds=round(time.monotonic() - began, 3))

    async def _left(self, mark: MovedMark, done: MovedOut) -> MovedOut:
        """The head of the package is the newest one: witnesses and relays hear of it, as of a backup's."""
        head = self._find_head(mark)
        if head is None:
            return done
        left = await leave_head(self._home, head, self._speaker.log())
        for text in left.troubles:
            self._say(text)
        return msgspec.structs.replace(done, relays=left.relays)

    async def _leave(self, package: Path) -> tuple[MovedOut, MovedMark]:
        home = self._home
        self._say("waiting for other processes to close the journal")
        with await self._exclusive():
            pass
        lease = MoveLease.of(home, self._speaker, self._means)
        async with nullcontext() if lease is None else lease:
            return await self._leave_holding(package, lease)

    async def _leave_holding(self, package: Path, lease: MoveLease | None) -> tuple[MovedOut, MovedMark]:
        home = self._home
        if lease is not None:
            await lease.hold(lambda: self._means.keys(home.keys_file))
        await self._hand_off()
        folder = home.instance / "backup" / STAGING
        await asyncio.to_thread(remove_tree, folder)
        ensure_private_folder(folder)
        try:
            with await self._exclusive(), KeyPair.new(self._means.entropy) as key:
                return await asyncio.to_thread(self._pack, folder, package, key, lease)
        finally:
            await asyncio.to_thread(remove_tree, folder)

    def _pack(self, folder: Path, package: Path, key: KeyPair, lease: MoveLease | None) -> tuple[MovedOut, MovedMark]:
        home = self._home
        staged = stage(self._subject(), folder)
        archive = archive_of(home.name, key.public)
        head = seal_staged(self._speaker, staged, archive=archive, newest=self._newest())
        mark_of = head.record.journal
        if mark_of is None:
            raise SnapshotFailed(f"the snapshot does not contain {home.journal}")
        yielded = ""
        if lease is not None:
            handoff = digest_of(home.handoff_file.read_bytes() if home.handoff_file.exists() else b"")
            yielded = lease.yield_line(to=key.public, state_root=staged.manifest, handoff=handoff)
        write_atomically(folder / HEAD_NAME, head.line() + b"\n")
        cover = Cover(head=head.line().decode(), seed=key.seed().hex(), yielded=yielded)
        part = part_of(package)
        sha256 = write_package(folder, cover, part, self._means.vault.recipients)
        sync_folder(part.parent)
        self._say(f"packed {staged.files:,} files, {staged.bytes:,} bytes")
        mark = MovedMark(
            state=MOVED,
            package=str(package),
            to=key.public,
            instance=self._heir,
            part_sha256=sha256,
            incarnation=mark_of.incarnation,
            sequence=mark_of.sequence,
            at=self._now(),
            yielded=yielded,
        )
        HeadFile(home.heads_file).append(head)
        write_mark(home.instance, mark)
        done = self._moved_out(mark, head.record.seq)
        return msgspec.structs.replace(done, files=staged.files, bytes=staged.bytes), mark

    def _finished(self, mark: MovedMark, package: Path) -> MovedOut:
        """The move that was made already; an agent leaves in one package."""
        done = self._finish(mark)
        if str(package) != mark.package:
            raise MovedAway(
                f"the agent was already exported to {mark.package}; {package} was not written",
                hint="use that file, or run `holdfast migrate cancel` if it was not taken anywhere",
            )
        return done

    def _finish(self, mark: MovedMark) -> MovedOut:
        """From the moment on: yield, then give the package its name. Safe to repeat."""
        package, here = Path(mark.package), _find_package(mark)
        if here is None:
            raise _gone(mark)
        if mark.yielded and (lease := MoveLease.of(self._home, self._speaker, self._means)) is not None:
            lease.give(mark.yielded, incarnation=mark.incarnation)
        if here != package:
            os.rename(here, package)
            sync_folder(package.parent)
        head = self._find_head(mark)
        return self._moved_out(mark, 0 if head is None else head.record.seq)

    def _find_head(self, mark: MovedMark) -> Signed[Head] | None:
        archive = archive_of(self._home.name, mark.to)
        heads = HeadFile(self._home.heads_file).read().heads
        return next((one for one in heads if one.record.archive == archive), None)

    def _moved_out(self, mark: MovedMark, snapshot: int) -> MovedOut:
        return MovedOut(
            package=mark.package,
            sha256=mark.part_sha256,
            id=self._speaker.id,
            to=mark.to,
            incarnation=mark.incarnation,
            sequence=mark.sequence,
            snapshot=snapshot,
            yielded=bool(mark.yielded),
        )

    async def _exclusive(self) -> AbstractContextManager[object]:
        try:
            return await journal_at(self._home.journal).use_alone(wait_s=self._wait_s)
        except JournalBusy as error:
            raise JournalBusy(
                error.message,
                hint=f"stop the programs that have the journal open and run `{self._command}` again, or run "
                "`holdfast migrate cancel` to keep the agent here",
            ) from None

    async def _hand_off(self) -> None:
        home = self._home
        journal, _ = await open_journal(
            home.journal, create=False, clock=self._means.clock, entropy=self._means.entropy, moving=True
        )
        try:
            await refresh_handoff(home.journal, journal, log=Log())
        finally:
            await journal.close()

    def _subject(self) -> Subject:
        home, newest = self._home, self._newest()
        return Subject(
            folder=home.folder,
            journal=home.journal,
            id=self._speaker.id,
            name=home.name,
            incarnation=None,
            seq=1 if newest is None else newest.record.seq + 1,
            at=self._now(),
            holdfast=find_version(),
            rules=replace(home.covering(), entries_max=ENTRIES_MAX),
        )

    def _newest(self) -> Signed[Head] | None:
        near, log = asyncio.run(read_near(self._home, self._speaker.id)), self._speaker.log()
        return joined(valid_heads(one.heads, log, port=self._means.port)[0] for one in near.values()).newest

    def _now(self) -> int:
        return self._means.clock.wall_ms() // 1000


def _find_package(mark: MovedMark) -> Path | None:
    """Where the package is on this host, under its name or before it got it."""
    package = Path(mark.package)
    part = part_of(package)
    here = part if os.path.lexists(part) else package
    return here if os.path.lexists(here) and digest_of_file(here) == mark.part_sha256 else None


def _gone(mark: MovedMark) -> MovedAway:
    if mark.instance:
        day = datetime.fromtimestamp(mark.at, UTC).date()
        return MovedAway(
            f"this instance handed over to {mark.instance} on {day}, with the package {mark.package}",
            hint=f"if {mark.instance} has taken it, nothing is left to do here: a worker waits as a standby. If nobody "
            "has, bring that package to its host, or run `holdfast migrate cancel` here",
        )
    return MovedAway(
        f"the agent was exported, but its package is no longer at {mark.package}",
        hint="if another host has taken it, you are done; if not, put the package back, or run `holdfast migrate "
        "cancel`",
    )
