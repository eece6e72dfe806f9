"""Why a record was not taken: a value, because a refused record is an everyday event."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    MALFORMED = "malformed"
    OTHER_ID = "other-id"
    NOT_BEGUN = "not-begun"
    BAD_SIGNATURE = "bad-signature"
    TOO_FEW_SIGNATURES = "too-few-signatures"
    NOT_COMMITTED = "not-committed"
    BAD_KEY = "bad-key"
    KEY_IN_TWO_CLASSES = "key-in-two-classes"
    GAP = "gap"
    WRONG_PREVIOUS = "wrong-previous"
    PREVIOUS_NOT_FINAL = "previous-not-final"
    ASK_WITNESSES = "ask-witnesses"
    CONTESTED = "contested"
    LOCKED = "locked"
    RETIRED = "retired"
    TOO_MANY = "too-many"
    EVIDENCE_FULL = "evidence-full"
    NOT_HELD = "not-held"
    NOT_A_WITNESS = "not-a-witness"
    OLD_KEYS = "old-keys"
    EXPIRED = "expired"
    TOO_EARLY = "too-early"
    TOO_LONG = "too-long"
    OLD_INCARNATION = "old-incarnation"
    OLD_VERSION = "old-version"
    WRONG_CERTIFICATE = "wrong-certificate"
    WRONG_CHALLENGE = "wrong-challenge"
    HELD = "held"
    FROZEN = "frozen"
    FORK = "fork"
    ROLLED_BACK = "rolled-back"
    ONE_OPERATOR = "one-operator"
    NOBODY_ANSWERED = "nobody-answered"


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    message: str
