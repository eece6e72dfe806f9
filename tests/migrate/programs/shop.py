"""An agent's app: two payments, each as long as the far end takes."""

from __future__ import annotations

import os

import holdfast

URL = os.environ.get("SHOP_URL", "")


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False), http_only=True)
async def charge(call: holdfast.Call, cents: int) -> str:
    answer = await call.http.post(f"{URL}/charges", json={"card": "tok_1", "cents": cents})
    return answer.json()["id"]


@holdfast.task
async def order(run: holdfast.Run, cents: int) -> list[str]:
    return [await run.call(charge, cents=cents), await run.call(charge, cents=cents + 1)]


tasks = [order]
