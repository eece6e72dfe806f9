"""Claims and yields: which instance is the primary is settled by a lease, not by keys.

An arbiter (a relay, or a file on one machine) grants an incarnation once, and a higher one only
when the lease before it has expired, was yielded by its holder's own key, or belongs to keys that
a newer rotation or recovery replaced. Holding the operational key is not enough to push out a
live holder. Time is an argument, counted on the arbiter's own clock that cannot be set.

A holder renews with a claim to the incarnation that it has. That counts also after the lease has
expired, as long as nobody else was granted a higher one: it is the same instance, which knows by
its own clock that it had to stand still meanwhile. An instance that may not or will not hold the
lease says that it is there by a claim that asks for nothing, so that the holder learns of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.identity.log.log_state import Log
from holdfast.identity.records.canonical import Json
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.fields import Fields
from holdfast.identity.records.records import Position
from holdfast.identity.records.refusal import Reason, Refusal
from holdfast.identity.records.signed import VERSION, Family, Signed, find_bad_signature, read_line
from holdfast.identity.statements.certificate import Certificate, Moment, Role, find_fault_in_certificate
from holdfast.identity.statements.instance_chain import Chain, follow

LEASE_MS = 30_000
CHALLENGE_FORM = r"[A-Za-z0-9_-]{16,86}"


class How(StrEnum):
    EXPIRED = "expired"
    YIELD = "yield"
    ROT = "rot"
    RCV = "rcv"
    RENEW = "renew"  # of the incarnation that it holds
    WAITING = "waiting"  # asks for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    id: AgentId
    e: int
    inst: PublicKey
    crt: Digest
    after_e: int
    after_how: How
    state_root: Digest
    chal: str
    ctr: int
    chain: Digest

    def to_json(self) -> Json:
        return {
            "v": VERSION,
            "t": "clm",
            "id": self.id,
            "e": self.e,
            "inst": self.inst,
            "crt": self.crt,
            "after": {"e": self.after_e, "how": self.after_how.value},
            "state_root": self.state_root,
            "chal": self.chal,
            "ctr": self.ctr,
            "chain": self.chain,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    id: AgentId
    e: int
    to: PublicKey
    state_root: Digest
    handoff: Digest

    def to_json(self) -> Json:
        return {
            "v": VERSION,
            "t": "yld",
            "id": self.id,
            "e": self.e,
            "to": self.to,
            "state_root": self.state_root,
            "handoff": self.handoff,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The highest incarnation that this arbiter granted, and to whom."""

    id: AgentId
    e: int
    inst: PublicKey
    position: Position
    until_ms: int  # on the arbiter's clock
    state_root: Digest
    yielded_to: PublicKey | None = None
    frozen: bool = False


def parse_claim(raw: bytes) -> Signed[Claim]:
    return read_line(raw, "clm", "a claim", _read_claim)


def _read_claim(fields: Fields) -> Claim:
    after = fields.inner("after")
    claim = Claim(
        id=fields.id(),
        e=fields.whole("e", least=1),
        inst=fields.key("inst"),
        crt=fields.digest("crt"),
        after_e=after.whole("e"),
        after_how=after.choice("how", How),
        state_root=fields.digest("state_root"),
        chal=fields.text("chal", form=CHALLENGE_FORM),
        ctr=fields.whole("ctr", least=1),
        chain=fields.digest("chain"),
    )
    after.end()
    return claim


def parse_yield(raw: bytes) -> Signed[Yield]:
    return read_line(raw, "yld", "a yield", _read_yield)


def _read_yield(fields: Fields) -> Yield:
    return Yield(
        id=fields.id(),
        e=fields.whole("e", least=1),
        to=fields.key("to"),
        state_root=fields.digest("state_root"),
        handoff=fields.digest("handoff"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the arbiter keeps after a claim, and what it answers: a lease where none refuses."""

    lease: Lease | None
    chain: Chain
    refusal: Refusal | None = None


def judge_claim(
    claim: Signed[Claim],
    certificate: Signed[Certificate],
    held: Lease | None,
    chain: Chain,
    log: Log,
    moment: Moment,
    *,
    clock_ms: int,
    challenge: str,
    port: Signatures,
    life_ms: int = LEASE_MS,
) -> Judged:
    """The lease that the claim gets, or why it gets none; the arbiter keeps what comes back.

    `clock_ms` is the arbiter's own; `moment` holds the wall clock, which matters for the
    certificate alone. A claim that is genuine but comes too early still moves the chain on, so
    that a second copy of the key is noticed whichever of the two speaks first.
    """
    said = claim.record
    fault = (
        _find_unlike(said, certificate, challenge)
        or find_fault_in_certificate(certificate, log, moment, port=port)
        or _find_not_signed(claim, said.inst, port)
    )
    if fault is not None:
        return Judged(lease=held, chain=chain, refusal=fault)
    followed = follow(chain, counter=said.ctr, before=said.chain, digest=claim.digest)
    if isinstance(followed, Refusal):
        return Judged(lease=held, chain=chain, refusal=followed)
    if followed.frozen:
        fork = Refusal(Reason.FORK, "two copies of this instance's key spoke: both are frozen")
        return Judged(lease=_frozen(held, said.inst), chain=followed, refusal=fork)
    fault = _find_not_free(said, held, log, clock_ms)
    if fault is not None:
        return Judged(lease=held, chain=followed, refusal=fault)
    lease = Lease(
        id=said.id,
        e=said.e,
        inst=said.inst,
        position=log.position,
        until_ms=clock_ms + life_ms,
        state_root=said.state_root,
    )
    return Judged(lease=lease, chain=followed)


def yielded(held: Lease | None, said: Signed[Yield], *, port: Signatures) -> Lease | Refusal:
    """The lease after its holder gave it to another instance."""
    record = said.record
    if held is None or (held.id, held.e) != (record.id, record.e):
        return Refusal(Reason.OLD_INCARNATION, f"incarnation {record.e} is not the one granted")
    if held.frozen:
        return Refusal(Reason.FROZEN, "two copies of this instance's key were seen")
    fault = _find_not_signed(said, held.inst, port)
    return fault or replace(held, yielded_to=record.to)


def _frozen(held: Lease | None, inst: PublicKey) -> Lease | None:
    return replace(held, frozen=True) if held is not None and held.inst == inst else held


def _find_unlike(said: Claim, certificate: Signed[Certificate], challenge: str) -> Refusal | None:
    shown = certificate.record
    if said.chal != challenge:
        return Refusal(Reason.WRONG_CHALLENGE, "answers another challenge")
    if (said.crt, said.inst, said.id) != (certificate.digest, shown.inst, shown.id):
        return Refusal(Reason.WRONG_CERTIFICATE, "the certificate is not the one it names")
    if shown.role not in (Role.PRIMARY, Role.STANDBY):
        return Refusal(Reason.WRONG_CERTIFICATE, f"a {shown.role.value} cannot become primary")
    if said.e < shown.e:
        return Refusal(Reason.OLD_INCARNATION, f"claims {said.e} with a certificate for {shown.e}")
    return None


def _find_not_free(said: Claim, held: Lease | None, log: Log, clock_ms: int) -> Refusal | None:
    if said.after_how is How.WAITING:
        return Refusal(Reason.HELD, "it asks for nothing")
    if said.after_how is How.RENEW:
        return _find_not_holder(said, held)
    if held is None:
        return None
    if said.e <= held.e:
        return Refusal(Reason.OLD_INCARNATION, f"incarnation {held.e} was granted already")
    newer = log.position > held.position
    if held.frozen and not newer:
        return Refusal(Reason.FROZEN, "two copies of the holder's key were seen: rotate first")
    free = {
        How.EXPIRED: clock_ms >= held.until_ms,
        How.YIELD: held.yielded_to == said.inst,
        How.ROT: newer and log.position.g == held.position.g,
        How.RCV: log.position.g > held.position.g,
    }
    if said.after_e != held.e or not free[said.after_how]:
        return Refusal(Reason.HELD, f"incarnation {held.e} is held")
    return None


def _find_not_holder(said: Claim, held: Lease | None) -> Refusal | None:
    if held is None or (held.e, held.inst, held.e) != (said.e, said.inst, said.after_e):
        return Refusal(Reason.OLD_INCARNATION, f"incarnation {said.e} is not this instance's")
    if held.frozen:
        return Refusal(Reason.FROZEN, "two copies of this instance's key were seen: rotate first")
    if held.yielded_to is not None:
        return Refusal(Reason.HELD, f"incarnation {held.e} was given to {held.yielded_to}")
    return None


def _find_not_signed(signed: Signed[object], key: PublicKey, port: Signatures) -> Refusal | None:
    fault = find_bad_signature(signed, Family.LEASE, (key,), port)
    return None if fault is None else Refusal(Reason.BAD_SIGNATURE, fault)
