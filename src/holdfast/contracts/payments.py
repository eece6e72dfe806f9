"""Payments by an API of Stripe's habits (version 1 of it): Keyed, with a lookup.

The habits that the contract rests on, as the provider documents them:

* One effect per `Idempotency-Key`, for 24 hours at least. The first answer of a request that began
  to be executed is stored under the key, success, refusal and 500 alike, and repeated.
* Nothing is stored, because nothing was begun, where the parameters do not validate (400), the
  same key is under way (409), or the rate is limited (429).
* Another body under a known key is an error of type `idempotency_error`, with status 400: here it
  is distinguished from a refusal by that type, not by the status.

Every object made here carries the effect key in its metadata. That is what the lookup goes by:
when the key's window is over, or all attempts met a stored 500. Within a day it reads the list,
newest first, which the provider keeps up to date; later it uses the search, whose index lags.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from holdfast.contracts import reading
from holdfast.core import answers, values
from holdfast.core.effect import Keyed, Read
from holdfast.errors import BadEvent, Misuse
from holdfast.runtime.http.message import Response
from holdfast.runtime.tool.tool import Call, FindAnswer, Found, Unsure

URL = "https://api.stripe.com"
WINDOW_S = 86_400.0  # "at least 24 hours"
SEARCH_AFTER_S = 86_400.0  # the search's index lags by minutes; a day is far beyond that
LIMITED_S = 2.0  # a 429 without Retry-After
PAGE = 100
PAGES_MAX = 50

MARK = "holdfast_key"
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
# Events by which the money is moved, or will be without anyone doing anything more.
DONE = frozenset(("payment_intent.succeeded", "payment_intent.processing", "refund.created"))
TOLERANCE_S = 300.0  # how old the signature of an event may be
_REFUSED = ("requires_payment_method", "canceled", "failed")

Fields = dict[str, Any]  # Any in this file: JSON of the caller and of the far end


class Payments:
    """One account at a provider of payments."""

    def __init__(
        self,
        key: str,
        *,
        url: str = URL,
        version: str = "",
        name: str = "payment",
        window_s: float = WINDOW_S,
        timeout_s: float = 60.0,
        needs_approval: bool = False,
    ) -> None:
        """Make the tools.

        Args:
            key: the handle of the account's secret key, `secret://NAME`.
            version: the API version to ask for; the account's own where it is not given.
            name: the tools are called NAME_charge, NAME_refund and NAME_get.
            window_s: how long the provider keeps a key, at least.
            needs_approval: a person must grant each charge and refund.
        """
        effect = Keyed(window_s=window_s, fingerprint="checked", refusals_stored=True)
        secrets = {"key": reading.secret_name(key, what="key")}
        given = {"key": key, "url": reading.base_url(url), "version": version}
        make = reading.Maker(name, secrets=secrets, given=given, http_only=True)
        asks = {"timeout_s": timeout_s, "needs_approval": needs_approval}
        self.charge = make(charge, "charge", effect, find=find_charge, **asks)
        self.refund = make(refund, "refund", effect, find=find_refund, **asks)
        self.get = make(get, "get", Read())
        self.tools = [self.charge, self.refund, self.get]


async def charge(
    call: Call,
    *,
    amount: int,
    currency: str,
    payment_method: str,
    key: str,
    url: str,
    version: str,
    customer: str = "",
    description: str = "",
    fields: Fields | None = None,
) -> Fields:
    """Make a payment and confirm it. `amount` is in the currency's smallest unit.
    `fields` are further fields of the payment, as the provider names them."""
    own = {
        "amount": amount,
        "currency": currency,
        "payment_method": payment_method,
        "confirm": True,
        "customer": customer or None,
        "description": description or None,
    }
    body = _body(call, own, fields)
    return await _create(call, f"{url}/v1/payment_intents", body, key=key, version=version)


async def refund(
    call: Call, *, payment: str, key: str, url: str, version: str, amount: int | None = None, reason: str = ""
) -> Fields:
    """Give back a payment, or `amount` of it."""
    body = _body(call, {"payment_intent": payment, "amount": amount, "reason": reason or None})
    return await _create(call, f"{url}/v1/refunds", body, key=key, version=version)


async def get(call: Call, *, payment: str, key: str, url: str, version: str) -> Fields:
    """How a payment stands now."""
    answer = await call.http.get(f"{url}/v1/payment_intents/{_id(payment)}", headers=_headers(key, version))
    return reading.picked(reading.json_object(answer), *_KEPT)


def read_answer(response: Response) -> answers.Meaning:
    """What an answer of this provider proves."""
    status, headers = response.status, response.headers
    if 200 <= status <= 299:
        return answers.MeansDone()
    kind = reading.as_object(reading.json_object(response).get("error")).get("type")
    if kind == "idempotency_error" and status != 409:
        return answers.MeansKeyReused()
    if status in (409, 429):
        return answers.MeansBusy(retry_after_s=answers.retry_after_s(headers) or LIMITED_S)
    if status in answers.REFUSALS:
        return answers.MeansRefused()
    if headers.get("idempotent-replayed") == "true":
        return answers.MeansUnknown(reason=f"{status}, stored under this key: it will not change")
    return answers.MeansUnknown(reason=f"{status} does not say whether it was done")


# the lookup


async def find_charge(call: Call, *, key: str, url: str, version: str, **args: Any) -> FindAnswer:
    ago_s = call.sent_ago_s
    if ago_s is not None and ago_s > SEARCH_AFTER_S:
        found: list[Fields] | str = await _search(call, url, _headers(key, version))
    else:
        found = await _recent(call, url, _headers(key, version))
    if isinstance(found, str):
        return Unsure(found)
    for one in found:
        if one.get("status") in _REFUSED:
            return Unsure(f"payment {one.get('id')} exists, but its status is {one.get('status')}")
    own = {"key": key, "url": url, "version": version}
    return reading.counted(
        [
            Found(reading.picked(one, *_KEPT), args={**args, **own, **reading.picked(one, "amount", "currency")})
            for one in found
        ]
    )


async def find_refund(call: Call, *, payment: str, key: str, url: str, version: str, **args: Any) -> FindAnswer:
    """All refunds of one payment are in one list."""
    found: list[Fields] = []
    async for page in _pages(call, f"{url}/v1/refunds", _headers(key, version), payment_intent=payment):
        found += _ours(call, page.objects)
        if page.last:
            return reading.counted([Found(reading.picked(one, *_KEPT)) for one in found])
    return Unsure(f"payment {payment} has more than {PAGES_MAX * PAGE} refunds: the lookup did not read all")


async def _recent(call: Call, url: str, headers: dict[str, str]) -> list[Fields] | str:
    """Payments with our mark among all that can be as young as ours; or why that is not known."""
    found: list[Fields] = []
    async for page in _pages(call, f"{url}/v1/payment_intents", headers):
        found += _ours(call, page.objects)
        bound = reading.oldest(page.response, call.sent_ago_s)
        if page.last or (bound is not None and _created(page.objects) < bound):
            return found
    return found or f"the lookup did not find the payment among the newest {PAGES_MAX * PAGE} payments"


async def _search(call: Call, url: str, headers: dict[str, str]) -> list[Fields]:
    params = {"query": f"metadata['{MARK}']:'{call.effect_key}'", "limit": str(PAGE)}
    response = await call.http.get(f"{url}/v1/payment_intents/search", params=params, headers=headers)
    return _ours(call, reading.json_objects(reading.json_object(response).get("data")))


def _ours(call: Call, objects: list[Fields]) -> list[Fields]:
    return [one for one in objects if reading.as_object(one.get("metadata")).get(MARK) == call.effect_key]


def _created(objects: list[Fields]) -> float:
    """When the last one was made; now, where it does not say."""
    created = objects[-1].get("created") if objects else None
    return float(created) if isinstance(created, int | float) else time.time()


class _Page(NamedTuple):
    response: Response
    objects: list[Fields]
    last: bool


async def _pages(call: Call, url: str, headers: dict[str, str], **wanted: str) -> AsyncIterator[_Page]:
    """The list, newest first, page by page."""
    params = {"limit": str(PAGE), **wanted}
    for _ in range(PAGES_MAX):
        response = await call.http.get(url, params=params, headers=headers)
        page = reading.json_object(response)
        objects = reading.json_objects(page.get("data"))
        yield _Page(response, objects, not page.get("has_more"))
        if objects:
            params["starting_after"] = str(objects[-1].get("id"))


# sending


async def _create(call: Call, url: str, body: bytes, *, key: str, version: str) -> Fields:
    headers = {**_headers(key, version), "Content-Type": "application/x-www-form-urlencoded"}
    response = await call.http.post(url, body=body, headers=headers, check=False)
    reading.conclude(read_answer(response), response, where=f"POST {url}")
    return reading.picked(reading.json_object(response), *_KEPT)


def _headers(key: str, version: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **({"Stripe-Version": version} if version else {})}


def _body(call: Call, own: Fields, more: Fields | None = None) -> bytes:
    more = dict(more or {})
    clash = [name for name in own if name in more]
    if clash:
        raise Misuse(f"pass {clash[0]!r} as an argument of the tool, not in `fields`")
    metadata = {
        **reading.as_object(more.pop("metadata", None)),
        MARK: call.effect_key,
        "holdfast_step": f"{call.task_id}/{call.ordinal}",
    }
    return form_of({**own, **more, "metadata": metadata})


def _id(text: str) -> str:
    if not text or not all(char.isalnum() or char == "_" for char in text):
        raise Misuse(f"{text!r} is not the id of a payment")
    return text


def form_of(fields: Mapping[str, Any]) -> bytes:  # Any: JSON values
    """The fields as an HTML form sends them, nested ones as `outer[inner]`. Raises Misuse."""
    try:
        return urlencode(list(_pairs(fields))).encode("ascii")
    except UnicodeEncodeError:
        raise Misuse("a field contains a lone surrogate, which cannot be sent as UTF-8") from None


def _pairs(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        yield from _of(f"{prefix}[{name}]" if prefix else name, value)


def _of(name: str, value: object) -> Iterator[tuple[str, str]]:
    match value:
        case None:
            return
        case bool():
            yield name, "true" if value else "false"
        case int() | str():
            yield name, str(value)
        case dict():
            yield from _pairs(cast("dict[str, Any]", value), name)
        case list():
            for number, item in enumerate(cast("list[object]", value)):
                yield from _of(f"{name}[{number}]", item)
        case _:
            raise Misuse(f"{name}: a form field cannot contain a {type(value).__name__}")


# webhooks: signed events that become evidence of an effect


class PaymentEvents:
    """The events of one webhook endpoint."""

    def __init__(self, secret: str, *, tolerance_s: float = TOLERANCE_S) -> None:
        """`secret`: the handle of the endpoint's signing secret, `secret://NAME`."""
        self._name = reading.secret_name(secret, what="secret")
        self._tolerance_s = tolerance_s

    async def take(self, hf: reading.TakesEvidence, *, body: bytes, signature: str) -> bool:
        """Check one event and hand it on. True where it was about an effect of this journal.
        Raises BadEvent where it is not the provider's, SecretNotFound where none is set."""
        check_signature(
            body, signature, secret=hf.secrets.get_value(self._name), now=time.time(), tolerance_s=self._tolerance_s
        )
        effect_key, result = read_event(body)
        return bool(effect_key) and await reading.tell(
            hf, effect_key=effect_key, result=result, source="payment webhook"
        )


def check_signature(body: bytes, signature: str, *, secret: str, now: float, tolerance_s: float = TOLERANCE_S) -> None:
    """Raises BadEvent unless the header signs this body, lately, with this secret. As the provider publishes it: the
    header holds `t=SECONDS` and one or more `v1=HEX`; each v1 is HMAC-SHA-256 of `SECONDS.BODY` under the endpoint's
    secret. One that matches is enough (two are sent while a secret is rolled). Old signatures are refused."""
    parts = [part.strip().partition("=") for part in signature.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal()):
        raise BadEvent("the signature header of the message has no time (`t=`)")
    made = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    found = [value for name, _, value in parts if name == "v1"]
    if not any(hmac.compare_digest(made.encode(), one.encode(errors="replace")) for one in found):
        raise BadEvent("the message is not signed with the secret of this endpoint")
    if abs(now - int(times[0])) > tolerance_s:
        raise BadEvent(
            f"the message was not signed within {tolerance_s:g} s of this machine's time: it is old or a clock is wrong"
        )


def read_event(body: bytes) -> tuple[str, dict[str, Any]]:  # Any: the provider's JSON
    """The effect key it proves, or nothing; and what the tool would have returned."""
    try:
        event: Any = values.decode(body)
        kind, about = event["type"], reading.as_object(event["data"]["object"])
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise BadEvent("the message is not an event of this provider") from error
    mark = reading.as_object(about.get("metadata")).get(MARK)
    if not isinstance(kind, str) or kind not in DONE or not isinstance(mark, str):
        return "", {}
    return mark, reading.picked(about, *_KEPT)
