"""Arbiters: say which instance of an agent is the primary. The port, and one in a folder.

A change is kept before it is answered: a crash in between leaves a lease that no one knows of,
which the same instance gets again by renewing, and everyone else after its time. What is decided
is in arbiter_state.py; where it is kept is an arbiter's matter.

The folder serves the processes and copies of an agent that share one machine:

    arbiter.seed   32 bytes from which challenges are derived
    lock           held while anything is read or changed
    logs/          the key logs that it was told of (witness_folder.py)
    ID.json        the lease that was granted last, and the counters of instances

Anyone who uses the folder is the arbiter while it holds the lock; a process that dies gives the lock
back. ID.json is replaced in one durable act before the answer is given. A folder that is put back
from an older copy may grant an incarnation twice: it must not be part of the agent's backup, and
it is refused on a network file system, because the boot clocks of two machines do not compare.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.core.clock import Clock
from holdfast.core.decoding import decode_json
from holdfast.errors import ArbiterDamaged, BadRecord
from holdfast.host import private_files
from holdfast.identity.lease import arbiter_state
from holdfast.identity.lease.arbiter_state import ArbiterState, Contender, Hearing, LeaseGrant, LeaseView
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, parse_agent_id, parse_digest, parse_key
from holdfast.identity.records.signed import Reason, Refusal
from holdfast.identity.statements.claim import LEASE_MS, WINDOW, AgentLease, MessageChain, parse_claim, parse_yield
from holdfast.identity.witness.witness import LogCopy, WitnessVerdict
from holdfast.identity.witness.witness_folder import FolderLogStore

SECRET_BYTES = 32


class LeaseArbiter(Protocol):
    """Grants incarnations. Every verb may be called again; lines are signed records."""

    def learn(self, copy: LogCopy, id: AgentId) -> None:
        """Hear of the agent's log; what is not valid or older than what is known is left out."""
        ...

    def look(self, id: AgentId) -> LeaseView | None:
        """The newest incarnation that was granted; None where there is none yet."""
        ...

    def challenge(self, id: AgentId, inst: PublicKey) -> str:
        """What the next claim of this instance must answer."""
        ...

    def grant(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        """The incarnation that is claimed, for the length of a lease."""
        ...

    def renew(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        """The incarnation that this instance has, for the length of a lease from now."""
        ...

    def yield_to(self, said: bytes) -> Refusal | None:
        """Take note that the holder gives its lease to the instance that it names."""
        ...


class StoredArbiter(ABC):
    """LeaseArbiter over states that a subclass keeps."""

    def __init__(self, *, clock: Clock, life_ms: int, secret: bytes) -> None:
        self._clock = clock
        self._life_ms = life_ms
        self._secret = secret
        self._port = Sodium()

    def look(self, id: AgentId) -> LeaseView | None:
        with self._alone() as hearing:
            return arbiter_state.view_lease(self._load(id), hearing)

    def challenge(self, id: AgentId, inst: PublicKey) -> str:
        with self._alone() as hearing:
            return arbiter_state.challenge_for(self._load(id), id, inst, hearing)

    def grant(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        return self._judge(claim, certificate, renewal=False)

    def renew(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        return self._judge(claim, certificate, renewal=True)

    def yield_to(self, said: bytes) -> Refusal | None:
        id_ = arbiter_state.id_of_line(parse_yield, said)
        if isinstance(id_, Refusal):
            return id_
        with self._alone() as hearing:
            before = self._load(id_)
            after, answer = arbiter_state.after_yield(before, said, hearing)
            self._keep(id_, before, after)
            return answer

    def _judge(self, claim: bytes, certificate: bytes, *, renewal: bool) -> LeaseGrant | Refusal:
        id_ = arbiter_state.id_of_line(parse_claim, claim)
        if isinstance(id_, Refusal):
            return id_
        log = self._find_log(id_)
        with self._alone() as hearing:
            before = self._load(id_)
            after, answer = arbiter_state.after_claim(before, claim, certificate, log, hearing, renewal=renewal)
            self._keep(id_, before, after)
            return answer

    def _hearing(self) -> Hearing:
        return Hearing(
            boot=self._clock.boot_id,
            clock_ms=self._clock.boot_ms(),
            wall_s=self._clock.wall_ms() // 1000,
            life_ms=self._life_ms,
            secret=self._secret,
            port=self._port,
        )

    @abstractmethod
    def _alone(self) -> AbstractContextManager[Hearing]:
        """The right to read and change the states. The clock is read inside: later means later."""

    @abstractmethod
    def _find_log(self, id_: AgentId) -> KeyLog | None: ...

    @abstractmethod
    def _load(self, id_: AgentId) -> ArbiterState: ...

    @abstractmethod
    def _keep(self, id_: AgentId, before: ArbiterState, after: ArbiterState) -> None:
        """Durable on return."""


FORMAT = 1
FILE_BYTES_MAX = 4 << 20
_SEED = "arbiter.seed"
_LOCK = "lock"
_LOGS = "logs"


class _Chain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inst: PublicKey
    seen: tuple[tuple[int, str], ...]
    frozen: bool = False


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    id: str
    boot: str
    head: str = ""
    head_seen_at: int = 0
    lease: AgentLease | None = None
    chains: tuple[_Chain, ...] = ()
    contender: Contender | None = None


class FolderArbiter(StoredArbiter):
    """arbiter.LeaseArbiter over a folder."""

    def __init__(self, folder: Path, *, clock: Clock, life_ms: int = LEASE_MS) -> None:
        private_files.check_place(folder)
        private_files.ensure_private_folder(folder)
        super().__init__(clock=clock, life_ms=life_ms, secret=_secret(folder))
        self._folder = folder
        self._logs = FolderLogStore(folder / _LOGS, port=self._port)
        self._threads = threading.Lock()

    def learn(self, copy: LogCopy, id: AgentId) -> None:
        def change(log: KeyLog | None) -> WitnessVerdict | Refusal:
            after = arbiter_state.learn_log(log, copy, id, self._port)
            known = Refusal(Reason.NOT_A_WITNESS, "kept")
            return known if after is None else WitnessVerdict(log=after, answer=known)

        self._logs.change(id, change)

    def _find_log(self, id_: AgentId) -> KeyLog | None:
        return self._logs.find(id_)

    def _keep(self, id_: AgentId, before: ArbiterState, after: ArbiterState) -> None:
        if after != before:
            private_files.write_atomically(self._path(id_), _packed(id_, after))

    def _load(self, id_: AgentId) -> ArbiterState:
        path = self._path(id_)
        try:
            raw = private_files.read_private(path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return ArbiterState()
        try:
            return _unpacked(decode_json(raw, _File), id_)
        except (msgspec.DecodeError, BadRecord, ValueError, RecursionError) as error:
            raise ArbiterDamaged(f"{path} is malformed: {error}") from error

    def _path(self, id_: AgentId) -> Path:
        return self._folder / f"{parse_agent_id(id_)}.json"

    @contextmanager
    def _alone(self) -> Generator[Hearing]:
        with self._threads:
            private_files.check_private_folder(self._folder)
            with private_files.locked(self._folder / _LOCK):
                yield self._hearing()


def _secret(folder: Path) -> bytes:
    path = folder / _SEED
    private_files.create_durably(path, os.urandom(SECRET_BYTES))
    found = private_files.read_private(path, SECRET_BYTES + 1)
    if len(found) != SECRET_BYTES:
        raise ArbiterDamaged(f"{path} does not have exactly {SECRET_BYTES} bytes")
    return found


def _packed(id_: AgentId, state: ArbiterState) -> bytes:
    whole = _File(
        format=FORMAT,
        id=id_,
        boot=state.boot,
        head=state.head or "",
        head_seen_at=state.head_seen_at,
        lease=state.lease,
        chains=tuple(_Chain(inst=inst, seen=chain.seen, frozen=chain.frozen) for inst, chain in state.chains.items()),
        contender=state.contender,
    )
    return msgspec.json.encode(whole) + b"\n"


def _unpacked(found: _File, id_: AgentId) -> ArbiterState:
    if found.format != FORMAT:
        raise ValueError(f"it has format {found.format}, not {FORMAT}")
    if found.id != id_:
        raise ValueError("it belongs to another agent")
    lease = found.lease
    keys = [one.inst for one in (lease, found.contender, *found.chains) if one is not None]
    if lease is not None:
        parse_digest(lease.state_root)
        keys += [lease.yielded_to] if lease.yielded_to else []
    for key in keys:
        parse_key(key)
    return ArbiterState(
        boot=found.boot,
        lease=lease,
        chains={one.inst: MessageChain(seen=_seen(one.seen), frozen=one.frozen) for one in found.chains},
        contender=found.contender,
        head=parse_digest(found.head) if found.head else None,
        head_seen_at=found.head_seen_at,
    )


def _seen(pairs: tuple[tuple[int, str], ...]) -> tuple[tuple[int, Digest], ...]:
    if len(pairs) > WINDOW or list(pairs) != sorted(pairs):
        raise ValueError("its list of seen messages is too long or out of order")
    return tuple((number, parse_digest(digest)) for number, digest in pairs)
