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

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, TypeVar

from holdfast.errors import BadRecord
from holdfast.identity.records.ed25519 import Signer
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, agent_id, key_digest
from holdfast.identity.records.fields import Body, Fields, Reader, Writer, choice, of, record, text, whole
from holdfast.identity.records.signed import Family, Signed, as_read, kind_of, open_line, read_line, sealed

GENERATION_MAX = 2**31 - 1  # hardened derivation has no more children
NONCE_FORM = r"[A-Za-z0-9_-]{16,64}"


class LogPosition(NamedTuple):
    g: int
    s: int

    def __str__(self) -> str:
        return f"generation {self.g}, rotation {self.s}"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Keys:
    """Public keys, of which so many must sign."""

    members: tuple[PublicKey, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class Commitments:
    """Digests of keys that no one has seen yet, of which so many must be shown and sign."""

    members: tuple[Digest, ...]
    needed: int


class RotationReason(StrEnum):
    PLANNED = "planned"
    STOLEN = "stolen"
    RECOVERED = "recovered"


def _group(
    cls: Callable[[tuple[Any, ...], int], T], read: Reader[tuple[Any, ...]], listed: str, needed: str
) -> tuple[Reader[T], Writer]:
    """How members and their threshold are read and written, under these two names. Any: keys or digests."""

    def read_group(fields: Fields, name: str) -> T:
        inner = fields.inner(name)
        members = read(inner, listed)
        # With half of the witnesses or fewer, two records at one position could both become final.
        least = len(members) // 2 + 1 if needed == "m" else 1
        found = cls(members, inner.whole(needed, least=least, most=len(members)))
        inner.end()
        return found

    return read_group, lambda group: {listed: list(group.members), needed: group.needed}


_KEYS = _group(Keys, Fields.keys, "k", "kt")
_COMMITMENTS = _group(Commitments, Fields.digests, "n", "nt")
_WITNESSES = _group(Keys, Fields.keys, "k", "m")


def _digests(keys: tuple[PublicKey, ...]) -> tuple[Digest, ...]:
    return tuple(map(key_digest, keys))


def _refuse_overlap(some: tuple[str, ...], others: tuple[str, ...]) -> None:
    if not set(some).isdisjoint(others):
        raise BadRecord("record: the same key is used for two purposes; each purpose needs a key of its own")


@record
class Inception(Body):
    KIND = "icp"
    op: Keys = of(*_KEYS)
    nxt: Commitments = of(*_COMMITMENTS)
    rec: Commitments = of(*_COMMITMENTS)
    wit: Keys = of(*_WITNESSES)
    nonce: str = of(text(form=NONCE_FORM))

    @property
    def position(self) -> LogPosition:
        return LogPosition(0, 0)

    def __post_init__(self) -> None:
        _refuse_overlap(self.nxt.members, self.rec.members)
        _refuse_overlap(_digests((*self.op.members, *self.wit.members)), (*self.nxt.members, *self.rec.members))
        _refuse_overlap(self.op.members, self.wit.members)


@record
class AtPosition(Body):
    """A record that names the agent and a position of its log."""

    id: AgentId = of(Fields.id)
    g: int = of(whole(most=GENERATION_MAX))
    s: int = of(whole())

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.g, self.s)


@record
class Rotation(AtPosition):
    KIND = "rot"
    s: int = of(whole(least=1))
    p: Digest = of(Fields.digest)
    by: tuple[PublicKey, ...] = of(Fields.keys)
    op: Keys = of(*_KEYS)
    nxt: Commitments = of(*_COMMITMENTS)
    why: RotationReason = of(choice(RotationReason))
    wit: Keys | None = of(*_WITNESSES, default=None)

    def __post_init__(self) -> None:
        wit = () if self.wit is None else self.wit.members
        _refuse_overlap(self.by, self.op.members)
        _refuse_overlap(wit, (*self.by, *self.op.members))
        _refuse_overlap(_digests((*self.by, *self.op.members, *wit)), self.nxt.members)


@record
class RecoveryTier(Body):
    """What recovery keys sign: it follows the record of this tier with the digest `rp`."""

    id: AgentId = of(Fields.id)
    g: int = of(whole(least=1, most=GENERATION_MAX))
    rp: Digest = of(Fields.digest)
    by: tuple[PublicKey, ...] = of(Fields.keys)

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.g, 0)


@record
class Recovery(RecoveryTier):
    KIND = "rcv"
    nxt: Commitments = of(*_COMMITMENTS)
    rec: Commitments = of(*_COMMITMENTS)
    wit: Keys | None = of(*_WITNESSES, default=None)

    def __post_init__(self) -> None:
        wit = () if self.wit is None else self.wit.members
        _refuse_overlap(self.nxt.members, self.rec.members)
        _refuse_overlap(wit, self.by)
        _refuse_overlap(_digests((*self.by, *wit)), (*self.nxt.members, *self.rec.members))


@record
class Retirement(RecoveryTier):
    KIND = "rtr"
    wit: ClassVar[None] = None  # it names no witnesses
    heir: AgentId | None = of(Fields.id, default=None)


Record = Inception | Rotation | Recovery | Retirement


def parse_record(raw: bytes) -> Signed[Record]:
    """The record of a line of the log; BadRecord where it is none."""
    fields, body, signatures = open_line(raw)
    kind = kind_of(fields)
    cls = _KINDS.get(kind)
    if cls is None:
        raise BadRecord(f"record: {kind!r} is not a kind of record that a key log can have")
    if cls is Rotation and "rec" in fields:
        raise BadRecord("rot: rec: a rotation cannot change the recovery keys")
    return as_read(fields, body, signatures, cls)


_KINDS: dict[str, type[Record]] = {one.KIND: one for one in (Inception, Rotation, Recovery, Retirement)}


def id_of(signed: Signed[Record]) -> AgentId:
    """The agent that the record is about."""
    record = signed.record
    return agent_id(signed.body) if isinstance(record, Inception) else record.id


@record
class Receipt(AtPosition):
    """A witness says: this is the first valid record that I saw at this position. An honest one signs at most one
    for a position, ever; two of them with different digests prove that it lied."""

    KIND = "rct"
    d: Digest = of(Fields.digest)
    wit: PublicKey = of(Fields.key)
    at: int = of(whole())  # unix seconds on the witness's clock; nothing is decided by it


def parse_receipt(raw: bytes) -> Signed[Receipt]:
    """The receipt of a line; BadRecord where it is none."""
    return read_line(raw, Receipt, "a receipt")


def sign_receipt(receipt: Receipt, signer: Signer) -> Signed[Receipt]:
    return sealed(receipt, Family.RCPT, (signer,))
