"""Webhooks of a provider of payments: signed events that become evidence of an effect.

The signature, as the provider publishes it: the header holds `t=SECONDS` and one or more
`v1=HEX`; each v1 is HMAC-SHA-256 of `SECONDS.BODY` under the endpoint's secret. Any one that fits
will do (two are sent while a secret is rolled). Old signatures are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any

from holdfast.contracts.payments import MARK
from holdfast.contracts.reading import TakesEvidence, as_object, picked, secret_name, tell
from holdfast.core import values
from holdfast.errors import BadEvent

TOLERANCE_S = 300.0
# Events by which the money is moved, or will be with nobody doing anything more.
DONE = frozenset(("payment_intent.succeeded", "payment_intent.processing", "refund.created"))
_KEPT = (
    "id",
    "object",
    "status",
    "amount",
    "amount_received",
    "currency",
    "customer",
    "latest_charge",
    "payment_intent",
    "charge",
    "created",
    "livemode",
)


class PaymentEvents:
    """The events of one webhook endpoint."""

    def __init__(self, secret: str, *, tolerance_s: float = TOLERANCE_S) -> None:
        """`secret`: the handle of the endpoint's signing secret, `secret://NAME`."""
        self._name = secret_name(secret, what="secret")
        self._tolerance_s = tolerance_s

    async def take(self, hf: TakesEvidence, *, body: bytes, signature: str) -> bool:
        """Check one event and hand it on. True where it was about an effect of this journal.

        Raises BadEvent where it is not the provider's, SecretNotFound where none is set.
        """
        check_signature(
            body, signature, secret=hf.secrets.get_value(self._name), now=time.time(), tolerance_s=self._tolerance_s
        )
        effect_key, result = read_event(body)
        if not effect_key:
            return False
        return await tell(hf, effect_key=effect_key, result=result, source="payment webhook")


def check_signature(body: bytes, signature: str, *, secret: str, now: float, tolerance_s: float = TOLERANCE_S) -> None:
    """Raises BadEvent unless the header signs this body, lately, with this secret."""
    parts = [part.strip().partition("=") for part in signature.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal()):
        raise BadEvent("its signature header has no time")
    made = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    found = [value for name, _, value in parts if name == "v1"]
    if not any(hmac.compare_digest(made.encode(), one.encode(errors="replace")) for one in found):
        raise BadEvent("it is not signed with the secret of this endpoint")
    if abs(now - int(times[0])) > tolerance_s:
        raise BadEvent("its signature is too old, or of another clock")


def read_event(body: bytes) -> tuple[str, dict[str, Any]]:  # Any: the provider's JSON
    """The effect key it proves, or nothing; and what the tool would have returned."""
    try:
        event: Any = values.decode(body)
        kind, about = event["type"], as_object(event["data"]["object"])
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise BadEvent("it is no event of this provider") from error
    mark = as_object(about.get("metadata")).get(MARK)
    if not isinstance(kind, str) or kind not in DONE or not isinstance(mark, str):
        return "", {}
    return mark, picked(about, *_KEPT)
