"""Records made by their owner: pure functions from keys and the log to signed lines.

`recovery` depends on nothing but its arguments: no time, no nonce. Run twice, or on two machines,
it gives the same bytes, and so it cannot fork the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signer
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, key_digest
from holdfast.identity.records.records import (
    Commitments,
    Inception,
    Keys,
    Record,
    Recovery,
    Retirement,
    Rotation,
    RotationReason,
    parse_record,
)
from holdfast.identity.records.signed import Family, Signed, sealed

Signers = Sequence[Signer]


def committed(keys: Sequence[PublicKey], needed: int = 1) -> Commitments:
    """The commitment to keys that are not shown yet."""
    return Commitments(tuple(map(key_digest, keys)), needed)


def inception(*, op: Signers, nxt: Commitments, rec: Commitments, wit: Keys, nonce: str) -> Signed[Record]:
    return _sealed(Inception(op=Keys(_public(op), 1), nxt=nxt, rec=rec, wit=wit, nonce=nonce), op)


def rotation(
    log: KeyLog, *, by: Signers, op: Signers, nxt: Commitments, why: RotationReason, wit: Keys | None = None
) -> Signed[Record]:
    """The rotation that follows the log's head."""
    (g, s), p, keys = log.position, log.head.digest, Keys(_public(op), 1)
    record = Rotation(id=log.id, g=g, s=s + 1, p=p, by=_public(by), op=keys, nxt=nxt, why=why, wit=wit)
    return _sealed(record, (*by, *op))


def recovery(
    *, id: AgentId, g: int, rp: Digest, by: Signers, nxt: Commitments, rec: Commitments, wit: Keys | None = None
) -> Signed[Record]:
    """The recovery of generation g, which follows the recovery record with digest rp."""
    keys = _public(by)
    record = Recovery(id=id, g=g, rp=rp, by=keys, nxt=nxt, rec=rec, wit=wit)
    return _sealed(record, by)


def retirement(*, id: AgentId, g: int, rp: Digest, by: Signers, heir: AgentId | None = None) -> Signed[Record]:
    """The end of the identity, at the position of the next recovery."""
    return _sealed(Retirement(id=id, g=g, rp=rp, by=_public(by), heir=heir), by)


def _sealed(record: Record, signers: Signers) -> Signed[Record]:
    """Signed, and read back as everyone else will read it; BadRecord where they would not."""
    return parse_record(sealed(record, Family.KEL, signers).line())


def _public(signers: Signers) -> tuple[PublicKey, ...]:
    return tuple(signer.public for signer in signers)
