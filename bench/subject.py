"""What is measured of Holdfast: steps that do nothing, in a process of their own.

    python bench/subject.py rate --folder DIR --tasks 50 --steps 200
    python bench/subject.py long --folder DIR --steps 10000

A step is a Keyed call that does nothing: what is measured is the checkpoint before it, its
record after it, sealing, chain and replay bookkeeping. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from pathlib import Path

import holdfast

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)
_marks: list[float] = []  # the moment of every thousandth step


@holdfast.tool(effect=KEYED)
async def charge(call: holdfast.Call, card: str, cents: int) -> dict[str, object]:
    if cents % 1_000 == 0:
        _marks.append(time.perf_counter())
    return {"id": f"ch_{cents}", "cents": cents}


@holdfast.task
async def many(run: holdfast.Run, steps: int) -> int:
    for cents in range(steps):
        await run.call(charge, card="tok_1", cents=cents)
    return steps


async def perform(path: Path, tasks: int, steps: int) -> tuple[float, float, int]:
    """Seconds from opening the journal to the last result; synced commits and bytes added."""
    settings = holdfast.Settings(concurrency=max(tasks, 1))
    async with holdfast.open(path, tasks=[many], settings=settings, serve=False) as hf:
        handles = [await hf.submit(many, steps=steps) for _ in range(tasks)]
    before = path.stat().st_size
    began = time.perf_counter()
    async with holdfast.open(path, tasks=[many], settings=settings) as hf:
        for handle in handles:
            await hf.task(handle.id).result()
        took = time.perf_counter() - began
        commits = float(getattr(hf.journal, "commits", 0))
    return took, commits, path.stat().st_size - before


async def measure_rate(folder: Path, tasks: int, steps: int) -> dict[str, float]:
    await perform(folder / "warm.db", 1, 3)
    took, commits, added = await perform(folder / "journal.db", tasks, steps)
    done = tasks * steps
    return {"steps_per_s": done / took, "commits_per_step": commits / done, "bytes_per_step": added / done}


async def measure_long(folder: Path, steps: int) -> dict[str, object]:
    """The pace of one long task, thousand by thousand."""
    await perform(folder / "journal.db", 1, steps)
    paces = [1_000 / (after - before) for before, after in itertools.pairwise(_marks)]
    return {"steps": steps, "by_thousand": paces, "last_of_first": paces[-1] / paces[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rate", "long"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    if options.what == "rate":
        found = asyncio.run(measure_rate(options.folder, options.tasks, options.steps))
        print(json.dumps(found))
    else:
        print(json.dumps(asyncio.run(measure_long(options.folder, options.steps))))


if __name__ == "__main__":
    main()
