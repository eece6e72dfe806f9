"""An envelope: what a relay must see of a message outside, all else sealed for the recipient, and one signature.

    envelope   MessagePack array: outer (bytes), signature (bytes)
    outer      MessagePack array: version, kind, to, mk, bd, ttl, crt, ekid, ct
    signature  of the sender's instance key, over "holdfast/1/env" NUL outer
    id         SHA-256 of outer
    mk         SHA-256 of "holdfast/1/mail-key" NUL sender NUL recipient NUL effect key: the same for every repeat
    bd         HMAC-SHA256 of thread and body, under a key from the effect key: the same for every repeat of the same
               words. A relay does not know the effect key, and learns only whether two messages with one mk are equal
    ct         HPKE (X25519, HKDF-SHA256, ChaCha20-Poly1305; base mode) of the padded inner part, for the key `ekid` of
               the recipient's profile, with info "holdfast/1/mail" NUL sender NUL recipient NUL kind NUL mk
    inner      MessagePack array, after its length in 4 bytes, filled with zeros up to 1, 4, 16 or 64 KiB of ct

Who sent it is said by the certificate in `crt`, which the sender's operational keys signed. Because info names sender,
recipient and mk, a ciphertext opens only in the envelope that it was made for: an agent that copies it into an envelope
of its own, or sends it on to another agent, sends something that cannot be opened. So one signature, outside,
is enough.

Everything is stored and forwarded as it came, never encoded again.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from holdfast.core.clock import LAST_MS
from holdfast.core.decoding import decode_json, msgpack_decoder
from holdfast.core.ids import EffectKey, effect_key_bytes, effect_key_from_bytes
from holdfast.core.mail import AFTER_MAX, ECHO_CHARS_MAX, THREAD_CHARS_MAX, TTL_S_MAX, TTL_S_MIN, Letter, MailKind
from holdfast.core.values import Json
from holdfast.errors import BadInput, BadRecord, TooLarge
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import KEY_BYTES, SIGNATURE_BYTES, AgentId, key_bytes, parse_agent_id
from holdfast.identity.records.signed import Family, Signed, message
from holdfast.identity.statements.certificate import Certificate, parse_certificate
from holdfast.identity.statements.statements import EncryptionKey

VERSION = 1
HASH_BYTES = 32
CT_BYTES = (1_024, 4_096, 16_384, 65_536)
ENVELOPE_BYTES_MAX = CT_BYTES[-1] + 4_096  # with the outer part
_OVERHEAD = KEY_BYTES + 16  # the encapsulated key and the tag
_LENGTH = 4
HINTS_MAX = 4
SEEN_MAX = 4
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)

Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]


Key = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Outer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    v: int
    kind: MailKind
    to: Annotated[str, msgspec.Meta(max_length=128)]
    mk: Hash
    bd: Hash
    ttl: Annotated[int, msgspec.Meta(ge=TTL_S_MIN, le=TTL_S_MAX)]
    crt: Annotated[bytes, msgspec.Meta(max_length=LINE_BYTES_MAX)]
    ekid: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    ct: Annotated[bytes, msgspec.Meta(min_length=CT_BYTES[0], max_length=CT_BYTES[-1])]


class Inner(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    key: Key
    body: bytes  # JSON; of a note: the signed line
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=LAST_MS)] = 0
    thread: Annotated[str, msgspec.Meta(max_length=THREAD_CHARS_MAX)] = ""
    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    handles: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)] = ()
    hints: Annotated[tuple[str, ...], msgspec.Meta(max_length=HINTS_MAX)] = ()  # addresses of the sender's relays
    seen: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=SEEN_MAX)] = ()  # `stored` answers about mail to you
    after: Annotated[tuple[Key, ...], msgspec.Meta(max_length=AFTER_MAX)] = ()  # messages to be handled before this one
    echo: Annotated[str, msgspec.Meta(max_length=ECHO_CHARS_MAX)] = ""  # left out where the recipient asks for none


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    outer: bytes
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """An envelope that was read; nothing of it is checked yet but its form."""

    raw: bytes
    id: bytes
    outer: Outer
    outer_raw: bytes
    signature: bytes
    certificate: Signed[Certificate]

    @property
    def sender(self) -> AgentId:
        return self.certificate.record.id

    @property
    def to(self) -> AgentId:
        return AgentId(self.outer.to)

    def is_signed(self, port: Signatures) -> bool:
        """Whether the instance key of its certificate signed it."""
        text = message(Family.ENV, self.outer_raw)
        return port.verifies(key_bytes(self.certificate.record.inst), text, self.signature)


def mail_key(sender: str, to: str, key: EffectKey) -> bytes:
    parts = (b"holdfast/1/mail-key", sender.encode(), to.encode(), effect_key_bytes(key))
    return hashlib.sha256(b"\0".join(parts)).digest()


def body_digest(inner: Inner, kind: MailKind) -> bytes:
    """Zeros for a note: its words are new each time."""
    if kind is MailKind.NOTE:
        return bytes(HASH_BYTES)
    key = hashlib.sha256(b"holdfast/1/mail-body\0" + inner.key).digest()
    return hmac.digest(key, inner.thread.encode() + b"\0" + inner.body, "sha256")


def encoded_inner(inner: Inner) -> bytes:
    """Without `echo` where it is empty: recipients of before refuse a message with a tenth part."""
    return _ENCODER.encode(inner if inner.echo else msgspec.structs.astuple(inner)[:-1])


def parse_envelope(raw: bytes) -> Envelope:
    """Raises BadRecord."""
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise BadRecord(f"an envelope has at most {ENVELOPE_BYTES_MAX:,} bytes")
    try:
        wire = _WIRE.decode(raw)
        outer = _OUTER.decode(wire.outer)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRecord(f"it is no envelope: {error}") from None
    if outer.v != VERSION or parse_agent_id(outer.to) != outer.to:
        raise BadRecord("the envelope has another version, or its recipient is not the id of an agent")
    return Envelope(
        raw=raw,
        id=hashlib.sha256(wire.outer).digest(),
        outer=outer,
        outer_raw=wire.outer,
        signature=wire.signature,
        certificate=_certificate(outer.crt),
    )


def seal_envelope(
    inner: Inner,
    *,
    kind: MailKind,
    to: AgentId,
    ttl_s: int,
    key: EncryptionKey,
    crt: Signed[Certificate],
    signer: Signer,
) -> bytes:
    """The whole envelope. Raises TooLarge, BadInput for a key that is none."""
    sender = crt.record.id
    mk = mail_key(sender, to, effect_key_from_bytes(inner.key))
    plain = encoded_inner(inner)
    size = next((one for one in CT_BYTES if len(plain) + _LENGTH + _OVERHEAD <= one), 0)
    if not size:
        raise TooLarge(f"the message has {len(plain):,} bytes; at most {CT_BYTES[-1] - _OVERHEAD - _LENGTH:,} fit")
    padded = (len(plain).to_bytes(_LENGTH, "big") + plain).ljust(size - _OVERHEAD, b"\0")
    try:
        public = X25519PublicKey.from_public_bytes(bytes.fromhex(key.key))
        ct = _SUITE.encrypt(padded, public, info=_info(sender, to, kind, mk))
    except ValueError:
        raise BadInput(f"the mail key {key.kid} of {to} is none") from None
    outer = _ENCODER.encode(Outer(VERSION, kind, to, mk, body_digest(inner, kind), ttl_s, crt.line(), key.kid, ct))
    return _ENCODER.encode(_Wire(outer, signer.sign(message(Family.ENV, outer))))


def open_envelope(envelope: Envelope, private: X25519PrivateKey) -> Inner:
    """The inner part. Raises BadRecord where it does not open, or was made for another envelope."""
    outer = envelope.outer
    info = _info(envelope.sender, outer.to, outer.kind, outer.mk)
    try:
        padded = _SUITE.decrypt(outer.ct, private, info=info)
    except (InvalidTag, ValueError):
        raise BadRecord("the message cannot be opened: it was changed, or made for another envelope") from None
    size = int.from_bytes(padded[:_LENGTH], "big")
    try:
        inner = _INNER.decode(padded[_LENGTH : _LENGTH + size])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRecord(f"the message cannot be read: {error}") from None
    if mail_key(envelope.sender, outer.to, effect_key_from_bytes(inner.key)) != outer.mk:
        raise BadRecord("the message's key is not the one that the envelope names")
    return inner


def letter_of(sender: str, inner: Inner) -> Letter:
    """Raises BadRecord."""
    try:
        body: Json = decode_json(inner.body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRecord(f"the body of the message is not JSON: {error}") from None
    return Letter(
        sender=sender,
        key=effect_key_from_bytes(inner.key),
        thread=inner.thread,
        body=body,
        at_ms=inner.at_ms,
        number=inner.number,
        handles=inner.handles,
        after=tuple(map(effect_key_from_bytes, inner.after)),
    )


# the chain of a mailbox


def first_head(to: str) -> bytes:
    return hashlib.sha256(b"holdfast/1/mailbox\0" + to.encode()).digest()


def next_head(head: bytes, seq: int, id: bytes) -> bytes:
    """The head after the envelope `id` got the number `seq`."""
    return hashlib.sha256(b"holdfast/1/chain\0" + head + seq.to_bytes(8, "big") + id).digest()


def _info(sender: str, to: str, kind: MailKind, mk: bytes) -> bytes:
    return b"\0".join((b"holdfast/1/mail", sender.encode(), to.encode(), kind.value.encode(), mk))


@lru_cache(maxsize=4_096)  # one for each instance and quarter of an hour
def _certificate(raw: bytes) -> Signed[Certificate]:
    return parse_certificate(raw)


_ENCODER = msgspec.msgpack.Encoder()
_WIRE = msgpack_decoder(_Wire)
_OUTER = msgpack_decoder(Outer)
_INNER = msgpack_decoder(Inner)
