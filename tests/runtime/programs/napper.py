"""Puts a task to sleep, or wakes it: `napper.py JOURNAL sleep|wake`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import holdfast
from holdfast.journal.records import TaskState
from holdfast.testing.lab import fast, wait_state

rings: list[int] = []


@holdfast.tool(effect=holdfast.Idempotent())
async def ring() -> int:
    rings.append(1)
    return len(rings)


@holdfast.task
async def nap(run: holdfast.Run) -> Any:
    await run.sleep(2.5)
    return await run.call(ring)


async def main(journal: str, what: str) -> None:
    async with holdfast.open(journal, tasks=[nap], settings=fast()) as hf:
        handle = await hf.submit(nap, request_id="nap")
        if what == "sleep":
            await wait_state(handle, TaskState.SLEEPING)
            print("sleeping", handle.id)
            await asyncio.Event().wait()
        print("awake", handle.id)
        print("rang", await handle.result(20))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
