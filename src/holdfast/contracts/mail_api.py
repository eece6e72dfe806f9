"""Mail through an HTTP API with SendGrid's habits: Queryable where its activity can be searched.

The API knows no idempotency key. Every mail carries the effect key as a custom argument, which the
provider shows in two places: in the search of its activity, behind by minutes, and in the events
that its webhook sends (`MailEvents`). So after a doubt the step waits for the longer of the two:

* an event about the key is evidence, and closes the step at once, at whatever time it comes;
* after `index_lag_s` the search is asked: found is adopted, absent is sent again.

Where the search is not part of the account (`lookup=False`) the class is Unrepeatable: a doubt is
parked at once, and an event still closes it.

An accepted request is the effect: what becomes of the mail on its way is told by events.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from holdfast.contracts import reading
from holdfast.core import answers, values
from holdfast.core.effect import Queryable, Unrepeatable
from holdfast.errors import BadEvent, Misuse, Refused
from holdfast.runtime.http.message import Response
from holdfast.runtime.tool.tool import Call, FindAnswer, Found

MARK = "holdfast_key"  # the custom argument by which a mail is known again
_OF_ONE = re.compile(r"\.(?:filter|recv).*\Z", re.DOTALL)

URL = "https://api.sendgrid.com"
INDEX_LAG_S = 900.0  # no bound is published; minutes are seen
LIMITED_S = 60.0
RECIPIENTS_MAX = 1_000  # of one request, by the provider
FOUND_MAX = 1_000
# Events that prove an accepted request; what comes later (opened, clicked) says nothing new.
TOLD = frozenset(("processed", "deferred", "delivered", "bounce", "dropped"))

Fields = dict[str, Any]  # Any in this file: JSON of the caller and of the provider


class MailApi:
    """One sender at a provider of mail."""

    def __init__(
        self,
        key: str,
        *,
        sender: str,
        url: str = URL,
        lookup: bool = True,
        index_lag_s: float = INDEX_LAG_S,
        name: str = "mail",
        timeout_s: float = 30.0,
        needs_approval: bool = False,
    ) -> None:
        """Make the tool.

        Args:
            key: the handle of the API key, `secret://NAME`.
            sender: the address that mail is from.
            lookup: whether the account may search its activity.
            index_lag_s: how long after a request its mail may be missing in that search.
            name: the tool is called NAME_send.
        """
        effect = Queryable(max_delay_s=index_lag_s) if lookup else Unrepeatable()
        secrets = {"key": reading.secret_name(key, what="key")}
        given = {"key": key, "url": reading.base_url(url), "sender": _address(sender)}
        make = reading.Maker(name, given=given, secrets=secrets, http_only=True, timeout_s=timeout_s)
        self.send = make(send, "send", effect, find=find if lookup else None, needs_approval=needs_approval)
        self.tools = [self.send]


async def send(
    call: Call,
    *,
    to: list[str],
    subject: str,
    text: str,
    key: str,
    url: str,
    sender: str,
    html: str = "",
    reply_to: str = "",
) -> Fields:
    """Send one mail to these addresses, which see each other."""
    if not 1 <= len(to) <= RECIPIENTS_MAX:
        raise Misuse(f"to: give 1 to {RECIPIENTS_MAX} addresses, not {len(to)}")
    content = [{"type": "text/plain", "value": text}]
    if html:
        content.append({"type": "text/html", "value": html})
    fields: Fields = {
        "personalizations": [{"to": [{"email": _address(one)} for one in to]}],
        "from": {"email": sender},
        "subject": subject,
        "content": content,
        "custom_args": {MARK: call.effect_key, "holdfast_step": f"{call.task_id}/{call.ordinal}"},
        **({"reply_to": {"email": _address(reply_to)}} if reply_to else {}),
    }
    where = f"{url}/v3/mail/send"
    response = await call.http.post(where, json=fields, headers=_headers(key), check=False)
    reading.conclude(read_answer(response), response, where=f"POST {where}")
    return {"message_id": response.headers.get("x-message-id", ""), "status": "accepted"}


def read_answer(response: Response) -> answers.Meaning | Refused:
    """What an answer of this provider proves; a limit of rate as the refusal that says when."""
    status = response.status
    if 200 <= status <= 299:
        return answers.MeansDone()
    if status == 429:
        return reading.limited(response, default_s=reading.until_reset_s(response, default_s=LIMITED_S))
    if status in answers.REFUSALS:
        return answers.MeansRefused()
    return answers.MeansUnknown(reason=f"{status} does not say whether it was accepted")


async def find(call: Call, *, key: str, url: str, **args: Any) -> FindAnswer:
    """Search the activity: one message per recipient, all with our mark."""
    query = f"unique_args['{MARK}']=\"{call.effect_key}\""
    response = await call.http.get(
        f"{url}/v3/messages", params={"query": query, "limit": str(FOUND_MAX)}, headers=_headers(key)
    )
    messages = reading.json_objects(reading.json_object(response).get("messages"))
    requests = dict.fromkeys(message_id(str(one.get("msg_id", ""))) for one in messages)
    return reading.counted([Found({"message_id": name, "status": "accepted"}) for name in requests])


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "User-Agent": "holdfast"}


def _address(text: str) -> str:
    """A bare address. Raises Misuse: what is left to the provider's parser may go elsewhere."""
    name, at, host = text.partition("@")
    if not name or not at or not host or any(char <= " " or char in '<>,;"' for char in text):
        raise Misuse(f"{text!r} is not a bare address such as ada@example.org")
    return text


def message_id(text: str) -> str:
    """The request's id in the id of one message: `ID.filter...` or `ID.recvd-...`, then a server and a recipient."""
    return _OF_ONE.sub("", text)


# webhooks: signed events that become evidence of an accepted mail


class MailEvents:
    """The events of one webhook. Any event about a mail proves that its request was accepted, a bounce too. What became
    of the mail then is for your own code; these events only settle doubts."""

    def __init__(self, public_key: str) -> None:
        """`public_key`: the verification key that the provider shows, base64. It is no secret."""
        try:
            key = load_der_public_key(base64.b64decode(public_key, validate=True))
        except (binascii.Error, ValueError) as error:
            raise Misuse(f"public_key: not the base64 of a public key: {error}") from None
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise Misuse("public_key: not a key on the curve P-256")
        self._key = key

    async def take(self, hf: reading.TakesEvidence, *, body: bytes, signature: str, timestamp: str) -> int:
        """Check one batch of events and hand them on: how many effects of this journal it told of.
        Raises BadEvent where it is not the provider's."""
        self.check(body, signature=signature, timestamp=timestamp)
        told = [
            await reading.tell(hf, effect_key=key, result=result, source="mail webhook")
            for key, result in read_events(body).items()
        ]
        return sum(told)

    def check(self, body: bytes, *, signature: str, timestamp: str) -> None:
        """Raises BadEvent unless the signature is for this time and body. As the provider publishes it: ECDSA on the
        curve P-256 with SHA-256, over the text of the timestamp header followed by the raw body; base64 of DER."""
        try:
            raw = base64.b64decode(signature, validate=True)
            self._key.verify(raw, timestamp.encode() + body, ec.ECDSA(hashes.SHA256()))
        except (binascii.Error, ValueError, InvalidSignature) as error:
            raise BadEvent("the message is not signed with the key of this webhook") from error


def read_events(body: bytes) -> dict[str, dict[str, Any]]:  # Any: JSON
    """Effect keys that this batch proves, each with what the tool would have returned."""
    try:
        events = reading.json_objects(values.decode(body))
    except (ValueError, RecursionError) as error:
        raise BadEvent("the message is not a JSON list of events") from error
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        key = event.get(MARK)
        if isinstance(key, str) and event.get("event") in TOLD:
            name = message_id(str(event.get("sg_message_id", "")))
            found.setdefault(key, {"message_id": name, "status": "accepted"})
    return found
