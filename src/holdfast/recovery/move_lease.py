"""The agent's lease, when the agent moves: held by the one who leaves, yielded, taken, taken back.

The arbiter decides in one act each time, so of two who want the next incarnation one gets it: the
heir by the yield, or the old copy that takes the move back. Without an arbiter there is no one to
ask, and no one who could know.

The instance's key and counter belong to the process that holds `keeper.lock` (agent_lease.py). It is held
here for as long as anything is said, so that no worker that is just ending says something too.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.app.agent_lease import LOCK
from holdfast.backup.chain.heads import HEADS
from holdfast.core.clock import Clock, Entropy
from holdfast.core.ports import KeyRing
from holdfast.errors import AgentElsewhere, AgentQuarantined, HoldfastError, MoveRefused
from holdfast.host.private_files import open_private
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.lease.arbiter import FolderArbiter
from holdfast.identity.lease.arbiter_state import LeaseView
from holdfast.identity.lease.instance import LeaseRequest, WaitReason
from holdfast.identity.lease.lease_holder import InstanceFile, LeaseHeld, LeaseHolder, LeaseNotHeld
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import Digest, PublicKey, digest_of
from holdfast.identity.records.signed import Family, sealed
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.claim import ClaimBasis, LeaseYield
from holdfast.identity.statements.statements import parse_head
from holdfast.identity.vault.vault import Vault
from holdfast.identity.witness.witness import copy_of
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome

ASK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveMeans:
    """What a move needs."""

    vault: Vault
    clock: Clock
    entropy: Entropy
    port: Signatures
    say: Callable[[str], None] = lambda _: None

    def keys(self, file: Path) -> KeyRing:
        """The keys of the journal beside this file."""
        return load_or_create(file, journal_exists=True, entropy=self.entropy)


class MoveLease:
    """The arbiter of one agent, asked from one folder."""

    def __init__(self, home: AgentHome, arbiter: Path, state: Path, speaker: Speaker, means: MoveMeans) -> None:
        self._life_ms = int(home.settings.identity.lease_s * 1000)
        instance = state / home.instance.name
        self._journal = journal_at(replace(home.journal, folder=state))
        self._state_root = state_root_of(state)
        self._speaker = speaker
        self._clock, self._say = means.clock, means.say
        self._instance = instance
        self._lock_fd = -1
        self._arbiter = FolderArbiter(arbiter, clock=means.clock, life_ms=self._life_ms)
        self._file = InstanceFile(instance, id=speaker.id, clock=means.clock, entropy=means.entropy)

    async def __aenter__(self) -> MoveLease:
        """Raises AgentElsewhere where a process of this folder does not let go of the lease."""
        ends = self._clock.boot_ms() + 2 * self._life_ms
        fd = open_private(self._instance / LOCK, os.O_RDWR | os.O_CREAT)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if self._clock.boot_ms() > ends:
                    os.close(fd)
                    raise AgentElsewhere("another process that uses this folder still holds the lease") from None
            await asyncio.sleep(ASK_AGAIN_S)
        self._lock_fd = fd
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._lock_fd)

    @classmethod
    def of(cls, home: AgentHome, speaker: Speaker, means: MoveMeans, *, folder: Path | None = None) -> MoveLease | None:
        """None where the agent has no arbiter. `folder` is where its files lie until they have their place."""
        if home.arbiter is None:
            return None
        return cls(home, home.arbiter, folder or home.folder, speaker, means)

    def look(self) -> LeaseView | None:
        log = self._speaker.log()
        self._arbiter.learn(copy_of(log), log.id)
        return self._arbiter.look(log.id)

    async def hold(self, keys: Callable[[], KeyRing]) -> None:
        """The lease is this folder's own. Raises AgentElsewhere, AgentQuarantined."""
        holder = self._holder(keys)
        ends = self._clock.boot_ms() + 2 * self._life_ms
        while True:
            found = await asyncio.to_thread(holder.turn)
            if isinstance(found, LeaseHeld):
                return
            patient = found.why in (WaitReason.ELSEWHERE, WaitReason.TROUBLE)
            if not patient or self._clock.boot_ms() > ends:
                raise _refused(found)
            await asyncio.sleep(ASK_AGAIN_S)

    def yield_line(self, *, to: PublicKey, state_root: Digest, handoff: Digest) -> str:
        """The line by which the holder gives its lease away."""
        log = self._speaker.log()
        self._file.open(log.position)
        said = LeaseYield(id=log.id, e=self._journal.incarnation(), to=to, state_root=state_root, handoff=handoff)
        return sealed(said, Family.LEASE, (self._file.signer,)).line().decode()

    def give(self, line: str, *, incarnation: int) -> None:
        """Tell the arbiter. Safe to repeat; nothing to tell where the heir has it already."""
        seen = self.look()
        if seen is None or seen.e > incarnation:
            return
        refusal = self._arbiter.yield_to(line.encode())
        if refusal is not None:
            raise MoveRefused(
                f"the arbiter did not accept that this agent gives up its lease: {refusal.message}",
                hint="run `holdfast migrate cancel` to undo the move",
            )

    def check_heir(self, key: PublicKey, incarnation: int) -> None:
        """Whether the package may be taken: no one else has it, and the lease is yielded to it. An arbiter whose newest
        grant is older than the package did not grant the lease that was yielded: the agent was on a host with another
        arbiter since, where a package gets its name only after the yield."""
        seen = self.look()
        if seen is None:
            return
        if seen.e > incarnation or seen.inst == key:
            raise MoveRefused(
                f"incarnation {seen.e} is taken: the package was imported elsewhere, or the move was cancelled"
            )
        if seen.e == incarnation and seen.yielded_to != key:
            raise MoveRefused(
                "the old host still has the right to run the agent: it did not finish this package",
                hint="run the command again on the old host that made it: `holdfast instance yield` or `holdfast "
                "migrate export`",
            )

    async def take(self, keys: Callable[[], KeyRing]) -> int:
        """The heir's lease, in the folder that will be the agent's; the incarnation. An older one that this arbiter
        granted, and that no one can yield to this heir, must run out first."""
        holder, told = self._holder(keys), False
        ends = self._clock.boot_ms() + 2 * self._life_ms
        while True:
            found = await asyncio.to_thread(holder.turn)
            if isinstance(found, LeaseHeld):
                return found.e
            left_ms = found.seen.left_ms if found.seen and found.seen.e < self._journal.incarnation() else 0
            if found.why is not WaitReason.ELSEWHERE or not left_ms or self._clock.boot_ms() > ends:
                raise _refused(found)
            if not told:
                self._say(f"waiting: the lease that this host had before ends in {left_ms / 1000:.0f} s")
                told = True
            await asyncio.sleep(ASK_AGAIN_S)

    def check_not_taken(self, incarnation: int) -> bool:
        """Whether this folder has taken the move back already. Raises MoveRefused where someone
        else was granted what comes after."""
        seen = self.look()
        if seen is None or seen.e <= incarnation:
            return False
        instance, _ = self._file.open(self._speaker.log().position)
        if seen.inst != instance.key:
            raise MoveRefused(
                f"the package was imported: the arbiter granted incarnation {seen.e}, so this copy of the "
                "agent is no longer the newest"
            )
        return True

    async def take_back(self, keys: Callable[[], KeyRing], incarnation: int) -> int:
        """For the old copy, once its lease is over: the incarnation above, instead of the heir."""
        holder = self._holder(keys)
        ends = self._clock.boot_ms() + 2 * self._life_ms
        while True:
            seen = self.look()
            if seen is None:
                return await self._claimed(holder)
            self.check_not_taken(incarnation)
            e = max(self._journal.incarnation(), seen.e + 1)
            ask = LeaseRequest(e=e, after_e=seen.e, how=ClaimBasis.EXPIRED)
            found = await asyncio.to_thread(holder.claim, ask)
            if isinstance(found, LeaseHeld):
                return found.e
            if found.why is not WaitReason.ELSEWHERE or self._clock.boot_ms() > ends:
                raise _refused(found)
            await asyncio.sleep(ASK_AGAIN_S)

    async def _claimed(self, holder: LeaseHolder) -> int:
        found = await asyncio.to_thread(holder.turn)
        if isinstance(found, LeaseNotHeld):
            raise _refused(found)
        return found.e

    def _holder(self, keys: Callable[[], KeyRing]) -> LeaseHolder:
        def raise_to(e: int) -> None:
            asyncio.run(self._journal.raise_incarnation(to=e, keys=keys(), clock=self._clock))

        return LeaseHolder(
            file=self._file,
            speaker=self._speaker,
            arbiter=self._arbiter,
            clock=self._clock,
            incarnation=self._journal.incarnation,
            raise_incarnation=raise_to,
            state_root=lambda: self._state_root,
        )


def state_root_of(state: Path) -> Digest:
    """The manifest of the newest snapshot that the folder knows of."""
    try:
        return parse_head((state / HEADS).read_bytes().splitlines()[-1]).record.manifest
    except (OSError, IndexError, HoldfastError):
        return digest_of(b"holdfast/state/1\0")


def _refused(found: LeaseNotHeld) -> Exception:
    kind = AgentElsewhere if found.why in (WaitReason.ELSEWHERE, WaitReason.TROUBLE) else AgentQuarantined
    return kind(found.text)
