"""The nine far ends, as data: what each asks of a request, checked before all else, and what it makes of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from holdfast.downstream.http_server import Request
from holdfast.downstream.keys import BadKey, parse_key
from holdfast.downstream.ledger import Done

Body = dict[str, object]
REFERENCE_CHARS_MAX = 255
FENCE_MAX = 2**64 - 1
_RESOURCE = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
DECLINED_CARD = "tok_declined"


def _anything(body: Body) -> str | None:
    return None


def _plain(effect: Done) -> Body:
    return {"id": effect.id, "n": effect.n, "body": effect.body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of far end. `noun` is the path of its effects and the name of its lists."""

    name: str
    method: Literal["GET", "POST", "PUT"] = "POST"
    noun: str = "effects"
    prefix: str = "ef"
    key: Literal["required", "used", "ignored"] = "ignored"
    reference: bool = False
    fence: bool = False
    lookup: Literal["key", "reference"] | None = None
    anything: bool = False  # takes every path and body, in place of services that it does not know
    problem: Callable[[Body], str | None] = _anything
    refusal: Callable[[Body], str | None] = _anything
    answer: Callable[[Done], Body] = _plain


def _charge_problem(body: Body) -> str | None:
    cents, currency = body.get("cents"), body.get("currency", "EUR")
    if not isinstance(body.get("card"), str) or not body["card"]:
        return "card must be text"
    if not isinstance(cents, int) or isinstance(cents, bool) or not 1 <= cents <= 10**9:
        return "cents must be a whole number from 1 to 1,000,000,000"
    if not isinstance(currency, str) or len(currency) != 3:
        return "currency must have three letters"
    return None


def _charge_refusal(body: Body) -> str | None:
    return "the card was declined" if body["card"] == DECLINED_CARD else None


def _charge(effect: Done) -> Body:
    body = cast(Body, effect.body)  # an object: checked on arrival
    return {"id": effect.id, "cents": body["cents"], "currency": body.get("currency", "EUR")}


def _mail_problem(body: Body) -> str | None:
    if not isinstance(body.get("to"), str) or "@" not in str(body["to"]):
        return "to must be an address"
    for name in ("subject", "body"):
        if not isinstance(body.get(name, ""), str):
            return f"{name} must be text"
    return None


def _mail(effect: Done) -> Body:
    return {"id": effect.id, "to": cast(Body, effect.body)["to"], "reference": effect.reference}


_ALL = (
    Profile(name="read", method="GET", noun="value"),
    Profile(name="keyed", key="required", lookup="key"),
    Profile(name="queryable", reference=True, lookup="reference"),
    Profile(name="fenced", method="PUT", noun="resources", key="used", fence=True),
    Profile(name="idempotent", method="PUT", noun="resources"),
    Profile(name="unrepeatable"),
    Profile(name="recording", key="used", anything=True),
    Profile(
        name="payment",
        noun="charges",
        prefix="ch",
        key="required",
        lookup="key",
        problem=_charge_problem,
        refusal=_charge_refusal,
        answer=_charge,
    ),
    Profile(
        name="mail", noun="mails", prefix="ml", reference=True, lookup="reference", problem=_mail_problem, answer=_mail
    ),
)
PROFILES: dict[str, Profile] = {profile.name: profile for profile in _ALL}


class BadOrder(Exception):
    """The request is refused before it is worked on, with 400 and a reason."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    body: Body
    headers: tuple[tuple[str, str], ...] = ()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request that makes sense for this far end."""

    key: str | None
    reference: str | None
    fence: int | None
    resource: str | None
    body: Body
    fingerprint: str


def problem(status: int, title: str, *headers: tuple[str, str]) -> Reply:
    """An error answer in the form of RFC 9457."""
    return Reply(status=status, body={"title": title, "status": status}, headers=headers)


def parse_order(ask: Request, profile: Profile, *, key_header: str) -> Order:
    """Check the request against the far end's contract. Raises BadOrder: what is missing or malformed."""
    body = _any_body(ask) if profile.anything else parse_object(ask.body) if ask.method != "GET" else {}
    if wrong := profile.problem(body):
        raise BadOrder(wrong)
    # The fingerprint is equal for equal requests, however the JSON was spaced or ordered.
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return Order(
        key=_key(ask, profile, key_header),
        reference=_reference(ask, body) if profile.reference else None,
        fence=_fence(ask) if profile.fence else None,
        resource=_resource(ask) if profile.noun == "resources" else None,
        body=body,
        fingerprint=hashlib.sha256(f"{ask.method}\n{ask.path}\n{canonical}".encode()).hexdigest(),
    )


def parse_object(raw: bytes) -> Body:
    """Raises BadOrder: not UTF-8, not JSON, not an object, nested too deeply, or not finite."""
    try:
        value: object = json.loads(raw.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadOrder(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadOrder("the body is not a JSON object")
    return cast(Body, value)


def _any_body(ask: Request) -> Body:
    """What a recorder keeps: where the request was to go, and a digest of what it held."""
    digest = hashlib.sha256(ask.body).hexdigest()
    return {"method": ask.method, "host": ask.first("host"), "path": ask.path, "sha256": digest}


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _key(ask: Request, profile: Profile, header: str) -> str | None:
    try:
        key = parse_key(ask.all(header))
    except BadKey as error:
        if profile.key == "ignored":
            return None
        raise BadOrder(str(error)) from error
    if key is None and profile.key == "required":
        raise BadOrder(f"{header} is missing")
    return key


def _reference(ask: Request, body: Body) -> str:
    reference = body.get("reference")
    task, step = ask.first("holdfast-task"), ask.first("holdfast-step")
    if reference is None and task and step:
        reference = f"{task}/{step}"
    if not isinstance(reference, str) or not 1 <= len(reference) <= REFERENCE_CHARS_MAX:
        raise BadOrder(f"reference must be text of 1 to {REFERENCE_CHARS_MAX} characters")
    return reference


def _fence(ask: Request) -> int:
    values = ask.all("holdfast-fence")
    if len(values) != 1 or not re.fullmatch(r"[0-9]{1,20}", values[0], re.ASCII):
        raise BadOrder("Holdfast-Fence must be one whole number")
    if int(values[0]) > FENCE_MAX:
        raise BadOrder("Holdfast-Fence must fit into 64 bits")
    return int(values[0])


def _resource(ask: Request) -> str:
    name = ask.path.removeprefix("/resources/")
    if not _RESOURCE.fullmatch(name):
        raise BadOrder("a resource name has 1 to 100 letters, digits, '.', '_' or '-'")
    return name
