"""The demo's agent: it books a trip, and it has a paper letter posted.

Three effect classes in one task: the flights are only read; the payment has a key, so it may be
sent again under the same one; the mail can be looked up. The letter has neither: if its send has
started and no result is recorded, only a person can say what happened.
"""

from __future__ import annotations

import os
from typing import Any

import holdfast

Json = dict[str, Any]  # Any: JSON values of a far end

FLIGHTS = (
    {"flight": "HF 77", "from": "LIS", "to": "BER", "cents": 18_400},
    {"flight": "HF 79", "from": "LIS", "to": "BER", "cents": 23_900},
)
# The print shop runs on this machine: what it has not received by then, it never will.
LETTER_DELAY_S = 1.0


def variable(kind: str) -> str:
    """The environment variable that holds the address of this kind of far end."""
    return f"HOLDFAST_DEMO_{kind.upper()}_URL"


def _url(kind: str) -> str:
    return os.environ[variable(kind)]


@holdfast.tool(effect=holdfast.Read())
async def search_flights(call: holdfast.Call, query: str) -> list[Json]:
    start, _, end = query.partition(" to ")
    found = [dict(one) for one in FLIGHTS if (one["from"], one["to"]) == (start, end)]
    return sorted(found, key=lambda one: one["cents"])


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True), http_only=True)
async def charge(call: holdfast.Call, card: str, cents: int) -> Json:
    answer = await call.http.post(f"{_url('payment')}/charges", json={"card": card, "cents": cents, "currency": "EUR"})
    return answer.json()


@holdfast.tool(effect=holdfast.Queryable(find_returns_result=True), http_only=True)
async def send_mail(call: holdfast.Call, to: str, subject: str, body: str) -> Json:
    answer = await call.http.post(f"{_url('mail')}/mails", json={"to": to, "subject": subject, "body": body})
    return answer.json()


@send_mail.find
async def find_mail(
    call: holdfast.Call, to: str, subject: str, body: str
) -> holdfast.Found | holdfast.Absent | holdfast.Many:
    step = {"task": call.task_id, "step": call.ordinal}
    answer = await call.http.get(f"{_url('mail')}/mails", params=step)
    match answer.json()["mails"]:
        case []:
            return holdfast.Absent()
        case [mail]:
            return holdfast.Found(mail)
        case mails:
            return holdfast.Many(mails)


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=LETTER_DELAY_S), http_only=True)
async def post_letter(call: holdfast.Call, to: str, text: str) -> Json:
    answer = await call.http.post(f"{_url('letter')}/effects", json={"to": to, "text": text})
    return {"letter": answer.json()["id"]}


@holdfast.task
async def book_trip(run: holdfast.Run, request: str) -> Json:
    flights = await run.call(search_flights, query=request)
    receipt = await run.call(charge, card="tok_1", cents=flights[0]["cents"])
    text = f"{flights[0]['flight']}, paid with {receipt['id']}"
    await run.call(send_mail, to="ada@example.org", subject="Your trip", body=text)
    return receipt


@holdfast.task
async def confirm_visa(run: holdfast.Run, name: str) -> Json:
    return await run.call(post_letter, to="Embassy, Berlin", text=f"{name} will arrive on Monday.")


tasks = [book_trip, confirm_visa]
