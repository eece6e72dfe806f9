"""Errands that plan, ask, pay and sleep. The tools write down themselves when they were called."""

from __future__ import annotations

import asyncio
import json
import os
import time

import holdfast

TRUTH = "HOLDFAST_TRUTH"  # where the tools write down what they did


@holdfast.tool(effect=holdfast.Read())
async def price(call: holdfast.Call, what: str) -> int:
    return 100 + len(what)


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.05))
async def post(call: holdfast.Call, cents: int, takes_s: float) -> dict[str, int]:
    """At most once: a kill inside it leaves a doubt that only a person can settle."""
    return await _act(call, cents, takes_s)


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False))
async def pay(call: holdfast.Call, cents: int, takes_s: float) -> dict[str, int]:
    """A far end that knows its keys: a kill inside it is sent again."""
    return await _act(call, cents, takes_s)


async def _act(call: holdfast.Call, cents: int, takes_s: float) -> dict[str, int]:
    place = f"{call.task_id}/{call.ordinal}"
    _note("begun", place)
    await asyncio.sleep(takes_s)
    _note("done", place)
    return {"cents": cents}


@holdfast.task
async def errand(run: holdfast.Run, what: str, takes_s: float, ask: bool, once: bool) -> int:
    looked, paid = run.plan.add("look at the price", "pay")
    cents = await run.call(price, what=what)
    run.plan.set(looked, "done", result=str(cents))
    if ask and not await run.approve(f"pay {cents} for {what}?"):
        return 0
    await run.call(post if once else pay, cents=cents, takes_s=takes_s)
    run.plan.set(paid, "done")
    await run.sleep(takes_s)
    return cents


def _note(what: str, place: str) -> None:
    line = json.dumps({"what": what, "place": place, "at_ms": time.time_ns() // 1_000_000})
    fd = os.open(os.environ[TRUTH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode() + b"\n")
    finally:
        os.close(fd)


app = [errand]
