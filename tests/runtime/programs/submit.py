"""Submits one request when told to: `submit.py JOURNAL`."""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def main(journal: str) -> None:
    async with holdfast.open(journal, serve=False) as hf:
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        handle = await hf.submit("greet", name="ada", request_id="order-1")
        print("task", handle.id)
        print("created", handle.created)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
