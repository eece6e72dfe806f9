"""What an arbiter keeps of one agent, and how it decides: functions over values.

What is true at all times: of one agent no incarnation was granted twice, and no second one while
the first may still act. The rules are those of claim.py; here is what stands around them.

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
from dataclasses import dataclass, field, replace

from holdfast.errors import BadRecord
from holdfast.identity.log.log_state import Log
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.records import Position
from holdfast.identity.records.refusal import Reason, Refusal
from holdfast.identity.statements.certificate import Moment, parse_certificate
from holdfast.identity.statements.claim import How, Lease, judge_claim, parse_claim, parse_yield, yielded
from holdfast.identity.statements.instance_chain import Chain, start
from holdfast.identity.witness.observe import merged
from holdfast.identity.witness.witness import Copy

CHAINS_MAX = 64  # instances whose counters are kept; the holder's and frozen ones always are


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
        said,
        shown,
        bench.lease,
        chain,
        log,
        Moment(now=bar.wall_s, head_seen_at=bench.head_seen_at, incarnation=highest),
        clock_ms=bar.clock_ms,
        challenge=challenge_for(bench, record.id, record.inst, bar),
        port=bar.port,
        life_ms=bar.life_ms,
    )
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
