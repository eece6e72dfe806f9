"""A signed line: `{"b": body, "sig": [[key, signature], ...]}`, and what its signatures mean.

A signature is over `holdfast/1/`, the family of the record, a zero byte and the canonical body:
a signature made for one family says nothing in another, and the body names id and position, so
it says nothing about another agent or another place in the log either.

Strict on purpose: every signature of a line must be by a key that the record calls for, and must
verify. A line with one bad signature among good ones is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar, cast

from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import LINE_BYTES_MAX, RECORD_BYTES_MAX, Json, encode, parse
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import Digest, PublicKey, digest_of, key_bytes, signature_bytes, signature_text
from holdfast.identity.records.fields import LIST_MAX, VERSION, Body, Fields, read_fields

SIGNATURES_MAX = 2 * LIST_MAX  # a rotation is signed by the keys it spends and those it installs


class Family(StrEnum):
    KEL = "kel"
    CERT = "cert"
    PROF = "prof"
    LEASE = "lease"
    ENV = "env"
    RCPT = "rcpt"
    HEAD = "head"
    ANSWER = "ans"
    DRILL = "drill"
    RELAY = "relay"
    LOGIN = "login"
    UPDATE = "upd"  # of shared memory
    ROSTER = "roster"


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
    ONE_OPERATOR = "one-operator"
    NOBODY_ANSWERED = "nobody-answered"
    HANDLE_TAKEN = "handle-taken"
    NOT_ADMITTED = "not-admitted"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    message: str


Signature = tuple[PublicKey, bytes]
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed(Generic[R_co]):
    """A record, the bytes it was read from, and its signatures, which no one has checked yet."""

    record: R_co
    body: bytes
    digest: Digest
    signatures: tuple[Signature, ...]

    def line(self) -> bytes:
        """The line as it is stored and sent, without an end of line."""
        pairs = encode([[key, signature_text(raw)] for key, raw in self.signatures], bytes_max=LINE_BYTES_MAX)
        return b'{"b":' + self.body + b',"sig":' + pairs + b"}"


def open_line(raw: bytes) -> tuple[Fields, bytes, tuple[Signature, ...]]:
    """Fields of the body (its version checked), its bytes, the signatures; BadRecord otherwise."""
    line = Fields(parse(raw, what="line", bytes_max=LINE_BYTES_MAX), "line")
    value = line.any("b")
    pairs = line.members("sig", most=SIGNATURES_MAX)
    line.end()
    signatures = tuple(_signature(line, pair) for pair in pairs)
    if len({key for key, _ in signatures}) != len(signatures):
        raise BadRecord("line: sig: one key signed twice")
    fields = Fields(value, "record")
    if fields.whole("v") != VERSION:
        raise BadRecord(f"record: its version is not {VERSION}")
    return fields, _body(raw), signatures


def read_line(raw: bytes, cls: type[B], what: str) -> Signed[B]:
    """The record of this class in a line; BadRecord where it is none, or has a field too many."""
    fields, body, signatures = open_line(raw)
    if kind_of(fields) != cls.KIND:
        raise BadRecord(f"record: not {what}")
    return as_read(fields, body, signatures, cls)


def as_read(fields: Fields, body: bytes, signatures: tuple[Signature, ...], cls: type[R]) -> Signed[R]:
    """The record that takes all of the fields."""
    record = read_fields(cls, fields)
    fields.end()
    return Signed(record=record, body=body, digest=digest_of(body), signatures=signatures)


def _body(raw: bytes) -> bytes:
    """The body's own bytes in a line that was found canonical: `b` comes first, `sig` last. What follows the last
    `,"sig":[` are keys and signatures, in which there is no quotation mark."""
    body = raw[len(b'{"b":') : raw.rindex(b',"sig":[')]
    if len(body) > RECORD_BYTES_MAX:
        raise BadRecord(f"record: it has {len(body):,} bytes; at most {RECORD_BYTES_MAX:,} are allowed")
    return body


def kind_of(fields: Fields) -> str:
    kind = fields.text("t", chars_max=8)
    fields.what = kind
    return kind


def sealed(record: B, family: Family, signers: Sequence[Signer]) -> Signed[B]:
    """The record signed by these keys, in this order."""
    return sealed_json(record, record.to_json(), family, signers)


def sealed_json(record: R, body: Json, family: Family, signers: Sequence[Signer]) -> Signed[R]:
    raw = encode(body)
    signed = message(family, raw)
    signatures = tuple((signer.public, signer.sign(signed)) for signer in signers)
    return Signed(record=record, body=raw, digest=digest_of(raw), signatures=signatures)


def message(family: Family, body: bytes) -> bytes:
    """The bytes that a signature of this family is over."""
    return b"holdfast/1/" + family.value.encode() + b"\0" + body


def find_bad_signature(
    signed: Signed[object], family: Family, allowed: Collection[PublicKey], port: Signatures
) -> Refusal | None:
    """What is wrong with the signatures; None where each is by an allowed key and verifies."""
    text = message(family, signed.body)
    for key, raw in signed.signatures:
        if key not in allowed:
            return Refusal(Reason.BAD_SIGNATURE, f"the key {key} signed it, but may not sign it")
        if not port.verifies(key_bytes(key), text, raw):
            return Refusal(Reason.BAD_SIGNATURE, f"the signature of {key} does not verify")
    return None


def count_of(signed: Signed[object], keys: Collection[PublicKey]) -> int:
    """How many of these keys signed."""
    return sum(key in keys for key, _ in signed.signatures)


def _signature(line: Fields, pair: Json) -> Signature:
    if type(pair) is not list or len(cast("list[Json]", pair)) != 2:
        raise line.bad("sig", "it must be a list of pairs of a key and a signature")
    entry = Fields(dict(zip(("key", "signature"), cast("list[Json]", pair), strict=True)), "sig")
    return entry.key("key"), signature_bytes(entry.text("signature"))
