"""The app of the demo's two agents that write to each other: one asks for trips, the other books, pays and answers."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.demo.trip import charge

THREAD = "trips"
PAID = "1"  # the ordinal of the payment
CENTS = 18_400


@holdfast.task
async def ask_for_trip(run: holdfast.Run, to: str, request: str) -> Any:  # Any: JSON, which relays hold it
    return await run.send(to, {"request": request}, thread=THREAD)


@holdfast.on_mail
async def take_mail(run: holdfast.Run, letter: holdfast.Letter) -> Any:  # Any: the letter's JSON
    body: Any = letter.body  # Any: as above
    if "request" not in body:
        return body  # an answer
    receipt = await run.call(charge, card="tok_1", cents=CENTS)
    await run.send(letter.sender, {"booked": body["request"], "receipt": receipt["id"]}, thread=letter.thread)
    return receipt


tasks = [ask_for_trip, take_mail]
