"""The eight far ends, as data: what each one asks of a request and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from holdfast.downstream.ledger import Done

Body = dict[str, object]
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


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name="read", method="GET", noun="value"),
        Profile(name="keyed", key="required", lookup="key"),
        Profile(name="queryable", reference=True, lookup="reference"),
        Profile(name="fenced", method="PUT", noun="resources", key="used", fence=True),
        Profile(name="idempotent", method="PUT", noun="resources"),
        Profile(name="unrepeatable"),
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
            name="mail",
            noun="mails",
            prefix="ml",
            reference=True,
            lookup="reference",
            problem=_mail_problem,
            answer=_mail,
        ),
    )
}
