"""What a record or receipt must be by itself and beside its predecessor; `log.py` says whether it then counts.

Cheap checks come first: anyone who sends rubbish costs us a hash, not a signature check.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.identity.log.log_state import LogEntry
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import Digest, PublicKey, key_bytes, key_digest
from holdfast.identity.records.records import Inception, Keys, Receipt, Record, Recovery, Retirement, Rotation
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, count_of, find_bad_signature


def find_fault_in_inception(signed: Signed[Record], port: Signatures) -> Refusal | None:
    """Signed by enough of the keys that it installs; no one else has a say yet."""
    record = signed.record
    if not isinstance(record, Inception):
        return Refusal(Reason.NOT_BEGUN, "a log must begin with an inception")
    return (
        _find_bad_key((*record.op.members, *record.wit.members), port)
        or find_bad_signature(signed, Family.KEL, record.op.members, port)
        or find_too_few(signed, record.op.members, record.op.needed, "operational")
    )


def find_fault_in_rotation(
    signed: Signed[Record], record: Rotation, *, before: LogEntry, tier: LogEntry, port: Signatures
) -> Refusal | None:
    """Signed by next keys that the record before committed to, and by the keys it installs."""
    previous = before.record
    if isinstance(previous, Retirement):
        return Refusal(Reason.RETIRED, "the identity is retired")
    if record.p != before.digest:
        return Refusal(Reason.WRONG_PREVIOUS, f"its previous record {record.p} is not in this log")
    kept = tier.record.rec.members if isinstance(tier.record, Inception | Recovery) else ()
    shown = {*map(key_digest, record.op.members), *record.nxt.members}
    if not shown.isdisjoint(kept):
        return Refusal(Reason.KEY_IN_TWO_CLASSES, "it uses a recovery key as another kind of key")
    return (
        find_not_committed(record.by, previous.nxt.members)
        or _find_bad_key((*record.by, *record.op.members, *_members(record.wit)), port)
        or find_bad_signature(signed, Family.KEL, (*record.by, *record.op.members), port)
        or find_too_few(signed, record.by, previous.nxt.needed, "next")
        or find_too_few(signed, record.op.members, record.op.needed, "new operational")
    )


def find_fault_in_recovery(
    signed: Signed[Record], record: Recovery | Retirement, *, before: LogEntry, port: Signatures
) -> Refusal | None:
    """Signed by recovery keys that the recovery record before committed to, and by no others."""
    previous = before.record
    if not isinstance(previous, Inception | Recovery):
        return Refusal(Reason.RETIRED, "the identity is retired")
    if record.rp != before.digest:
        return Refusal(Reason.WRONG_PREVIOUS, f"its previous recovery {record.rp} is not in this log")
    return (
        find_not_committed(record.by, previous.rec.members)
        or _find_bad_key((*record.by, *_members(record.wit)), port)
        or find_bad_signature(signed, Family.KEL, record.by, port)
        or find_too_few(signed, record.by, previous.rec.needed, "recovery")
    )


def find_not_committed(by: tuple[PublicKey, ...], committed: tuple[Digest, ...]) -> Refusal | None:
    for key in by:
        if key_digest(key) not in committed:
            return Refusal(Reason.NOT_COMMITTED, f"the previous record has no digest of the key {key}")
    return None


def find_too_few(signed: Signed[object], keys: tuple[PublicKey, ...], needed: int, what: str) -> Refusal | None:
    count = count_of(signed, keys)
    if count >= needed:
        return None
    return Refusal(Reason.TOO_FEW_SIGNATURES, f"{count} {what} keys signed it; {needed} are needed")


def find_fault_in_receipt(receipt: Signed[Receipt], entry: LogEntry, id_: str, port: Signatures) -> Refusal | None:
    """Whether the receipt vouches for this record of this agent, by one of its witnesses."""
    said = receipt.record
    if said.id != id_:
        return Refusal(Reason.OTHER_ID, "the receipt is for another agent")
    if (said.position, said.d) != (entry.position, entry.digest):
        return Refusal(Reason.NOT_HELD, "the receipt is for another record")
    if not may_vouch(entry, said.wit):
        return Refusal(Reason.NOT_A_WITNESS, f"{said.wit} is not a witness of this record")
    if not receipt.signatures:
        return Refusal(Reason.BAD_SIGNATURE, "the receipt has no signature")
    return find_bad_signature(receipt, Family.RCPT, (said.wit,), port)


def may_vouch(entry: LogEntry, key: PublicKey) -> bool:
    """Whether this witness has a say: of the sets that must vouch, or of the one before."""
    return any(key in witnesses.members for witnesses in entry.needs) or (
        entry.old is not None and key in entry.old.members
    )


def enough(needs: Iterable[Keys], receipts: Iterable[Signed[Receipt]]) -> bool:
    """Whether every set of witnesses has its threshold."""
    signers = {receipt.record.wit for receipt in receipts}
    return all(len(signers.intersection(keys.members)) >= keys.needed for keys in needs)


def find_other_id(signed: Signed[Record], id_: str, first: LogEntry) -> Refusal | None:
    """Whether the record is of another agent than the one whose log begins with `first`."""
    record = signed.record
    same = signed.digest == first.digest if isinstance(record, Inception) else record.id == id_
    return None if same else Refusal(Reason.OTHER_ID, "the record belongs to another agent")


def _find_bad_key(keys: tuple[PublicKey, ...], port: Signatures) -> Refusal | None:
    for key in keys:
        if not port.is_good_key(key_bytes(key)):
            return Refusal(Reason.BAD_KEY, f"the key {key} is weak (of small order) or not in canonical form")
    return None


def _members(keys: Keys | None) -> tuple[PublicKey, ...]:
    return () if keys is None else keys.members
