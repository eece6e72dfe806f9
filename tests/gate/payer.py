"""A task with a gate, and a worker that serves it until it is killed: `payer.py JOURNAL`."""

from __future__ import annotations

import asyncio
import sys

import holdfast
from holdfast.testing.lab import fast

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False, max_delay_s=0)
SERVES = __name__ == "__main__"


@holdfast.tool(effect=KEYED)
async def charge(call: holdfast.Call, cents: int) -> int:
    if SERVES and call.ordinal == "3":
        print("charging", call.task_id)
        await asyncio.Event().wait()
    return cents


GATE = holdfast.Gate(allow=[charge], limits={charge: holdfast.Limit(argument="cents", per_task=100, calls=3)})


@holdfast.task(gate=GATE)
async def pay(run: holdfast.Run, amounts: list[int]) -> list[object]:
    told: list[object] = []
    for cents in amounts:
        try:
            told.append(await run.call(charge, cents=cents))
        except holdfast.GateRefused as error:
            told.append(error.rule)
    return told


tasks = [pay]


async def main(journal: str) -> None:
    async with holdfast.open(journal, tasks=[pay], settings=fast()):
        await asyncio.Event().wait()


if SERVES:
    asyncio.run(main(sys.argv[1]))
