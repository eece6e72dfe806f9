"""The app under test: one task per thing that can happen. Copied beside each test's journal."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import Any

import holdfast

HERE = Path(__file__).parent


def note(name: str, text: str = "") -> None:
    with open(HERE / name, "a") as file:
        file.write(text + "\n")


@holdfast.tool(effect=holdfast.Read())
async def look(query: str) -> dict[str, Any]:
    return {"query": query, "hits": 3}


@holdfast.tool(effect=holdfast.Unrepeatable())
async def send(call: holdfast.Call, to: str) -> dict[str, Any]:
    note("sent", call.effect_key)
    return {"to": to}


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.05))
async def lose(to: str) -> dict[str, Any]:
    raise ConnectionError(f"{to}: reset \x1b[31m[red]")


@holdfast.tool(effect=holdfast.Read())
async def raises() -> dict[str, Any]:
    raise ValueError("no such flight")


@holdfast.tool(effect=holdfast.Unrepeatable())
async def odd() -> object:
    note("odd")
    return object()


@holdfast.tool(effect=holdfast.Keyed(window_s=3_600, fingerprint="checked", refusals_stored=False, max_delay_s=0.05))
async def charge(call: holdfast.Call, cents: int) -> dict[str, Any]:
    note("charged", call.effect_key)
    sys.stderr.write("CHARGING\n")
    sys.stderr.flush()
    while not (HERE / "go").exists():  # noqa: ASYNC110 - the sign comes from another process
        await asyncio.sleep(0.01)
    return {"cents": cents, "key": call.effect_key}


@holdfast.tool(effect=holdfast.Unrepeatable(), needs_approval=True)
async def launch(what: str) -> dict[str, Any]:
    return {"launched": what}


@holdfast.tool(effect=holdfast.Read())
def fill_the_disk() -> dict[str, Any]:
    with open(HERE / "filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4_096)):
                pass
        except OSError as error:
            return {"errno": error.errno}
    return {}


@holdfast.task
async def hello(run: holdfast.Run, who: str) -> dict[str, Any]:
    found = await run.call(look, query=who)
    sent = await run.call(send, to=who)
    return {"hits": found["hits"], "sent": sent}


@holdfast.task
async def pay(run: holdfast.Run, cents: int) -> dict[str, Any]:
    await run.call(look, query="price")
    return await run.call(charge, cents=cents)


@holdfast.task
async def parks(run: holdfast.Run) -> dict[str, Any]:
    return await run.call(lose, to="me")


@holdfast.task
async def asks(run: holdfast.Run, who: str) -> dict[str, Any]:
    answer = await run.approve(f"greet {who}?", who=who)
    return {"granted": answer.granted, "by": answer.by, "note": answer.note}


@holdfast.task
async def launches(run: holdfast.Run) -> dict[str, Any]:
    return await run.call(launch, what="rocket")


@holdfast.task
async def fails(run: holdfast.Run) -> dict[str, Any]:
    return await run.call(raises)


@holdfast.task
async def loses_result(run: holdfast.Run) -> dict[str, Any]:
    return await run.call(odd)


@holdfast.task
async def returns_odd(run: holdfast.Run) -> object:
    return {1, 2}


@holdfast.task
async def undoes(run: holdfast.Run) -> dict[str, Any]:
    step = run.call(send, to="a")
    await step
    await run.compensate(step, send, to="undo a")
    return {}


@holdfast.task
async def quits(run: holdfast.Run) -> None:
    sys.exit(0)


@holdfast.tool(effect=holdfast.Read())
async def leave(code: int) -> None:
    os._exit(code)  # as a C library does


@holdfast.task
async def leaves(run: holdfast.Run, code: int) -> None:
    await run.call(leave, code=code)


@holdfast.task
async def echo(run: holdfast.Run, value: object, also: object = None) -> object:
    return value


@holdfast.task
async def collector(run: holdfast.Run) -> list[int]:
    return [gc.get_threshold()[0], gc.get_freeze_count()]


@holdfast.task
async def fills(run: holdfast.Run) -> dict[str, Any]:
    await run.call(fill_the_disk)
    return await run.call(send, to="after")


@holdfast.task
async def leaves_it_full(run: holdfast.Run) -> None:
    await run.call(fill_the_disk)


tasks = [
    hello,
    pay,
    parks,
    asks,
    launches,
    fails,
    loses_result,
    returns_odd,
    undoes,
    quits,
    leaves,
    echo,
    collector,
    fills,
    leaves_it_full,
]
only = [hello]
