"""Calls a far end from a scope: `scoped.py JOURNAL URL CLASS serve|call|settle`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import holdfast
from holdfast.testing.lab import fast

EFFECTS: dict[str, Any] = {
    "unrepeatable": holdfast.Unrepeatable(max_delay_s=0),
    "keyed": holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0),
}


async def main(journal: str, url: str, kind: str, what: str) -> None:
    @holdfast.tool(effect=EFFECTS[kind], http_only=True, timeout_s=60)
    async def send(call: holdfast.Call, n: int) -> Any:
        return (await call.http.post(f"{url}/effects", json={"n": n}, timeout_s=60)).json()

    tools = [send] if what == "settle" else []
    async with holdfast.open(journal, tools=tools, settings=fast()) as hf:
        if what == "settle":
            print("serving")
            await asyncio.Event().wait()
        async with hf.scope("thread-7") as scope:
            print("inside", scope.task_id)
            if what == "hold":
                await asyncio.Event().wait()
            try:
                print("result", await scope.call(send, slot="send-1", n=1))
            except holdfast.TaskParked as error:
                print("parked", error.ordinal)
        print("left")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
