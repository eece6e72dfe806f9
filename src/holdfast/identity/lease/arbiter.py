"""Arbiters: say which instance of an agent is the primary. The port, and one in this process.

A change is kept before it is answered: a crash in between leaves a lease that no one knows of,
which the same instance gets again by renewing, and everyone else after its time. What is decided
is in arbiter_state.py; where it is kept is an arbiter's matter: in memory here, in a folder
(arbiter_folder.py), at a relay.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.identity.lease.arbiter_state import (
    ArbiterState,
    Hearing,
    LeaseGrant,
    LeaseView,
    after_claim,
    after_yield,
    challenge_for,
    id_of_claim,
    id_of_yield,
    learn_log,
    view_lease,
)
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import Refusal
from holdfast.identity.statements.claim import LEASE_MS
from holdfast.identity.witness.witness import LogCopy

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
            return view_lease(self._load(id), hearing)

    def challenge(self, id: AgentId, inst: PublicKey) -> str:
        with self._alone() as hearing:
            return challenge_for(self._load(id), id, inst, hearing)

    def grant(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        return self._judge(claim, certificate, renewal=False)

    def renew(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        return self._judge(claim, certificate, renewal=True)

    def yield_to(self, said: bytes) -> Refusal | None:
        id_ = id_of_yield(said)
        if isinstance(id_, Refusal):
            return id_
        with self._alone() as hearing:
            before = self._load(id_)
            after, answer = after_yield(before, said, hearing)
            self._keep(id_, before, after)
            return answer

    def _judge(self, claim: bytes, certificate: bytes, *, renewal: bool) -> LeaseGrant | Refusal:
        id_ = id_of_claim(claim)
        if isinstance(id_, Refusal):
            return id_
        log = self._find_log(id_)
        with self._alone() as hearing:
            before = self._load(id_)
            after, answer = after_claim(before, claim, certificate, log, hearing, renewal=renewal)
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


class MemoryArbiter(StoredArbiter):
    """Keeps its states in this process; after a restart everything is granted again."""

    def __init__(self, *, clock: Clock, life_ms: int = LEASE_MS) -> None:
        super().__init__(clock=clock, life_ms=life_ms, secret=os.urandom(SECRET_BYTES))
        self._logs: dict[AgentId, KeyLog] = {}
        self._states: dict[AgentId, ArbiterState] = {}
        self._lock = threading.Lock()

    def learn(self, copy: LogCopy, id: AgentId) -> None:
        with self._lock:
            log = learn_log(self._logs.get(id), copy, id, self._port)
            if log is not None:
                self._logs[id] = log

    @contextmanager
    def _alone(self) -> Generator[Hearing]:
        with self._lock:
            yield self._hearing()

    def _find_log(self, id_: AgentId) -> KeyLog | None:
        return self._logs.get(id_)

    def _load(self, id_: AgentId) -> ArbiterState:
        return self._states.get(id_, ArbiterState())

    def _keep(self, id_: AgentId, before: ArbiterState, after: ArbiterState) -> None:
        self._states[id_] = after
