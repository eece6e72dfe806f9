"""Certificates: the operational keys say that an instance key may speak, for an hour at most.

A certificate names the position (g, s) whose keys signed it, so a rotation or a recovery ends all
certificates of the keys it replaces. After a planned rotation, and only then, the one before it
counts for ten minutes more, for work that is under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.identity.log.log_state import KeyLog, LogEntry, LogStanding
from holdfast.identity.log.rules import find_too_few
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import Digest, PublicKey, key_bytes
from holdfast.identity.records.fields import Fields, choice, of, record, whole
from holdfast.identity.records.records import AtPosition, Inception, LogPosition, Rotation, RotationReason
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, find_bad_signature, read_line

LIFE_S_MAX = 3600
GRACE_S = 600
SKEW_S = 60  # how far ahead the signer's clock may be


class Role(StrEnum):
    PRIMARY = "primary"
    REPLICA = "replica"
    STANDBY = "standby"
    SHADOW = "shadow"


@record
class Certificate(AtPosition):
    KIND = "crt"
    inst: PublicKey = of(Fields.key)
    role: Role = of(choice(Role))
    e: int = of(whole())  # incarnation
    iat: int = of(whole())
    exp: int = of(whole())
    host: Digest = of(Fields.digest)  # of machine id and boot id


def parse_certificate(raw: bytes) -> Signed[Certificate]:
    return read_line(raw, Certificate, "a certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverState:
    """What the observer knows besides the log: its clock, and what it has seen before."""

    now: int  # unix seconds
    head_seen_at: int  # when it first saw the record that is the head now
    incarnation: int = 0  # the highest it has seen for this agent


def find_fault_in_certificate(
    signed: Signed[Certificate], log: KeyLog, moment: ObserverState, *, port: Signatures
) -> Refusal | None:
    """Why the instance may not speak; None where it may."""
    certificate = signed.record
    entry = find_signing_entry(log, certificate, moment)
    if isinstance(entry, Refusal):
        return entry
    return (
        _find_fault_in_times(certificate, moment.now)
        or _find_old_incarnation(certificate, moment.incarnation)
        or _find_bad_instance_key(certificate, port)
        or find_not_signed_by(signed, Family.CERT, entry, port)
    )


def find_signing_entry(log: KeyLog, said: AtPosition, moment: ObserverState | None = None) -> LogEntry | Refusal:
    """The record whose operational keys are meant, if they still sign for the agent; without a moment there is no
    grace: only the head's keys do."""
    position = said.position
    if said.id != log.id:
        return Refusal(Reason.OTHER_ID, "it is about another agent")
    fault = find_inactive(log)
    if fault is not None:
        return fault
    if position == log.position:
        return log.head
    entry = log.find(position)
    if entry is not None and moment is not None and _in_grace(log, position, moment):
        return entry
    return Refusal(Reason.OLD_KEYS, f"the keys of {position} are no longer valid: the key log is at {log.position}")


def only_planned(position: LogPosition, log: KeyLog) -> bool:
    """Whether all that came after these keys were planned rotations."""
    since = log.generations[-1].rotations[position.s :]
    return position.g == log.position.g and all(
        isinstance(one.record, Rotation) and one.record.why is RotationReason.PLANNED for one in since
    )


def find_inactive(log: KeyLog) -> Refusal | None:
    """Why no key may act for the agent now; None while it is active."""
    match log.standing:
        case LogStanding.ACTIVE:
            return None
        case LogStanding.LOCKED:
            return Refusal(Reason.LOCKED, "the agent was recovered but its keys were not rotated yet: no key is valid")
        case LogStanding.CONTESTED:
            return Refusal(Reason.CONTESTED, "the key log has two records at one position: no key is valid")
        case LogStanding.RETIRED:
            return Refusal(Reason.RETIRED, "the identity is retired")


def find_fault_by_log(signed: Signed[AtPosition], family: Family, log: KeyLog, port: Signatures) -> Refusal | None:
    """Why it is no record of this agent, signed by the keys that the log names at its position; None where it is."""
    said = signed.record
    if said.id != log.id:
        return Refusal(Reason.OTHER_ID, "it is about another agent")
    entry = log.find(said.position)
    if entry is None:
        return Refusal(Reason.OLD_KEYS, f"it was signed at {said.position}, which the key log does not have")
    return find_not_signed_by(signed, family, entry, port)


def find_not_signed_by(signed: Signed[object], family: Family, entry: LogEntry, port: Signatures) -> Refusal | None:
    """Whether enough of the operational keys of that record signed, and no one else."""
    record = entry.record
    if not isinstance(record, Inception | Rotation):
        return Refusal(Reason.LOCKED, "the key log names no operational key at that position")
    keys = record.op
    return find_bad_signature(signed, family, keys.members, port) or find_too_few(
        signed, keys.members, keys.needed, "operational"
    )


def _in_grace(log: KeyLog, position: LogPosition, moment: ObserverState) -> bool:
    head = log.head.record
    return (
        isinstance(head, Rotation)
        and head.why is RotationReason.PLANNED
        and position == (head.g, head.s - 1)
        and 0 <= moment.now - moment.head_seen_at <= GRACE_S
    )


def _find_fault_in_times(certificate: Certificate, now: int) -> Refusal | None:
    if not 0 < certificate.exp - certificate.iat <= LIFE_S_MAX:
        return Refusal(Reason.TOO_LONG, f"a certificate may be valid for at most {LIFE_S_MAX} s")
    if certificate.iat > now + SKEW_S:
        return Refusal(Reason.TOO_EARLY, "the certificate is dated in the future")
    if now >= certificate.exp:
        return Refusal(Reason.EXPIRED, "the certificate has expired")
    return None


def _find_old_incarnation(certificate: Certificate, highest: int) -> Refusal | None:
    if certificate.e >= highest:
        return None
    return Refusal(Reason.OLD_INCARNATION, f"its incarnation is {certificate.e}, but {highest} was already seen")


def _find_bad_instance_key(certificate: Certificate, port: Signatures) -> Refusal | None:
    if port.is_good_key(key_bytes(certificate.inst)):
        return None
    return Refusal(Reason.BAD_KEY, f"the key {certificate.inst} is weak (of small order) or not in canonical form")
