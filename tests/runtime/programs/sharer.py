"""Serves tasks of a shared journal until told to end: `sharer.py JOURNAL URL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import holdfast
from holdfast.testing.lab import fast


async def main(journal: str, url: str) -> None:
    @holdfast.tool(effect=holdfast.Unrepeatable(), http_only=True)
    async def send(call: holdfast.Call, n: int) -> Any:
        return (await call.http.post(f"{url}/effects", json={"n": n})).json()["n"]

    @holdfast.task
    async def work(run: holdfast.Run, n: int) -> Any:
        sent = [await run.call(send, n=n)]
        await run.sleep(0.01)
        return [*sent, await run.call(send, n=n)]

    async with holdfast.open(journal, tasks=[work], settings=fast(concurrency=20)) as hf:
        print("serving")
        await asyncio.to_thread(sys.stdin.readline)
        assert hf.engine is not None
        print("runs", hf.engine.counts["runs"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
