"""Borders of shared memory: envelopes of other instances, what is sealed in them, and the document beside a file."""

from __future__ import annotations

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl.signing import SigningKey

from holdfast.identity.records.signed import Family, message
from holdfast.instances.envelope import (
    NONCE_BYTES,
    VERSION,
    Parcel,
    Part,
    Peers,
    _bound,
    _Outer,
    _Wire,
    is_shared_name,
    open_parcel,
    seal_parcel,
)
from holdfast.instances.line_document import NOTHING, Author, LineDocument
from holdfast.instances.sent_texts import parse_sent
from holdfast.instances.shared import SharedDocument, Update
from holdfast.instances.try_copy import check_foreign
from holdfast_proofs.fuzz.feed import as_text, law

_KEY = bytes(range(32))
_SIGNING = SigningKey(bytes(range(32)))
_PEERS = Peers(
    agent="hf1agent",
    incarnation=1,
    me="birch",
    keys={"birch": bytes(_SIGNING.verify_key)},
    sign=lambda text: _SIGNING.sign(text).signature,
)
_LINES = ["# Memory", "", "- a line", "- another line"]
_DOCUMENT = LineDocument.from_lines(_LINES)
_AUTHOR = Author(instance="alder", at_ms=1)


def envelope(raw: bytes) -> None:
    """Bytes that any file of the shared folder may have, or the list in a shared journal."""
    if raw.startswith(b"{"):
        parse_sent(as_text(raw))
        return
    for one in open_parcel(raw, _PEERS, _KEY, sender="birch").updates:
        law(is_shared_name(one.file), "only memory files are named")


def parcel(raw: bytes) -> None:
    """What an enrolled instance seals and signs: it may be of another version, or mad."""
    nonce = bytes(NONCE_BYTES)
    sealed = nonce + ChaCha20Poly1305(_KEY).encrypt(nonce, raw, _bound(_PEERS.agent, 1, "birch"))
    outer = msgspec.msgpack.encode(_Outer(VERSION, _PEERS.agent, 1, "birch", sealed))
    signed = msgspec.msgpack.encode(_Wire(outer, _PEERS.sign(message(Family.UPDATE, outer))))
    shared = SharedDocument(instance="alder", file="MEMORY.md", document=LineDocument(_DOCUMENT.copy()))
    for one in open_parcel(signed, _PEERS, _KEY, sender="birch").updates[:4]:
        try:
            if one.data:
                check_foreign(one.data)
            shared.receive(one, _AUTHOR)
        finally:
            law(all("\n" not in line for line in shared.lines()), "an element is one line")
            law(bool(one.data) or set(_LINES) <= set(shared.lines()), "without changes no line goes")


def document(raw: bytes) -> None:
    """NAME.doc, as it is found beside a memory file."""
    SharedDocument.load(raw, instance="alder", file="MEMORY.md").begin(_LINES, 1, {}, _AUTHOR, file=_LINES)


def _stored() -> bytes:
    shared = SharedDocument(instance="alder", file="MEMORY.md", document=LineDocument(_DOCUMENT.copy()))
    shared.finish(_LINES, 1, _AUTHOR)
    return shared.stored()


def _changed() -> Update:
    other = LineDocument(_DOCUMENT.copy())
    other.change_to([*_LINES, "- of birch"], Author(instance="birch", at_ms=2))
    data = other.changes_since(_DOCUMENT.version())
    return Update(instance="birch", file="MEMORY.md", version=other.version(), data=data)


_WHOLE = Update(instance="birch", file="2026-11-17.md", version=_DOCUMENT.version(), data=_DOCUMENT.whole(), whole=True)
_PARCELS = (
    Parcel(at_ms=1, updates=(_changed(),)),
    Parcel(at_ms=1, updates=(_WHOLE,), parts=(Part(bytes(32), 10),), roster=(b"{}",)),
    Parcel(at_ms=1, updates=(Update(instance="birch", file="HEARTBEAT.md", version=NOTHING, wants_whole=True),)),
)
PARCELS = tuple(msgspec.msgpack.encode(one) for one in _PARCELS)
ENVELOPES = (*(seal_parcel(one, _PEERS, _KEY) for one in _PARCELS), b'{"birch":{"newest":"00","parts":["aa"]}}')
DOCUMENTS = (_stored(),)
WORDS = (b"loro", b"MEMORY.md", b"../", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"birch", b"\x93", b"\x94")
