"""The arbiter: says which instance of an agent is the primary, over the rules of claim.py.

What is true at all times: of one agent it has granted no incarnation twice, and no second one
while the first may still act. The decision is `judged`, a function over what is kept (`Bench`);
where that is kept is the matter of an arbiter: in memory here, in a folder (arbiter_folder.py),
at a relay. A change is kept before it is answered: a crash in between leaves a lease that nobody
knows of, which the same instance gets again by renewing, and everybody else after its time.

Time is the arbiter's own boot clock. After a reboot of its machine a lease that was granted before
counts as running until the machine has been up for the length of a lease: the holder may be on
another machine and still rely on it.

A challenge is derived from a secret, the instance and the counter of its last message. So it needs
no memory, every message that was heard makes the next one need another, and an old line repeated
by somebody else is refused.
"""

from __future__ import annotations

import base64
import hmac
import os
import threading
from dataclasses import dataclass, field, replace
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.errors import BadRecord
from holdfast.identity.certificate import Moment, parse_certificate
from holdfast.identity.claim import (
    LEASE_MS,
    How,
    Lease,
    judge_claim,
    parse_claim,
    parse_yield,
    yielded,
)
from holdfast.identity.ed25519 import Signatures, Sodium
from holdfast.identity.encodings import AgentId, Digest, PublicKey
from holdfast.identity.instance_chain import Chain, start
from holdfast.identity.log_state import Log
from holdfast.identity.records import Position
from holdfast.identity.refusal import Reason, Refusal
from holdfast.identity.sight import merged
from holdfast.identity.witness import Copy

CHAINS_MAX = 64  # instances whose counters are kept; the holder's and frozen ones always are
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """An instance that was heard and is not the holder."""

    inst: PublicKey
    e: int
    how: How
    at: int  # unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the arbiter shows of the newest incarnation that it granted."""

    e: int
    inst: PublicKey
    position: Position
    left_ms: int  # 0 where it has expired
    counter: int  # of the holder's last message
    frozen: bool = False
    yielded_to: PublicKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    e: int
    life_ms: int  # counted by the holder from before it asked
    contender: Contender | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What an arbiter keeps of one agent."""

    boot: str = ""
    lease: Lease | None = None
    chains: dict[PublicKey, Chain] = field(default_factory=dict[PublicKey, Chain])
    contender: Contender | None = None
    head: Digest | None = None
    head_seen_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Where and when a claim is heard."""

    boot: str
    clock_ms: int
    wall_s: int
    life_ms: int
    secret: bytes
    port: Signatures


def carried(bench: Bench, bar: Bar) -> Bench:
    """The same bench on this boot's clock."""
    if bench.boot == bar.boot:
        return bench
    lease = bench.lease
    if lease is not None:
        lease = replace(lease, until_ms=bar.life_ms)
    return replace(bench, boot=bar.boot, lease=lease)


def seen(bench: Bench, bar: Bar) -> Seen | None:
    lease = carried(bench, bar).lease
    if lease is None:
        return None
    chain = bench.chains.get(lease.inst)
    return Seen(
        e=lease.e,
        inst=lease.inst,
        position=lease.position,
        left_ms=max(lease.until_ms - bar.clock_ms, 0),
        counter=0 if chain is None else chain.counter,
        frozen=lease.frozen,
        yielded_to=lease.yielded_to,
    )


def challenge_for(bench: Bench, id: AgentId, inst: PublicKey, bar: Bar) -> str:
    chain = bench.chains.get(inst)
    counter = 0 if chain is None else chain.counter
    text = "\0".join((bar.boot, id, inst, str(counter))).encode()
    raw = hmac.digest(bar.secret, b"holdfast/challenge/1\0" + text, "sha256")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def judged(
    bench: Bench, claim: bytes, certificate: bytes, log: Log | None, bar: Bar, *, renewal: bool
) -> tuple[Bench, Granted | Refusal]:
    """What is kept after the claim, and the answer to it."""
    try:
        said, shown = parse_claim(claim), parse_certificate(certificate)
    except BadRecord as error:
        return bench, Refusal(Reason.MALFORMED, error.message)
    record = said.record
    if log is None or log.id != record.id:
        return bench, Refusal(Reason.NOT_BEGUN, "the arbiter has no log of this agent")
    if renewal is not (record.after_how is How.RENEW):
        return bench, Refusal(Reason.MALFORMED, "a renewal is asked for as one, and nothing else")
    bench = _with_head(carried(bench, bar), log, bar)
    chain = bench.chains.get(record.inst) or start(shown.digest)
    highest = 0 if bench.lease is None else bench.lease.e
    found = judge_claim(
        said, shown, bench.lease, chain, log,
        Moment(now=bar.wall_s, head_seen_at=bench.head_seen_at, incarnation=highest),
        clock_ms=bar.clock_ms, challenge=challenge_for(bench, record.id, record.inst, bar),
        port=bar.port, life_ms=bar.life_ms,
    )  # fmt: skip
    if found.chain is not chain:
        bench = replace(bench, chains=_kept(bench, record.inst, found.chain))
        if found.refusal is not None:
            here = Contender(inst=record.inst, e=record.e, how=record.after_how, at=bar.wall_s)
            bench = replace(bench, contender=here)
    if found.refusal is not None or found.lease is None:
        refusal = found.refusal or Refusal(Reason.HELD, "not granted")
        return replace(bench, lease=found.lease), refusal
    contender = bench.contender
    granted = Granted(e=found.lease.e, life_ms=bar.life_ms, contender=contender)
    if contender is not None and (not renewal or contender.inst == record.inst):
        granted = replace(granted, contender=None)
    return replace(bench, lease=found.lease, contender=None), granted


def _with_head(bench: Bench, log: Log, bar: Bar) -> Bench:
    if bench.head == log.head.digest:
        return bench
    return replace(bench, head=log.head.digest, head_seen_at=bar.wall_s)


def _kept(bench: Bench, inst: PublicKey, chain: Chain) -> dict[PublicKey, Chain]:
    """The chains with this one as the newest; the oldest that nobody needs is let go."""
    chains = {key: one for key, one in bench.chains.items() if key != inst}
    holder = None if bench.lease is None else bench.lease.inst
    idle = [key for key, one in chains.items() if key != holder and not one.frozen]
    for key in idle[: max(len(chains) + 1 - CHAINS_MAX, 0)]:
        del chains[key]
    return {**chains, inst: chain}


def learned(log: Log | None, copy: Copy, id: AgentId, port: Signatures) -> Log | None:
    """The log with what is new and valid in the copy.

    The copy is the agent's own, who asked its old witnesses before it took a recovery.
    """
    log = merged(log, (copy,), id=id, port=port)
    if log is None:
        return None
    asked = {key for entry in log.entries() for keys in entry.needs for key in keys.members}
    return merged(log, (copy,), id=id, port=port, asked=frozenset(asked))


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
                self._benches.get(id_, Bench()), claim, certificate, self._logs.get(id_),
                self._bar(), renewal=renewal,
            )  # fmt: skip
            self._benches[id_] = bench
            return answer

    def _bar(self) -> Bar:
        return bar_at(self._clock, self._life_ms, self._secret, self._port)


def bar_at(clock: Clock, life_ms: int, secret: bytes, port: Signatures) -> Bar:
    return Bar(
        boot=clock.boot_id, clock_ms=clock.boot_ms(), wall_s=clock.wall_ms() // 1000,
        life_ms=life_ms, secret=secret, port=port,
    )  # fmt: skip


def id_of_claim(raw: bytes) -> AgentId | Refusal:
    try:
        return parse_claim(raw).record.id
    except BadRecord as error:
        return Refusal(Reason.MALFORMED, error.message)


def id_of_yield(raw: bytes) -> AgentId | Refusal:
    try:
        return parse_yield(raw).record.id
    except BadRecord as error:
        return Refusal(Reason.MALFORMED, error.message)


def gave(bench: Bench, said: bytes, bar: Bar) -> tuple[Bench, Refusal | None]:
    """What is kept after a yield, and why it was not taken."""
    after = yielded(carried(bench, bar).lease, parse_yield(said), port=bar.port)
    if isinstance(after, Refusal):
        return bench, after
    return replace(carried(bench, bar), lease=after), None
