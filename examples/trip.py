"""An agent that books a trip: search, pay, mail the itinerary.

Start its two far ends and a worker as examples/README.md says; then kill the worker whenever you
like. The far ends' ledgers show one charge and one mail.
"""

from __future__ import annotations

import os
from typing import Any

import holdfast

PAYMENT = os.environ.get("PAYMENT_URL", "http://127.0.0.1:8401")
MAIL = os.environ.get("MAIL_URL", "http://127.0.0.1:8402")

Json = dict[str, Any]


@holdfast.tool(effect=holdfast.Read())
async def search_flights(call: holdfast.Call, query: str) -> list[Json]:
    return [{"flight": "HF 77", "cents": 18_400}, {"flight": "HF 79", "cents": 23_900}]


# The service does one charge per key for a day: so the runtime may send the same key again.
@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True), http_only=True)
async def charge(call: holdfast.Call, card: str, cents: int) -> Json:
    answer = await call.http.post(f"{PAYMENT}/charges", json={"card": card, "cents": cents})
    return answer.json()


# The service takes no key, but it can be asked: so the runtime asks before it sends again.
@holdfast.tool(effect=holdfast.Queryable(), http_only=True)
async def send_mail(call: holdfast.Call, to: str, body: str) -> Json:
    answer = await call.http.post(f"{MAIL}/mails", json={"to": to, "body": body})
    return answer.json()


@send_mail.find
async def find_mail(call: holdfast.Call, to: str, body: str) -> holdfast.Found | holdfast.Absent | holdfast.Many:
    step = {"task": call.task_id, "step": call.ordinal}
    answer = await call.http.get(f"{MAIL}/mails", params=step)
    mails = answer.json()["mails"]
    if len(mails) > 1:
        return holdfast.Many(mails)
    return holdfast.Found(mails[0]) if mails else holdfast.Absent()


@holdfast.task
async def book_trip(run: holdfast.Run, request: str) -> Json:
    flights = await run.call(search_flights, query=request)
    receipt = await run.call(charge, card="tok_1", cents=flights[0]["cents"])
    await run.call(send_mail, to="ada@example.org", body=f"{request}, paid with {receipt['id']}")
    return receipt


tasks = [book_trip]
