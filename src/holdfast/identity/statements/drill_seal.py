"""A drill seal: an instance of the agent says that it measured this, and which report came before.

The report itself is too long for a record, so the seal names it by its digest. Seals are numbered and each names the
one before it: a report that is dropped, exchanged or dated back leaves a gap that every reader of the later ones sees.

The instance's key signs, with a certificate of role `shadow`, which counts for no lease. A seal is about the past, as a
backup's head is: it counts as long as the log has the position whose keys signed the certificate, and the certificate
counted at the time that the seal gives. A stranger needs the key log and nothing else.
"""

from __future__ import annotations

from holdfast.errors import BadRecord
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.fields import Fields, of, record, text, whole
from holdfast.identity.records.records import AtPosition
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, find_bad_signature, read_line, sealed
from holdfast.identity.statements.certificate import LIFE_S_MAX, SKEW_S, Certificate, find_not_signed_by

SLUG_FORM = r"[a-z][a-z0-9-]{0,63}"


@record
class DrillSeal(AtPosition):
    KIND = "drl"
    n: int = of(whole(least=1))  # 1, 2, 3: of the agent's reports
    at: int = of(whole())  # unix seconds
    drill: str = of(text(form=SLUG_FORM))
    report: Digest = of(Fields.digest)  # of the report's canonical bytes
    crt: Digest = of(Fields.digest)  # of the certificate of the key that signs
    prev: Digest | None = of(Fields.digest, default=None)  # of the seal before; the first has none


def parse_drill_seal(raw: bytes) -> Signed[DrillSeal]:
    """The seal of a line; BadRecord where it is none. Its signature is not checked yet."""
    signed = read_line(raw, DrillSeal, "a drill seal")
    if (signed.record.prev is None) != (signed.record.n == 1):
        raise BadRecord(f"{DrillSeal.KIND}: prev: every seal except the first must name the previous seal")
    return signed


def sign_drill(seal: DrillSeal, signer: Signer) -> Signed[DrillSeal]:
    return parse_drill_seal(sealed(seal, Family.DRILL, (signer,)).line())


def find_fault_in_drill_seal(
    signed: Signed[DrillSeal], certificate: Signed[Certificate], log: KeyLog, *, port: Signatures
) -> Refusal | None:
    """Why the seal does not count for this agent; None where it does."""
    seal, by = signed.record, certificate.record
    if not seal.id == by.id == log.id:
        return Refusal(Reason.OTHER_ID, "it is about another agent")
    if seal.crt != certificate.digest or seal.position != by.position:
        return Refusal(Reason.WRONG_CERTIFICATE, "it names another certificate")
    entry = log.find(by.position)
    if entry is None:
        return Refusal(Reason.OLD_KEYS, f"it was signed at {by.position}, which the key log does not have")
    if not 0 < by.exp - by.iat <= LIFE_S_MAX or not by.iat - SKEW_S <= seal.at < by.exp + SKEW_S:
        return Refusal(Reason.EXPIRED, "the certificate was not valid when the report was sealed")
    return (
        find_not_signed_by(certificate, Family.CERT, entry, port)
        or find_bad_signature(signed, Family.DRILL, (by.inst,), port)
        or (None if signed.signatures else Refusal(Reason.TOO_FEW_SIGNATURES, "no key signed it"))
    )


def follows(seal: Signed[DrillSeal], before: Signed[DrillSeal] | None) -> bool:
    """Whether the seal is the one after `before`; the first follows nothing."""
    if before is None:
        return seal.record.prev is None
    one, other = seal.record, before.record
    return one.prev == before.digest and one.n == other.n + 1 and one.position >= other.position
