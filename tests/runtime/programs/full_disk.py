"""Fills the small disk that its journal lies on, and makes room again: `full_disk.py FOLDER`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.step import StepState
from holdfast.errors import JournalFull
from holdfast.journal.records import TaskState
from holdfast.testing.lab import Scripted, after, fast, wait_state, wait_step, wait_until

TASKS = 8


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            for size in (65_536, 512):
                while file.write(bytes(size)):
                    pass
        except OSError:
            while True:
                try:
                    file.write(bytes(64))
                except OSError:
                    return


async def under_way(tool: Scripted) -> bool:
    return len(tool.calls) == TASKS


async def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    gate = asyncio.Event()
    first = Scripted(holdfast.Unrepeatable(), after(gate, "x" * 2_000), name="first")
    second = Scripted(holdfast.Unrepeatable(), "sent", name="second")

    @holdfast.task
    async def two(run: holdfast.Run) -> Any:
        await run.call(first.tool)
        return await run.call(second.tool)

    async with holdfast.open(folder / "journal.db", tasks=[two], settings=fast()) as hf:
        handles = [await hf.submit(two) for _ in range(TASKS)]
        await wait_until(lambda: under_way(first))
        fill(folder / "filler")
        gate.set()  # all calls that were under way come back at once
        for handle in handles:
            await wait_step(handle, "1", StepState.SUCCEEDED, timeout_s=20)
        found["recorded"] = len(handles)
        try:
            for _ in range(2_000):
                await hf.submit(two)
        except JournalFull as error:
            found["submit"] = [error.code, bool(error.hint)]
        await asyncio.sleep(0.5)
        found["sent while full"] = len(second.calls)
        found["states"] = sorted({(await handle.state()).value for handle in handles})
        (folder / "filler").unlink()
        began = time.monotonic()
        for handle in handles:
            await wait_state(handle, TaskState.SUCCEEDED, timeout_s=20)
        found["within 5 s"] = time.monotonic() - began < 5
        found["calls"] = [len(first.calls) >= TASKS, len(set(first.keys)) == len(first.calls)]
        found["damage"] = [finding async for finding in hf.journal.check()]
    print("found", json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
