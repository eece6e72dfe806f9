"""Serves tasks, one of which kills its process: `poison.py JOURNAL exit|kill|abort`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import holdfast
from holdfast.testing.lab import fast

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)


@holdfast.tool(effect=KEYED)
async def note(n: int) -> int:
    return n


@holdfast.task
async def poison(run: holdfast.Run, how: str) -> None:
    await asyncio.sleep(0.1)  # the others are under way by then
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            os.abort()


@holdfast.task
async def work(run: holdfast.Run, n: int) -> Any:
    for step in range(3):
        await run.call(note, n=step)
        await run.sleep(0.2)
    return n


async def main(journal: str) -> None:
    async with holdfast.open(journal, tasks=[poison, work], settings=fast()):
        print("serving", os.getpid())
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
