"""Claims and yields: which instance is the primary is settled by a lease, not by keys.

An arbiter (a relay, or a file on one machine) grants an incarnation once, and a higher one only
when the lease before it has expired, was yielded by its holder's own key, or belongs to keys that
a newer rotation or recovery replaced. Holding the operational key is not enough to push out a
live holder. Time is an argument, counted on the arbiter's own clock that cannot be set.

A holder renews with a claim to the incarnation that it has. That counts also after the lease has
expired, as long as no one else was granted a higher one: it is the same instance, which knows by
its own clock that it had to stand still meanwhile. An instance that may not or will not hold the
lease says that it is there by a claim that asks for nothing, so that the holder learns of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.fields import Body, Fields, choice, of, record, text, whole
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, find_bad_signature, read_line
from holdfast.identity.statements.certificate import Certificate, ObserverState, Role, find_fault_in_certificate

LEASE_MS = 30_000
CHALLENGE_FORM = r"[A-Za-z0-9_-]{16,86}"


class ClaimBasis(StrEnum):
    EXPIRED = "expired"
    YIELD = "yield"
    ROT = "rot"
    RCV = "rcv"
    RENEW = "renew"  # of the incarnation that it holds
    WAITING = "waiting"  # asks for nothing


@record
class LeaseClaim(Body):
    KIND = "clm"
    id: AgentId = of(Fields.id)
    e: int = of(whole(least=1))
    inst: PublicKey = of(Fields.key)
    crt: Digest = of(Fields.digest)
    after_e: int = of(whole(), within=("after", "e"))
    after_how: ClaimBasis = of(choice(ClaimBasis), within=("after", "how"))
    state_root: Digest = of(Fields.digest)
    chal: str = of(text(form=CHALLENGE_FORM))
    ctr: int = of(whole(least=1))
    chain: Digest = of(Fields.digest)


@record
class LeaseYield(Body):
    KIND = "yld"
    id: AgentId = of(Fields.id)
    e: int = of(whole(least=1))
    to: PublicKey = of(Fields.key)
    state_root: Digest = of(Fields.digest)
    handoff: Digest = of(Fields.digest)


class AgentLease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest incarnation that this arbiter granted, and to whom: of one agent, as its file keeps it."""

    e: int
    inst: PublicKey
    g: int
    s: int
    until_ms: int = msgspec.field(name="until_boot_ms")  # on the arbiter's clock
    state_root: Digest
    yielded_to: PublicKey = PublicKey("")  # empty: to no one
    frozen: bool = False

    @property
    def position(self) -> LogPosition:
        """Of the log, when it was granted."""
        return LogPosition(self.g, self.s)


def parse_claim(raw: bytes) -> Signed[LeaseClaim]:
    return read_line(raw, LeaseClaim, "a claim")


def parse_yield(raw: bytes) -> Signed[LeaseYield]:
    return read_line(raw, LeaseYield, "a yield")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimVerdict:
    """What the arbiter keeps after a claim, and what it answers: a lease where none refuses."""

    lease: AgentLease | None
    chain: MessageChain
    refusal: Refusal | None = None


def judge_claim(
    claim: Signed[LeaseClaim],
    certificate: Signed[Certificate],
    held: AgentLease | None,
    chain: MessageChain,
    log: KeyLog,
    moment: ObserverState,
    *,
    clock_ms: int,
    challenge: str,
    port: Signatures,
    life_ms: int = LEASE_MS,
) -> ClaimVerdict:
    """The lease that the claim gets, or why it gets none; the arbiter keeps what comes back.

    `clock_ms` is the arbiter's own; `moment` holds the wall clock, which matters for the
    certificate alone. A claim that is genuine but comes too early still moves the chain on, so
    that a second copy of the key is noticed whichever of the two speaks first.
    """
    said = claim.record
    fault = (
        _find_unlike(said, certificate, challenge)
        or find_fault_in_certificate(certificate, log, moment, port=port)
        or find_bad_signature(claim, Family.LEASE, (said.inst,), port)
    )
    if fault is not None:
        return ClaimVerdict(lease=held, chain=chain, refusal=fault)
    followed = follow_chain(chain, counter=said.ctr, before=said.chain, digest=claim.digest)
    if isinstance(followed, Refusal):
        return ClaimVerdict(lease=held, chain=chain, refusal=followed)
    if followed.frozen:
        fork = Refusal(Reason.FORK, "two copies of this instance's key were used: both are frozen")
        return ClaimVerdict(lease=_frozen(held, said.inst), chain=followed, refusal=fork)
    fault = _find_not_free(said, held, log, clock_ms)
    if fault is not None:
        return ClaimVerdict(lease=held, chain=followed, refusal=fault)
    g, s = log.position
    until_ms = clock_ms + life_ms
    lease = AgentLease(e=said.e, inst=said.inst, g=g, s=s, until_ms=until_ms, state_root=said.state_root)
    return ClaimVerdict(lease=lease, chain=followed)


def yielded(held: AgentLease | None, said: Signed[LeaseYield], *, port: Signatures) -> AgentLease | Refusal:
    """The lease of this agent after its holder gave it to another instance."""
    record = said.record
    if held is None or held.e != record.e:
        return Refusal(Reason.OLD_INCARNATION, f"incarnation {record.e} is not the granted one")
    if held.frozen:
        return Refusal(Reason.FROZEN, "the arbiter saw two copies of this instance's key")
    fault = find_bad_signature(said, Family.LEASE, (held.inst,), port)
    return fault or replace(held, yielded_to=record.to)


def _frozen(held: AgentLease | None, inst: PublicKey) -> AgentLease | None:
    return replace(held, frozen=True) if held is not None and held.inst == inst else held


def _find_unlike(said: LeaseClaim, certificate: Signed[Certificate], challenge: str) -> Refusal | None:
    shown = certificate.record
    if said.chal != challenge:
        return Refusal(Reason.WRONG_CHALLENGE, "the claim answers another challenge")
    if (said.crt, said.inst, said.id) != (certificate.digest, shown.inst, shown.id):
        return Refusal(Reason.WRONG_CERTIFICATE, "the certificate is not the one that the claim names")
    may_ask = shown.role is Role.PRIMARY or (shown.role is Role.STANDBY and said.after_how is ClaimBasis.WAITING)
    if not may_ask:
        return Refusal(Reason.WRONG_CERTIFICATE, f"an instance with the role {shown.role.value} may not get the lease")
    if said.e < shown.e:
        return Refusal(Reason.OLD_INCARNATION, f"it claims incarnation {said.e} with a certificate for {shown.e}")
    return None


def _find_not_free(said: LeaseClaim, held: AgentLease | None, log: KeyLog, clock_ms: int) -> Refusal | None:
    if said.after_how is ClaimBasis.WAITING:
        return Refusal(Reason.HELD, "the instance only announced that it waits; it did not ask for the lease")
    if said.after_how is ClaimBasis.RENEW:
        return _find_not_holder(said, held)
    if held is None:
        return None
    if said.e <= held.e:
        return Refusal(Reason.OLD_INCARNATION, f"incarnation {held.e} was already granted")
    newer = log.position > held.position
    if held.frozen and not newer:
        return Refusal(Reason.FROZEN, "two copies of the holder's key exist: run `holdfast identity rotate`")
    free = {
        ClaimBasis.EXPIRED: clock_ms >= held.until_ms,
        ClaimBasis.YIELD: held.yielded_to == said.inst,
        ClaimBasis.ROT: newer and log.position.g == held.position.g,
        ClaimBasis.RCV: log.position.g > held.position.g,
    }
    if said.after_e != held.e or not free[said.after_how]:
        return Refusal(Reason.HELD, f"another instance holds the lease of incarnation {held.e}")
    return None


def _find_not_holder(said: LeaseClaim, held: AgentLease | None) -> Refusal | None:
    if held is None or (held.e, held.inst, held.e) != (said.e, said.inst, said.after_e):
        return Refusal(Reason.OLD_INCARNATION, f"this instance does not hold incarnation {said.e}")
    if held.frozen:
        return Refusal(Reason.FROZEN, "two copies of this key exist: run `holdfast identity rotate`")
    if held.yielded_to:
        return Refusal(Reason.HELD, f"this instance gave incarnation {held.e} to {held.yielded_to}")
    return None


WINDOW = 64  # messages whose digests are kept: repeats and late copies fall into it


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageChain:
    """What one observer saw of one instance: the newest counters with their digests."""

    seen: tuple[tuple[int, Digest], ...]
    frozen: bool = False

    @property
    def counter(self) -> int:
        return self.seen[-1][0] if self.seen else 0


def new_chain(certificate: Digest) -> MessageChain:
    """The chain of an instance that has said nothing: it follows from its certificate."""
    return MessageChain(seen=((0, certificate),))


def follow_chain(chain: MessageChain, *, counter: int, before: Digest, digest: Digest) -> MessageChain | Refusal:
    """The chain with the message; a frozen chain where it proves a second copy of the key."""
    if chain.frozen:
        return Refusal(Reason.FROZEN, "the arbiter saw two copies of this instance's key")
    known = dict(chain.seen)
    if counter in known:
        return chain if known[counter] == digest else frozen_chain(chain)
    if counter < chain.counter:
        return Refusal(Reason.OLD_VERSION, f"its counter is {counter}, below {chain.counter}")
    if known.get(counter - 1, before) != before:
        return frozen_chain(chain)
    return MessageChain(seen=(*chain.seen, (counter, digest))[-WINDOW:])


def frozen_chain(chain: MessageChain) -> MessageChain:
    return MessageChain(seen=chain.seen, frozen=True)
