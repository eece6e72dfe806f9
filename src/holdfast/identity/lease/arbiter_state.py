"""What an arbiter keeps of one agent, and how it decides: functions over values.

What is true at all times: of one agent no incarnation was granted twice, and no second one while
the first may still act. The rules are those of claim.py; here is what stands around them.

Time is the arbiter's own boot clock. After a reboot of its machine a lease that was granted before
counts as running until the machine has been up for the length of a lease: the holder may be on
another machine and still rely on it.

A challenge is derived from a secret, the instance and the counter of its last message. So it needs
no memory, every message that was heard makes the next one need another, and an old line repeated
by someone else is refused.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.errors import BadRecord
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.statements import claim as claims
from holdfast.identity.statements.certificate import ObserverState, parse_certificate
from holdfast.identity.statements.claim import AgentLease, ClaimBasis, LeaseClaim, LeaseYield, MessageChain
from holdfast.identity.witness.observe import merge_copies
from holdfast.identity.witness.witness import LogCopy

CHAINS_MAX = 64  # instances whose counters are kept; the holder's and frozen ones always are


class Contender(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance that was heard and is not the holder."""

    inst: PublicKey
    e: int
    how: ClaimBasis
    at: int  # unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """What the arbiter shows of the newest incarnation that it granted."""

    e: int
    inst: PublicKey
    position: LogPosition
    left_ms: int  # 0 where it has expired
    counter: int  # of the holder's last message
    frozen: bool = False
    yielded_to: PublicKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    e: int
    life_ms: int  # counted by the holder from before it asked
    contender: Contender | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArbiterState:
    """What an arbiter keeps of one agent."""

    boot: str = ""
    lease: AgentLease | None = None
    chains: dict[PublicKey, MessageChain] = field(default_factory=dict[PublicKey, MessageChain])
    contender: Contender | None = None
    head: Digest | None = None
    head_seen_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """Where and when a claim is heard."""

    boot: str
    clock_ms: int
    wall_s: int
    life_ms: int
    secret: bytes
    port: Signatures


def on_this_boot(state: ArbiterState, hearing: Hearing) -> ArbiterState:
    """The same state on this boot's clock."""
    if state.boot == hearing.boot:
        return state
    lease = state.lease and msgspec.structs.replace(state.lease, until_ms=hearing.life_ms)
    return replace(state, boot=hearing.boot, lease=lease)


def view_lease(state: ArbiterState, hearing: Hearing) -> LeaseView | None:
    lease = on_this_boot(state, hearing).lease
    if lease is None:
        return None
    chain = state.chains.get(lease.inst)
    return LeaseView(
        e=lease.e,
        inst=lease.inst,
        position=lease.position,
        left_ms=max(lease.until_ms - hearing.clock_ms, 0),
        counter=0 if chain is None else chain.counter,
        frozen=lease.frozen,
        yielded_to=lease.yielded_to or None,
    )


def challenge_for(state: ArbiterState, id: AgentId, inst: PublicKey, hearing: Hearing) -> str:
    chain = state.chains.get(inst)
    counter = 0 if chain is None else chain.counter
    text = "\0".join((hearing.boot, id, inst, str(counter))).encode()
    raw = hmac.digest(hearing.secret, b"holdfast/challenge/1\0" + text, "sha256")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def after_claim(
    state: ArbiterState, claim: bytes, certificate: bytes, log: KeyLog | None, hearing: Hearing, *, renewal: bool
) -> tuple[ArbiterState, LeaseGrant | Refusal]:
    """What is kept after the claim, and the answer to it."""
    try:
        said, shown = claims.parse_claim(claim), parse_certificate(certificate)
    except BadRecord as error:
        return state, Refusal(Reason.MALFORMED, error.message)
    record = said.record
    if log is None or log.id != record.id:
        return state, Refusal(Reason.NOT_BEGUN, "the arbiter does not have the key log of this agent")
    if renewal is not (record.after_how is ClaimBasis.RENEW):
        return state, Refusal(Reason.MALFORMED, "the claim does not match the request: only one of them is a renewal")
    state = _with_head(on_this_boot(state, hearing), log, hearing)
    chain = state.chains.get(record.inst) or claims.new_chain(shown.digest)
    highest = 0 if state.lease is None else state.lease.e
    found = claims.judge_claim(
        said,
        shown,
        state.lease,
        chain,
        log,
        ObserverState(now=hearing.wall_s, head_seen_at=state.head_seen_at, incarnation=highest),
        clock_ms=hearing.clock_ms,
        challenge=challenge_for(state, record.id, record.inst, hearing),
        port=hearing.port,
        life_ms=hearing.life_ms,
    )
    if found.chain is not chain:
        state = replace(state, chains=_kept(state, record.inst, found.chain))
        if found.refusal is not None:
            here = Contender(inst=record.inst, e=record.e, how=record.after_how, at=hearing.wall_s)
            state = replace(state, contender=here)
    if found.refusal is not None or found.lease is None:
        refusal = found.refusal or Refusal(Reason.HELD, "not granted")
        return replace(state, lease=found.lease), refusal
    contender = state.contender
    granted = LeaseGrant(e=found.lease.e, life_ms=hearing.life_ms, contender=contender)
    if contender is not None and (not renewal or contender.inst == record.inst):
        granted = replace(granted, contender=None)
    return replace(state, lease=found.lease, contender=None), granted


def _with_head(state: ArbiterState, log: KeyLog, hearing: Hearing) -> ArbiterState:
    if state.head == log.head.digest:
        return state
    return replace(state, head=log.head.digest, head_seen_at=hearing.wall_s)


def _kept(state: ArbiterState, inst: PublicKey, chain: MessageChain) -> dict[PublicKey, MessageChain]:
    """The chains with this one as the newest; the oldest that no one needs is let go."""
    chains = {key: one for key, one in state.chains.items() if key != inst}
    holder = None if state.lease is None else state.lease.inst
    idle = [key for key, one in chains.items() if key != holder and not one.frozen]
    for key in idle[: max(len(chains) + 1 - CHAINS_MAX, 0)]:
        del chains[key]
    return {**chains, inst: chain}


def learn_log(log: KeyLog | None, copy: LogCopy, id: AgentId, port: Signatures) -> KeyLog | None:
    """The log with what is new and valid in the agent's own copy; it asked its old witnesses before a recovery."""
    log = merge_copies(log, (copy,), id=id, port=port)
    if log is None:
        return None
    asked = {key for entry in log.entries() for keys in entry.needs for key in keys.members}
    return merge_copies(log, (copy,), id=id, port=port, asked=frozenset(asked))


def id_of_line(parse: Callable[[bytes], Signed[LeaseClaim] | Signed[LeaseYield]], raw: bytes) -> AgentId | Refusal:
    try:
        return parse(raw).record.id
    except BadRecord as error:
        return Refusal(Reason.MALFORMED, error.message)


def after_yield(state: ArbiterState, said: bytes, hearing: Hearing) -> tuple[ArbiterState, Refusal | None]:
    """What is kept after a yield, and why it was not taken."""
    after = claims.yielded(on_this_boot(state, hearing).lease, claims.parse_yield(said), port=hearing.port)
    if isinstance(after, Refusal):
        return state, after
    return replace(on_this_boot(state, hearing), lease=after), None
