"""A provider of mail with SendGrid's habits: no keys, a search that lags, signed events.

The same request twice is two mails. `202` means accepted; one message is made per recipient.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.testing.far_ends.web import Answer, Ask, Trouble, WebFarEnd

Object = dict[str, Any]  # Any: JSON as the provider writes it


class MailProvider(WebFarEnd):
    def __init__(self, *, key: str, index_lag_s: float = 0.0) -> None:
        super().__init__()
        self._key = key
        self._index_lag_s = index_lag_s
        self._signing = ec.generate_private_key(ec.SECP256R1())
        self.mails: list[Object] = []  # one per accepted request

    @property
    def public_key(self) -> str:
        raw = self._signing.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(raw).decode()

    def enter(self, ask: Ask) -> Answer | None:
        if ask.headers.get("authorization") != f"Bearer {self._key}":
            return _error(401, "authorization required")
        if ask.path == "/v3/messages":
            return self._search(ask.query["query"])
        return None if ask.path == "/v3/mail/send" else _error(404, "not found")

    def work(self, ask: Ask, trouble: Trouble | None) -> Answer:
        mail = ask.json()
        if not mail.get("subject") or not mail["personalizations"][0].get("to"):
            return _error(400, "Bad Request")
        name = f"F4I9-T0lQrCOT-{len(self.mails) + 1:08}"
        self.mails.append({**mail, "id": name, "at": time.time()})
        return Answer(202, None, {"x-message-id": name})

    def _search(self, query: str) -> Answer:
        name, key = query.split("'")[1], query.split('"')[1]
        found = [
            {"msg_id": f"{mail['id']}.recvd-5c5b57d4f4-{n}-678AC6E5-2.0", "to_email": to["email"]}
            for mail in self.mails
            if mail["custom_args"].get(name) == key and mail["at"] + self._index_lag_s <= time.time()
            for n, to in enumerate(mail["personalizations"][0]["to"])
        ]
        return Answer(200, {"messages": found})

    def events(self, *kinds: str) -> tuple[bytes, str, str]:
        """A batch of events about every mail: body, signature, timestamp."""
        batch = [
            {
                "event": kind,
                "email": to["email"],
                "timestamp": int(mail["at"]),
                "sg_message_id": f"{mail['id']}.recvd-5c5b57d4f4-{n}-678AC6E5-2.0",
                **mail["custom_args"],
            }
            for mail in self.mails
            for n, to in enumerate(mail["personalizations"][0]["to"])
            for kind in kinds
        ]
        body = json.dumps(batch).encode() + b"\r\n"
        at = str(int(time.time()))
        signed = self._signing.sign(at.encode() + body, ec.ECDSA(hashes.SHA256()))
        return body, base64.b64encode(signed).decode(), at


def _error(status: int, text: str) -> Answer:
    return Answer(status, {"errors": [{"message": text, "field": None, "help": None}]})
