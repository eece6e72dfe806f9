"""A delivery note: the recipient's signed word that it has committed messages. It can be shown to others.

    {"b":{"at":unix,"g","id","keys":[...],"s","t":"dnt","to":id,"v":1},"sig":[[K,"..."]]}

`id` committed messages that `to` had sent under these keys. The instance key of the recipient's certificate signs it;
the certificate is the line after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.ids import EffectKey
from holdfast.core.mail import DeliveryNote
from holdfast.errors import BadRecord
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.fields import Fields, of, record, texts, whole
from holdfast.identity.records.records import AtPosition
from holdfast.identity.records.signed import Family, Signed, find_bad_signature, read_line, sealed
from holdfast.identity.statements.certificate import Certificate

NOTE_KEYS_MAX = 64
_KEY_FORM = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


@record
class Note(AtPosition):
    KIND = "dnt"
    to: AgentId = of(Fields.id)
    keys: tuple[str, ...] = of(texts(_KEY_FORM, most=NOTE_KEYS_MAX))
    at: int = of(whole())


def sealed_note(
    certificate: Signed[Certificate], signer: Signer, *, to: AgentId, keys: Sequence[EffectKey], at: int
) -> bytes:
    crt = certificate.record
    note = Note(id=crt.id, g=crt.g, s=crt.s, to=to, keys=tuple(keys), at=at)
    return sealed(note, Family.ENV, (signer,)).line()


def read_note(line: bytes, certificate: Signed[Certificate], *, to: AgentId, port: Signatures) -> DeliveryNote:
    """Raises BadRecord. The certificate was judged before."""
    signed = read_line(line, Note, "a delivery note")
    note, crt = signed.record, certificate.record
    if (note.id, note.to) != (crt.id, to) or not signed.signatures:
        raise BadRecord("the delivery note is of another agent, or for another one")
    fault = find_bad_signature(signed, Family.ENV, (crt.inst,), port)
    if fault is not None:
        raise BadRecord(fault.message)
    proof = (line + b"\n" + certificate.line()).decode()
    return DeliveryNote(sender=note.id, keys=tuple(map(EffectKey, note.keys)), proof=proof)
