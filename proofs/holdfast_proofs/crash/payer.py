"""A program that pays once and stays: started with FOLDER and URL it says "paid", then waits."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import holdfast

SETTINGS = holdfast.Settings(pace=0.05, check_after_crash=False)


@holdfast.tool(http_only=True)
async def pay(call: holdfast.Call, url: str, cents: int) -> str:
    return (await call.http.post(f"{url}/effects", json={"cents": cents})).json()["id"]


@holdfast.task
async def order(run: holdfast.Run, url: str) -> str:
    return await run.call(pay, url=url, cents=4_200)


async def submit(folder: Path, url: str) -> None:
    """Accept the order and pay nothing yet."""
    async with holdfast.open(folder / "journal.db", tasks=[order], serve=False) as hf:
        await hf.submit(order, request_id="order-1", url=url)


async def work(folder: Path, url: str) -> str:
    """Bring the order to its end; "parked" where a person is needed."""
    async with holdfast.open(folder / "journal.db", tasks=[order], settings=SETTINGS) as hf:
        task = await hf.submit(order, request_id="order-1", url=url)
        try:
            await task.result(timeout_s=20)
        except holdfast.TaskParked:
            return "parked"
        return "paid"


async def pay_and_stay(folder: Path, url: str) -> None:
    async with holdfast.open(folder / "journal.db", tasks=[order], settings=SETTINGS) as hf:
        task = await hf.submit(order, request_id="order-1", url=url)
        await task.result()
        sys.stdout.write("paid\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(pay_and_stay(Path(sys.argv[1]), sys.argv[2]))
