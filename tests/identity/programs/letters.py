"""An app that posts letters, one after the other, to the far end of its environment."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import holdfast
from holdfast.host.log import Log

PAUSE_S = 0.1
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True, max_delay_s=0)


@holdfast.tool(effect=holdfast.Unrepeatable(), http_only=True)
async def post(call: holdfast.Call, number: int) -> Any:  # Any: JSON of the far end
    return await _post(call, number)


@holdfast.tool(effect=KEYED, http_only=True)
async def post_keyed(call: holdfast.Call, number: int) -> Any:  # Any: JSON of the far end
    return await _post(call, number)


async def _post(call: holdfast.Call, number: int) -> Any:
    url = os.environ["LETTERS_URL"]
    return (await call.http.post(f"{url}/effects", json={"letter": number})).json()


@holdfast.task
async def post_letters(run: holdfast.Run, count: int, keyed: bool = False) -> int:
    for number in range(count):
        await run.call(post_keyed if keyed else post, number=number)
        await run.sleep(PAUSE_S)
    return count


tasks = [post_letters]


async def main(journal: str) -> None:
    async with holdfast.open(journal, tasks=tasks, log=Log.to_stderr()):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
