"""A provider of payments with Stripe's habits (API version 1), from its published rules.

A key belongs to one body and one path. What began to be executed is stored under it and repeated,
a 402 and a 500 too; what failed validation is not. A second request while the first is under way
gets 409, another body 400 with type `idempotency_error`. Keys are forgotten after the window.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from holdfast.testing.far_ends.web import Answer, Ask, Trouble, WebFarEnd

WINDOW_S = 86_400.0
DECLINED = "pm_card_declined"
Object = dict[str, Any]  # Any: JSON as the provider writes it


@dataclass(slots=True)
class Kept:
    path: str
    body: bytes
    at: float
    answer: Answer | None = None  # None while it is under way


class PaymentProvider(WebFarEnd):
    def __init__(self, *, key: str, search_lag_s: float = 60.0) -> None:
        super().__init__()
        self._key = key
        self._search_lag_s = search_lag_s
        self.payments: list[Object] = []
        self.refunds: list[Object] = []
        self._kept: dict[str, Kept] = {}

    @property
    def taken(self) -> dict[str, int]:
        """Money taken, by the effect key in the metadata: the number of times."""
        done: dict[str, int] = {}
        for one in self.payments:
            if one["status"] == "succeeded":
                mark = one["metadata"].get("holdfast_key", "")
                done[mark] = done.get(mark, 0) + 1
        return done

    def now(self) -> float:
        return time.time() + self.skew_s

    def enter(self, ask: Ask) -> Answer | None:
        if ask.headers.get("authorization") != f"Bearer {self._key}":
            return _error(401, "invalid_request_error", "Invalid API Key provided")
        if ask.method == "GET":
            return self._look(ask)
        if ask.method != "POST" or ask.path not in ("/v1/payment_intents", "/v1/refunds"):
            return _error(404, "invalid_request_error", "Unrecognized request URL")
        key = ask.headers.get("idempotency-key", "")
        kept = self._kept.get(key)
        if kept is None or self.now() - kept.at > WINDOW_S:
            if key:
                self._kept[key] = Kept(ask.path, ask.body, self.now())
            return None
        if (kept.path, kept.body) != (ask.path, ask.body):
            return _error(400, "idempotency_error", "Keys can only be used with the same request")
        if kept.answer is None:
            code = "idempotency_key_in_use"
            return _error(409, "idempotency_error", "Another request is in progress", code=code)
        again = {**kept.answer.headers, "idempotent-replayed": "true"}
        return Answer(kept.answer.status, kept.answer.body, again)

    def work(self, ask: Ask, trouble: Trouble | None) -> Answer:
        form = dict(parse_qsl(ask.body.decode(), keep_blank_values=True))
        wrong = _check(ask.path, form)
        key = ask.headers.get("idempotency-key", "")
        if wrong:
            self._kept.pop(key, None)  # nothing was executed: nothing is stored
            return _error(400, "invalid_request_error", wrong)
        answer = self._pay(form) if ask.path.endswith("intents") else self._refund(form)
        if trouble and trouble.kind == "after":
            answer = Answer(trouble.status, trouble.body, trouble.headers)  # stored as it was told
        if key in self._kept:
            self._kept[key].answer = answer
        return answer

    def _pay(self, form: dict[str, str]) -> Answer:
        declined = form["payment_method"] == DECLINED
        one = self._object("pi", "payment_intent", form)
        one |= {
            "status": "requires_payment_method" if declined else "succeeded",
            "client_secret": f"{one['id']}_secret_{len(self.payments)}",
        }
        self.payments.append(one)
        if declined:
            return _error(402, "card_error", "Your card was declined.", code="card_declined")
        return Answer(200, one)

    def _refund(self, form: dict[str, str]) -> Answer:
        paid = next((p for p in self.payments if p["id"] == form["payment_intent"]), None)
        if paid is None:
            return _error(404, "invalid_request_error", "No such payment_intent")
        back = sum(one["amount"] for one in self.refunds if one["payment_intent"] == paid["id"])
        amount = int(form.get("amount") or paid["amount"] - back)
        if amount < 1 or back + amount > paid["amount"]:
            return _error(400, "invalid_request_error", "Refund is greater than what is left")
        one = self._object("re", "refund", {**form, "amount": str(amount)})
        one |= {"status": "succeeded", "payment_intent": paid["id"]}
        self.refunds.append(one)
        return Answer(200, one)

    def _object(self, prefix: str, kind: str, form: dict[str, str]) -> Object:
        number = len(self.payments) + len(self.refunds) + 1
        metadata = {n[9:-1]: v for n, v in form.items() if n.startswith("metadata[")}
        return {
            "id": f"{prefix}_{number:06}",
            "object": kind,
            "amount": int(form["amount"]),
            "currency": form.get("currency", "eur"),
            "created": int(self.now()),
            "metadata": metadata,
        }

    def _look(self, ask: Ask) -> Answer:
        query = ask.query
        if ask.path == "/v1/payment_intents/search":
            wanted = query["query"].split("'")
            found = [
                one
                for one in self.payments
                if one["metadata"].get(wanted[1]) == wanted[3] and one["created"] + self._search_lag_s <= self.now()
            ]
            return Answer(200, {"data": found, "has_more": False})
        if ask.path == "/v1/refunds":
            about = [r for r in self.refunds if r["payment_intent"] == query["payment_intent"]]
            return _page(about, query)
        if ask.path == "/v1/payment_intents":
            return _page(self.payments, query)
        found = [one for one in self.payments if ask.path.endswith(f"/{one['id']}")]
        if not found:
            return _error(404, "invalid_request_error", "No such payment_intent")
        return Answer(200, found[0])

    def event(self, kind: str, about: Object, *, secret: str) -> tuple[bytes, str]:
        """A webhook's body and the header that signs it."""
        body = json.dumps({"type": kind, "data": {"object": about}}).encode()
        at = str(int(time.time()))
        made = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        return body, f"t={at},v1={made}"


def _check(path: str, form: dict[str, str]) -> str:
    needed = ("payment_intent",) if path.endswith("refunds") else ("amount", "currency")
    missing = [name for name in needed if not form.get(name)]
    if missing:
        return f"Missing required param: {missing[0]}."
    amount = form.get("amount")
    return "" if amount is None or amount.isdecimal() else "Invalid integer: amount"


def _page(objects: list[Object], query: dict[str, str]) -> Answer:
    newest = list(reversed(objects))
    ids = [one["id"] for one in newest]
    start = ids.index(query["starting_after"]) + 1 if "starting_after" in query else 0
    limit = int(query.get("limit", "10"))
    return Answer(200, {"data": newest[start : start + limit], "has_more": len(newest) > start + limit})


def _error(status: int, kind: str, text: str, **more: str) -> Answer:
    return Answer(status, {"error": {"type": kind, "message": text, **more}})
