"""Makes one call to a far end and goes on living: `zombie.py JOURNAL URL CLASS`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import holdfast
from holdfast.host.log import Log
from holdfast.testing.lab import fast

EFFECTS: dict[str, Any] = {
    "unrepeatable": holdfast.Unrepeatable(max_delay_s=0),
    "keyed": holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0),
}


async def main(journal: str, url: str, kind: str) -> None:
    @holdfast.tool(effect=EFFECTS[kind], http_only=True, timeout_s=60)
    async def send(call: holdfast.Call) -> Any:
        return (await call.http.post(f"{url}/effects", json={"n": 1}, timeout_s=60)).json()

    @holdfast.task
    async def once(run: holdfast.Run) -> Any:
        return await run.call(send)

    settings = fast(lease_ttl_s=0.6, renew_every_s=0.15)
    async with holdfast.open(journal, tasks=[once], settings=settings, log=Log(sys.stdout)) as hf:
        handle = await hf.submit(once, request_id="once")
        print("serving", handle.id)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            row = await handle.row()
            print("state", row.state, line)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
