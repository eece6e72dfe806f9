"""An agent that pays with a secret token, at the far end whose address is in SHOP."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import holdfast

Json = dict[str, Any]


@holdfast.tool(
    effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True),
    secrets={"token": "billing"},
    http_only=True,
)
async def charge(call: holdfast.Call, token: str, cents: int) -> Json:
    card = hashlib.sha256(token.encode()).hexdigest()
    url = f"{os.environ['SHOP']}/charges"
    answer = await call.http.post(url, json={"card": card, "cents": cents, "currency": "EUR"})
    return answer.json()


@holdfast.task
async def buy(run: holdfast.Run, cents: int) -> Json:
    return await run.call(charge, token="secret://billing", cents=cents)


tasks = [buy]
