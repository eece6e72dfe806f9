"""A script whose blocking tool is its own: `blocking_main.py JOURNAL`."""

from __future__ import annotations

import asyncio
import os
import sys

import holdfast
from holdfast.testing.lab import fast


@holdfast.tool
def send() -> int:
    return os.getpid()


@holdfast.task
async def once(run: holdfast.Run) -> int:
    return await run.call(send)


async def main(journal: str) -> None:
    print("main runs")
    async with holdfast.open(journal, tasks=[once], settings=fast()) as hf:
        print("pids", os.getpid(), await (await hf.submit(once)).result(20))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
