"""Stores a large scratch file in a journal whose disk fills up: `scratch_full.py DISK FILES`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.step import StepState
from holdfast.testing.lab import Scripted, after, fast, wait_step, wait_until

LARGE_BYTES = 32 << 20
FILLER_BYTES = 28 << 20


async def main(disk: Path, files: Path) -> None:
    found: dict[str, Any] = {}
    gate = asyncio.Event()
    under_way = Scripted(holdfast.Unrepeatable(), after(gate, "x" * 1_000), name="under_way")
    sent = Scripted(holdfast.Unrepeatable(), "sent", name="sent")
    full = 0

    @holdfast.task
    async def other(run: holdfast.Run) -> Any:
        return await run.call(under_way.tool)

    @holdfast.task
    async def work(run: holdfast.Run) -> str:
        large = run.scratch.path / "large"
        for _ in range(LARGE_BYTES >> 20):
            with large.open("ab") as file:
                file.write(os.urandom(1 << 20))
        await run.call(sent.tool)
        return hashlib.sha256(large.read_bytes()).hexdigest()

    class Heard(holdfast.Log):
        def event(self, event: str, **fields: Any) -> None:
            nonlocal full
            full += fields.get("code") == "journal-full"

    settings = fast(scratch_folder=str(files))
    (disk / "filler").write_bytes(bytes(FILLER_BYTES))
    async with holdfast.open(disk / "journal.db", tasks=[other, work], settings=settings, log=Heard()) as hf:
        others = [await hf.submit(other) for _ in range(5)]
        for handle in others:
            await wait_step(handle, "1", StepState.STARTED)
        handle = await hf.submit(work)

        async def is_full() -> bool:
            return full > 0

        await wait_until(is_full)
        gate.set()
        recorded = [await wait_step(one, "1", StepState.SUCCEEDED, timeout_s=10) for one in others]
        found["recorded while full"] = len(recorded)
        found["sent while full"] = len(sent.calls)
        (disk / "filler").unlink()
        digest = await handle.result(30)
        files_of = (await handle.view()).files
        assert files_of is not None
        shown = await _digest(hf, files_of.newest)
        found["same bytes"] = shown == digest
        found["damage"] = [finding async for finding in hf.journal.check()]
    print("found", json.dumps(found))


async def _digest(hf: holdfast.Holdfast, manifest: str) -> str:
    from holdfast.runtime.scratch.store import load_manifest

    kept = (await load_manifest(hf.journal, manifest)).files[0]
    whole = hashlib.sha256()
    for chunk in kept.chunks:
        whole.update(await hf.journal.get_blob(chunk))
    return whole.hexdigest()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
