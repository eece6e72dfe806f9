"""The app of the fleet: a task of three steps that do nothing; a measured one notes when its code began."""

from __future__ import annotations

import os
import time

import holdfast

BEGUN = "FLEET_BEGUN"  # names the file
_BEGUN = os.open(os.environ.get(BEGUN, os.devnull), os.O_WRONLY | os.O_APPEND)


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True))
async def nothing(call: holdfast.Call, number: int) -> int:
    return number


@holdfast.task
async def work(run: holdfast.Run, sample: str) -> int:
    if sample:  # not what a task should do: a second run of it notes a second line, and the first one counts
        os.write(_BEGUN, f"{sample} {time.monotonic_ns()}\n".encode())
    return sum([await run.call(nothing, number=number) for number in range(3)])


tasks = [work]
