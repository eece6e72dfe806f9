"""A travel agent: searches in parallel, keeps an itinerary, pays once, mails once.

It runs offline as `python examples/offline.py travel`, and against a real provider by the same
code: see examples/README.md. Kill it wherever you like; another worker goes on, and the far ends'
books show one charge and one mail.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import holdfast

PAYMENT = os.environ.get("PAYMENT_URL", "http://127.0.0.1:8401")
MAIL = os.environ.get("MAIL_URL", "http://127.0.0.1:8402")

Json = dict[str, Any]

model = holdfast.Model(
    os.environ.get("MODEL_NAME", "model-1"),
    [
        holdfast.Endpoint(
            name="provider",
            url=os.environ.get("MODEL_URL", "http://127.0.0.1:8403/v1"),
            wire="anthropic" if os.environ.get("MODEL_WIRE") == "anthropic" else "openai",
            key="secret://provider",
        )
    ],
    settings={"max_tokens": 1_000},
)


@holdfast.tool(effect=holdfast.Read())
async def search_flights(call: holdfast.Call, origin: str, destination: str, day: str) -> list[Json]:
    """Flights of a day, cheapest first.

    Args:
        origin: three-letter code of the airport
        destination: three-letter code of the airport
        day: such as 2027-05-04
    """
    return [
        {"flight": "HF 77", "leaves": f"{day} 09:10", "cents": 18_400},
        {"flight": "HF 79", "leaves": f"{day} 17:45", "cents": 23_900},
    ]


@holdfast.tool(effect=holdfast.Read())
async def search_hotels(call: holdfast.Call, city: str, day: str) -> list[Json]:
    """Hotels with a room that night, cheapest first."""
    return [{"hotel": "Ostbahn", "night": day, "cents": 9_900}]


# It changes nothing but the task's own files, so it may run any number of times.
@holdfast.tool(effect=holdfast.Read())
async def write_itinerary(call: holdfast.Call, text: str) -> str:
    """Keep the itinerary; `send_mail` sends it."""
    (call.scratch / "itinerary.txt").write_text(text + "\n")
    return "kept"


# The service does one charge per key for a day: so the runtime may send the same key again.
@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True), http_only=True)
async def charge(call: holdfast.Call, cents: Annotated[int, holdfast.Field(minimum=1)], what: str) -> Json:
    """Charge the traveller's card."""
    body = {"card": "tok_1", "cents": cents, "what": what}
    return (await call.http.post(f"{PAYMENT}/charges", json=body)).json()


# The service takes no key, but it can be asked: so the runtime asks before it sends again.
@holdfast.tool(effect=holdfast.Queryable(), http_only=True)
async def send_mail(call: holdfast.Call, to: str, subject: str) -> Json:
    """Mail the itinerary that was kept."""
    text = (call.scratch / "itinerary.txt").read_text()
    body = {"to": to, "subject": subject, "body": text}
    return (await call.http.post(f"{MAIL}/mails", json=body)).json()


@send_mail.find
async def find_mail(call: holdfast.Call, to: str, subject: str) -> holdfast.Found | holdfast.Absent | holdfast.Many:
    step = {"task": call.task_id, "step": call.ordinal}
    mails = (await call.http.get(f"{MAIL}/mails", params=step)).json()["mails"]
    if len(mails) > 1:
        return holdfast.Many(mails)
    return holdfast.Found(mails[0]) if mails else holdfast.Absent()


agent = holdfast.Agent(
    name="travel",
    model=model,
    instructions="You book trips. Search first, keep the itinerary, pay, mail it, then say in one "
    "sentence what was booked.",
    tools=[search_flights, search_hotels, write_itinerary, charge, send_mail],
    scratch=True,
    max_turns=20,
    # Outside the model: whatever it says, no more than this leaves, and a person sees large sums.
    gate=holdfast.Gate(
        limits={charge: holdfast.Limit(argument="cents", per_call=60_000, per_task=90_000)},
        approve={charge: holdfast.Above(argument="cents", per_call=20_000)},
    ),
)
app = holdfast.App([agent])
