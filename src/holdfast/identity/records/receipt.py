"""A witness's receipt: this is the first valid record that I saw at this position.

A receipt is bound to id, position and digest by its body, and to receipts as a family by its
signature. An honest witness signs at most one for a position, ever; two of them with different
digests are the proof that it lied.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.identity.records.canonical import Json
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.fields import Fields
from holdfast.identity.records.records import GENERATION_MAX, Position
from holdfast.identity.records.signed import VERSION, Family, Signed, find_bad_signature, read_line, sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    id: AgentId
    g: int
    s: int
    d: Digest
    wit: PublicKey
    at: int  # unix seconds on the witness's clock; nothing is decided by it

    @property
    def position(self) -> Position:
        return Position(self.g, self.s)

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
