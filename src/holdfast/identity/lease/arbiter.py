"""Arbiters: say which instance of an agent is the primary. The port, and one in this process.

A change is kept before it is answered: a crash in between leaves a lease that no one knows of,
which the same instance gets again by renewing, and everyone else after its time. What is decided
is in arbiter_state.py; where it is kept is an arbiter's matter: in memory here, in a folder
(arbiter_folder.py), at a relay.
"""

from __future__ import annotations

import os
import threading
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
from holdfast.identity.records.ed25519 import Signatures, Sodium
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


class MemoryArbiter:
    """LeaseArbiter in this process; gone with it, and then everything is granted again."""

    def __init__(self, *, clock: Clock, life_ms: int = LEASE_MS) -> None:
        self._clock = clock
        self._life_ms = life_ms
        self._secret = os.urandom(SECRET_BYTES)
        self._port = Sodium()
        self._logs: dict[AgentId, KeyLog] = {}
        self._states: dict[AgentId, ArbiterState] = {}
        self._alone = threading.Lock()

    def learn(self, copy: LogCopy, id: AgentId) -> None:
        with self._alone:
            log = learn_log(self._logs.get(id), copy, id, self._port)
            if log is not None:
                self._logs[id] = log

    def look(self, id: AgentId) -> LeaseView | None:
        with self._alone:
            return view_lease(self._states.get(id, ArbiterState()), self._hearing())

    def challenge(self, id: AgentId, inst: PublicKey) -> str:
        with self._alone:
            return challenge_for(self._states.get(id, ArbiterState()), id, inst, self._hearing())

    def grant(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        return self._judge(claim, certificate, renewal=False)

    def renew(self, claim: bytes, certificate: bytes) -> LeaseGrant | Refusal:
        return self._judge(claim, certificate, renewal=True)

    def yield_to(self, said: bytes) -> Refusal | None:
        with self._alone:
            id_ = id_of_yield(said)
            if isinstance(id_, Refusal):
                return id_
            state, answer = after_yield(self._states.get(id_, ArbiterState()), said, self._hearing())
            self._states[id_] = state
            return answer

    def _judge(self, claim: bytes, certificate: bytes, *, renewal: bool) -> LeaseGrant | Refusal:
        with self._alone:
            id_ = id_of_claim(claim)
            if isinstance(id_, Refusal):
                return id_
            state, answer = after_claim(
                self._states.get(id_, ArbiterState()),
                claim,
                certificate,
                self._logs.get(id_),
                self._hearing(),
                renewal=renewal,
            )
            self._states[id_] = state
            return answer

    def _hearing(self) -> Hearing:
        return hearing_at(self._clock, self._life_ms, self._secret, self._port)


def hearing_at(clock: Clock, life_ms: int, secret: bytes, port: Signatures) -> Hearing:
    return Hearing(
        boot=clock.boot_id,
        clock_ms=clock.boot_ms(),
        wall_s=clock.wall_ms() // 1000,
        life_ms=life_ms,
        secret=secret,
        port=port,
    )
