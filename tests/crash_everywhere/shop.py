"""Tasks under test: some keep their promise when their process is killed, some do not."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from typing import Any

import holdfast

BANK = os.environ.get("BANK_URL", "")
CONTRACT = holdfast.Keyed(window_s=3_600, fingerprint="checked", refusals_stored=True)
waiting: list[int] = []  # what a naive queue keeps in memory

if os.environ.get("SHOP_THREAD"):  # a program that starts threads when it is loaded cannot be forked
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def _post(cents: int) -> str:
    body = json.dumps({"cents": cents}).encode()
    request = urllib.request.Request(f"{BANK}/effects", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return str(found["id"])


@holdfast.tool(effect=CONTRACT)
def charge_without_its_key(cents: int) -> str:
    return _post(cents)


@holdfast.tool(effect=CONTRACT, http_only=True)
async def charge(call: holdfast.Call, cents: int) -> str:
    answer = await call.http.post(f"{BANK}/effects", json={"cents": cents})
    return str(answer.json()["id"])


@holdfast.tool(http_only=True)
async def post_letter(call: holdfast.Call, cents: int) -> str:
    answer = await call.http.post(f"{BANK}/effects", json={"cents": cents})
    return str(answer.json()["id"])


@holdfast.tool(effect=holdfast.Idempotent())
async def remember_in_memory(cents: int) -> None:
    waiting.append(cents)


@holdfast.tool(effect=CONTRACT, http_only=True)
async def charge_all(call: holdfast.Call) -> int:
    for cents in waiting:
        await call.http.post(f"{BANK}/effects", json={"cents": cents})
    return len(waiting)


@holdfast.task
async def naive(run: holdfast.Run, cents: int) -> str:
    return await run.call(charge_without_its_key, cents=cents)


@holdfast.task
async def keyed(run: holdfast.Run, cents: int) -> str:
    return await run.call(charge, cents=cents)


@holdfast.task
async def letter(run: holdfast.Run, cents: int) -> str:
    return await run.call(post_letter, cents=cents)


@holdfast.task
async def forgetful(run: holdfast.Run, cents: int) -> int:
    await run.call(remember_in_memory, cents=cents)
    return await run.call(charge_all)


@holdfast.task
async def failing(run: holdfast.Run) -> None:
    raise ValueError("no card")


@holdfast.task
async def talking(run: holdfast.Run, url: str) -> str:
    model = holdfast.Model(
        "model-1", [holdfast.Endpoint(name="p", url=url, wire="openai", key="secret://provider")], settings={}
    )
    talk = run.talk(system="a shop")
    talk.say("may I charge it?")
    reply = await run.ask(model, talk)
    await run.call(charge, cents=1)
    return reply.text
