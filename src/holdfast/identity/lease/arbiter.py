"""Arbiters: say which instance of an agent is the primary. The port, and one in this process.

A change is kept before it is answered: a crash in between leaves a lease that nobody knows of,
which the same instance gets again by renewing, and everybody else after its time. What is decided
is in bench.py; where it is kept is an arbiter's matter: in memory here, in a folder
(arbiter_folder.py), at a relay.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.identity.lease.arbiter_state import (
    Bar,
    Bench,
    Granted,
    Seen,
    challenge_for,
    gave,
    id_of_claim,
    id_of_yield,
    judged,
    learned,
    seen,
)
from holdfast.identity.log.log_state import Log
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.refusal import Refusal
from holdfast.identity.statements.claim import LEASE_MS
from holdfast.identity.witness.witness import Copy

SECRET_BYTES = 32


class LeaseArbiter(Protocol):
    """Grants incarnations. Every verb may be called again; lines are signed records."""

    def learn(self, copy: Copy, id: AgentId) -> None:
        """Hear of the agent's log; what is not valid or older than what is known is left out."""
        ...

    def look(self, id: AgentId) -> Seen | None:
        """The newest incarnation that was granted; None where there is none yet."""
        ...

    def challenge(self, id: AgentId, inst: PublicKey) -> str:
        """What the next claim of this instance must answer."""
        ...

    def grant(self, claim: bytes, certificate: bytes) -> Granted | Refusal:
        """The incarnation that is claimed, for the length of a lease."""
        ...

    def renew(self, claim: bytes, certificate: bytes) -> Granted | Refusal:
        """The incarnation that this instance has, for the length of a lease from now."""
        ...

    def yield_to(self, said: bytes) -> Refusal | None:
        """Take note that the holder gives its lease to the instance that it names."""
        ...


class MemoryArbiter:
    """LeaseArbiter in this process; gone with it, and then everything is granted anew."""

    def __init__(self, *, clock: Clock, life_ms: int = LEASE_MS) -> None:
        self._clock = clock
        self._life_ms = life_ms
        self._secret = os.urandom(SECRET_BYTES)
        self._port = Sodium()
        self._logs: dict[AgentId, Log] = {}
        self._benches: dict[AgentId, Bench] = {}
        self._alone = threading.Lock()

    def learn(self, copy: Copy, id: AgentId) -> None:
        with self._alone:
            log = learned(self._logs.get(id), copy, id, self._port)
            if log is not None:
                self._logs[id] = log

    def look(self, id: AgentId) -> Seen | None:
        with self._alone:
            return seen(self._benches.get(id, Bench()), self._bar())

    def challenge(self, id: AgentId, inst: PublicKey) -> str:
        with self._alone:
            return challenge_for(self._benches.get(id, Bench()), id, inst, self._bar())

    def grant(self, claim: bytes, certificate: bytes) -> Granted | Refusal:
        return self._judge(claim, certificate, renewal=False)

    def renew(self, claim: bytes, certificate: bytes) -> Granted | Refusal:
        return self._judge(claim, certificate, renewal=True)

    def yield_to(self, said: bytes) -> Refusal | None:
        with self._alone:
            id_ = id_of_yield(said)
            if isinstance(id_, Refusal):
                return id_
            bench, answer = gave(self._benches.get(id_, Bench()), said, self._bar())
            self._benches[id_] = bench
            return answer

    def _judge(self, claim: bytes, certificate: bytes, *, renewal: bool) -> Granted | Refusal:
        with self._alone:
            id_ = id_of_claim(claim)
            if isinstance(id_, Refusal):
                return id_
            bench, answer = judged(
                self._benches.get(id_, Bench()), claim, certificate, self._logs.get(id_), self._bar(), renewal=renewal
            )
            self._benches[id_] = bench
            return answer

    def _bar(self) -> Bar:
        return bar_at(self._clock, self._life_ms, self._secret, self._port)


def bar_at(clock: Clock, life_ms: int, secret: bytes, port: Signatures) -> Bar:
    return Bar(
        boot=clock.boot_id,
        clock_ms=clock.boot_ms(),
        wall_s=clock.wall_ms() // 1000,
        life_ms=life_ms,
        secret=secret,
        port=port,
    )
