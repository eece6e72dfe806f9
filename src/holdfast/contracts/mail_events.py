"""Webhooks of a provider of mail: signed events that become evidence of an accepted mail.

The signature, as the provider publishes it: ECDSA on the curve P-256 with SHA-256, over the text of
the timestamp header followed by the raw body; the signature is base64 of DER, the public key base64
of a SubjectPublicKeyInfo. Custom arguments are fields of each event.

Any event about a mail proves that its request was accepted, a bounce too. What became of the mail
then is for your own code; these events only settle doubts.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from holdfast.contracts.mail_api import MARK, message_id
from holdfast.contracts.reading import TakesEvidence, json_objects, tell
from holdfast.core import values
from holdfast.errors import BadEvent, Misuse

# What comes of the mail later (opened, clicked) says nothing new.
TOLD = frozenset(("processed", "deferred", "delivered", "bounce", "dropped"))


class MailEvents:
    """The events of one webhook."""

    def __init__(self, public_key: str) -> None:
        """`public_key`: the verification key that the provider shows, base64. It is no secret."""
        try:
            key = load_der_public_key(base64.b64decode(public_key, validate=True))
        except (binascii.Error, ValueError) as error:
            raise Misuse(f"public_key: not the base64 of a public key: {error}") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise Misuse("public_key: not a key on the curve P-256")
        self._key = key

    async def take(self, hf: TakesEvidence, *, body: bytes, signature: str, timestamp: str) -> int:
        """Check one batch of events and hand them on: how many effects of this journal it told of.

        Raises BadEvent where it is not the provider's.
        """
        self.check(body, signature=signature, timestamp=timestamp)
        told = [
            await tell(hf, effect_key=key, result=result, source="mail webhook")
            for key, result in read_events(body).items()
        ]
        return sum(told)

    def check(self, body: bytes, *, signature: str, timestamp: str) -> None:
        """Raises BadEvent unless the signature is for this time and body."""
        try:
            raw = base64.b64decode(signature, validate=True)
            self._key.verify(raw, timestamp.encode() + body, ec.ECDSA(hashes.SHA256()))
        except (binascii.Error, ValueError, InvalidSignature) as error:
            raise BadEvent("it is not signed with the key of this webhook") from error


def read_events(body: bytes) -> dict[str, dict[str, Any]]:  # Any: JSON
    """Effect keys that this batch proves, each with what the tool would have returned."""
    try:
        events = json_objects(values.decode(body))
    except (ValueError, RecursionError) as error:
        raise BadEvent("it is no batch of events") from error
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        key = event.get(MARK)
        if isinstance(key, str) and event.get("event") in TOLD:
            name = message_id(str(event.get("sg_message_id", "")))
            found.setdefault(key, {"message_id": name, "status": "accepted"})
    return found
