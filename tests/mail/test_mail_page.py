"""The vectors of docs/formats/mail.md are what the code reads and makes."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from holdfast.core.ids import EffectKey, effect_key_from_bytes
from holdfast.core.mail import MailKind
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import AgentId, digest_of
from holdfast.identity.records.signed import Family, find_bad_signature, read_line
from holdfast.relay.protocol.envelope import (
    body_digest,
    encoded_inner,
    first_head,
    letter_of,
    mail_key,
    next_head,
    open_envelope,
    parse_envelope,
)
from holdfast.relay.protocol.note import Note

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "mail.md"


def test_the_vectors_of_the_page() -> None:
    found = json.loads(PAGE.read_text().partition("```json\n")[2].partition("```")[0])
    private = hashlib.sha256(b"mail key").digest()
    assert found["mail_key_private"] == private.hex()
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    assert (found["mail_key_public"], found["ekid"]) == (public.hex(), digest_of(public)[:16])
    envelope = parse_envelope(base64.b64decode(found["envelope"]))
    sender, to, key = AgentId(found["sender"]), AgentId(found["recipient"]), EffectKey(found["key"])
    assert (envelope.sender, envelope.to, envelope.id.hex()) == (sender, to, found["id"])
    assert envelope.outer.crt.decode() == found["certificate"]
    assert envelope.is_signed(Sodium())
    assert envelope.outer.mk == mail_key(sender, to, key) == bytes.fromhex(found["mk"])
    inner = open_envelope(envelope, X25519PrivateKey.from_private_bytes(private))
    assert envelope.outer.bd == body_digest(inner, MailKind.MESSAGE) == bytes.fromhex(found["bd"])
    assert encoded_inner(inner).hex() == found["inner"]
    assert effect_key_from_bytes(inner.key) == key
    assert letter_of(sender, inner).body == {"hello": "bob"}
    heads = [first_head(to)]
    for seq, id_ in enumerate(found["ids"], 1):
        heads.append(next_head(heads[-1], seq, bytes.fromhex(id_)))
    assert [one.hex() for one in heads] == found["heads"]
    note = read_line(found["note"].encode(), Note, "a delivery note")
    assert (note.record.id, note.record.to, note.record.keys) == (to, sender, (key,))
    assert find_bad_signature(note, Family.ENV, [one for one, _ in note.signatures], Sodium()) is None
