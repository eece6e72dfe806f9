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


def committed(keys: Sequence[PublicKey], needed: int = 1) -> Commitments:
    """The commitment to keys that are not shown yet."""
    return Commitments(tuple(map(key_digest, keys)), needed)


def inception(
    *, op: Sequence[Signer], nxt: Commitments, rec: Commitments, wit: Keys, nonce: str, op_needed: int = 1
) -> Signed[Record]:
    record = Inception(op=_keys(op, op_needed), nxt=nxt, rec=rec, wit=wit, nonce=nonce)
    return _sealed(record, op)


def rotation(
    log: KeyLog,
    *,
    by: Sequence[Signer],
    op: Sequence[Signer],
    nxt: Commitments,
    why: RotationReason,
    wit: Keys | None = None,
    op_needed: int = 1,
) -> Signed[Record]:
    """The rotation that follows the log's head."""
    head = log.head
    record = Rotation(
        id=log.id,
        g=head.position.g,
        s=head.position.s + 1,
        p=head.digest,
        by=tuple(signer.public for signer in by),
        op=_keys(op, op_needed),
        nxt=nxt,
        why=why,
        wit=wit,
    )
    return _sealed(record, (*by, *op))


def recovery(
    *,
    id: AgentId,
    g: int,
    rp: Digest,
    by: Sequence[Signer],
    nxt: Commitments,
    rec: Commitments,
    wit: Keys | None = None,
) -> Signed[Record]:
    """The recovery of generation g, which follows the recovery record with digest rp."""
    keys = tuple(signer.public for signer in by)
    record = Recovery(id=id, g=g, rp=rp, by=keys, nxt=nxt, rec=rec, wit=wit)
    return _sealed(record, by)


def retirement(*, id: AgentId, g: int, rp: Digest, by: Sequence[Signer], heir: AgentId | None = None) -> Signed[Record]:
    """The end of the identity, at the position of the next recovery."""
    keys = tuple(signer.public for signer in by)
    return _sealed(Retirement(id=id, g=g, rp=rp, by=keys, heir=heir), by)


def _sealed(record: Record, signers: Sequence[Signer]) -> Signed[Record]:
    """Signed, and read back as everyone else will read it; BadRecord where they would not."""
    return parse_record(sealed(record, Family.KEL, signers).line())


def _keys(signers: Sequence[Signer], needed: int) -> Keys:
    return Keys(tuple(signer.public for signer in signers), needed)
