"""The four records of the key event log, as values.

    icp  inception    position (0, 0)  first keys; its hash is the id
    rot  rotation     position (g, s)  spends next keys, installs operational keys
    rcv  recovery     position (g, 0)  spends recovery keys, locks; starts generation g
    rtr  retirement   position (g, 0)  spends recovery keys, ends the identity

`g` counts recoveries, `s` rotations since the last one; positions compare as pairs. What is
parsed here is whole and within its limits: lists without repetition, thresholds that can be met,
and no key in two classes within the record. Whether it counts, `log.py` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import Json
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, agent_id, key_digest
from holdfast.identity.records.fields import Fields
from holdfast.identity.records.signed import (
    VERSION,
    Family,
    Signed,
    as_read,
    find_bad_signature,
    kind_of,
    open_line,
    read_line,
    sealed,
)


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


GENERATION_MAX = 2**31 - 1  # hardened derivation has no more children
NONCE_FORM = r"[A-Za-z0-9_-]{16,64}"


class LogPosition(NamedTuple):
    g: int
    s: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Public keys, of which so many must sign."""

    members: tuple[PublicKey, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class Commitments:
    """Digests of keys that nobody has seen yet, of which so many must be shown and sign."""

    members: tuple[Digest, ...]
    needed: int


class RotationReason(StrEnum):
    PLANNED = "planned"
    STOLEN = "stolen"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inception:
    op: Keys
    nxt: Commitments
    rec: Commitments
    wit: Keys
    nonce: str

    @property
    def position(self) -> LogPosition:
        return LogPosition(0, 0)

    def to_json(self) -> Json:
        return {
            "v": VERSION,
            "t": "icp",
            "op": _keys_json(self.op),
            "nxt": _commitments_json(self.nxt),
            "rec": _commitments_json(self.rec),
            "wit": _witnesses_json(self.wit),
            "nonce": self.nonce,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    id: AgentId
    g: int
    s: int
    p: Digest
    by: tuple[PublicKey, ...]
    op: Keys
    nxt: Commitments
    why: RotationReason
    wit: Keys | None = None

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.g, self.s)

    def to_json(self) -> Json:
        return {
            "v": VERSION,
            "t": "rot",
            "id": self.id,
            "g": self.g,
            "s": self.s,
            "p": self.p,
            "by": list(self.by),
            "op": _keys_json(self.op),
            "nxt": _commitments_json(self.nxt),
            **_optional_witnesses(self.wit),
            "why": self.why.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    id: AgentId
    g: int
    rp: Digest
    by: tuple[PublicKey, ...]
    nxt: Commitments
    rec: Commitments
    wit: Keys | None = None

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.g, 0)

    def to_json(self) -> Json:
        return {
            "v": VERSION,
            "t": "rcv",
            "id": self.id,
            "g": self.g,
            "rp": self.rp,
            "by": list(self.by),
            "nxt": _commitments_json(self.nxt),
            "rec": _commitments_json(self.rec),
            **_optional_witnesses(self.wit),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    id: AgentId
    g: int
    rp: Digest
    by: tuple[PublicKey, ...]
    heir: AgentId | None = None

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.g, 0)

    def to_json(self) -> Json:
        heir: dict[str, Json] = {} if self.heir is None else {"heir": self.heir}
        return {"v": VERSION, "t": "rtr", "id": self.id, "g": self.g, "rp": self.rp, "by": list(self.by), **heir}


Record = Inception | Rotation | Recovery | Retirement


def parse_record(raw: bytes) -> Signed[Record]:
    """The record of a line of the log; BadRecord where it is none."""
    fields, body, signatures = open_line(raw)
    kind = kind_of(fields)
    read = _READERS.get(kind)
    if read is None:
        raise BadRecord(f"record: {kind!r} does not stand in the key event log")
    return as_read(fields, body, signatures, read)


def id_of(signed: Signed[Record]) -> AgentId:
    """The agent that the record is about."""
    record = signed.record
    return agent_id(signed.body) if isinstance(record, Inception) else record.id


def _inception(fields: Fields) -> Inception:
    record = Inception(
        op=_keys(fields, "op"),
        nxt=_commitments(fields, "nxt"),
        rec=_commitments(fields, "rec"),
        wit=_witnesses(fields),
        nonce=fields.text("nonce", form=NONCE_FORM),
    )
    _refuse_overlap(record.nxt.members, record.rec.members)
    _refuse_overlap(_digests(record.op.members), (*record.nxt.members, *record.rec.members))
    return record


def _rotation(fields: Fields) -> Rotation:
    if "rec" in fields:
        raise BadRecord("rot: rec: the recovery keys cannot be changed by a rotation")
    record = Rotation(
        id=fields.id(),
        g=fields.whole("g", most=GENERATION_MAX),
        s=fields.whole("s", least=1),
        p=fields.digest("p"),
        by=fields.keys("by"),
        op=_keys(fields, "op"),
        nxt=_commitments(fields, "nxt"),
        why=fields.choice("why", RotationReason),
        wit=_witnesses(fields) if "wit" in fields else None,
    )
    shown = _digests((*record.by, *record.op.members))
    _refuse_overlap(record.by, record.op.members)
    _refuse_overlap(shown, record.nxt.members)
    return record


def _recovery(fields: Fields) -> Recovery:
    record = Recovery(
        id=fields.id(),
        g=fields.whole("g", least=1, most=GENERATION_MAX),
        rp=fields.digest("rp"),
        by=fields.keys("by"),
        nxt=_commitments(fields, "nxt"),
        rec=_commitments(fields, "rec"),
        wit=_witnesses(fields) if "wit" in fields else None,
    )
    _refuse_overlap(record.nxt.members, record.rec.members)
    _refuse_overlap(_digests(record.by), (*record.nxt.members, *record.rec.members))
    return record


def _retirement(fields: Fields) -> Retirement:
    return Retirement(
        id=fields.id(),
        g=fields.whole("g", least=1, most=GENERATION_MAX),
        rp=fields.digest("rp"),
        by=fields.keys("by"),
        heir=fields.id("heir") if "heir" in fields else None,
    )


_READERS = {"icp": _inception, "rot": _rotation, "rcv": _recovery, "rtr": _retirement}


def _keys(fields: Fields, name: str) -> Keys:
    inner = fields.inner(name)
    keys = inner.keys("k")
    found = Keys(keys, inner.whole("kt", least=1, most=len(keys)))
    inner.end()
    return found


def _commitments(fields: Fields, name: str) -> Commitments:
    inner = fields.inner(name)
    digests = inner.digests("n")
    found = Commitments(digests, inner.whole("nt", least=1, most=len(digests)))
    inner.end()
    return found


def _witnesses(fields: Fields) -> Keys:
    inner = fields.inner("wit")
    keys = inner.keys("k")
    # With half of them or fewer, two records at one position could both become final.
    found = Keys(keys, inner.whole("m", least=len(keys) // 2 + 1, most=len(keys)))
    inner.end()
    return found


def _digests(keys: tuple[PublicKey, ...]) -> tuple[Digest, ...]:
    return tuple(map(key_digest, keys))


def _refuse_overlap(some: tuple[str, ...], others: tuple[str, ...]) -> None:
    if not set(some).isdisjoint(others):
        raise BadRecord("record: one key in two classes; each class has powers of its own")


def _keys_json(keys: Keys) -> Json:
    return {"k": list(keys.members), "kt": keys.needed}


def _commitments_json(commitments: Commitments) -> Json:
    return {"n": list(commitments.members), "nt": commitments.needed}


def _witnesses_json(witnesses: Keys) -> Json:
    return {"k": list(witnesses.members), "m": witnesses.needed}


def _optional_witnesses(witnesses: Keys | None) -> dict[str, Json]:
    return {} if witnesses is None else {"wit": _witnesses_json(witnesses)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    id: AgentId
    g: int
    s: int
    d: Digest
    wit: PublicKey
    at: int  # unix seconds on the witness's clock; nothing is decided by it

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.g, self.s)

    def to_json(self) -> Json:
        return {
            "v": VERSION,
            "t": "rct",
            "id": self.id,
            "g": self.g,
            "s": self.s,
            "d": self.d,
            "wit": self.wit,
            "at": self.at,
        }


def parse_receipt(raw: bytes) -> Signed[Receipt]:
    """The receipt of a line; BadRecord where it is none."""
    return read_line(raw, "rct", "a receipt", _read_receipt)


def _read_receipt(fields: Fields) -> Receipt:
    return Receipt(
        id=fields.id(),
        g=fields.whole("g", most=GENERATION_MAX),
        s=fields.whole("s"),
        d=fields.digest("d"),
        wit=fields.key("wit"),
        at=fields.whole("at"),
    )


def sign_receipt(receipt: Receipt, signer: Signer) -> Signed[Receipt]:
    return sealed(receipt, receipt.to_json(), Family.RCPT, (signer,))


def find_bad_receipt(receipt: Signed[Receipt], port: Signatures) -> str | None:
    """What is wrong with its signature; None where the witness it names signed it."""
    if not receipt.signatures:
        return "a receipt that nobody signed"
    return find_bad_signature(receipt, Family.RCPT, (receipt.record.wit,), port)
