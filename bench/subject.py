"""What is measured of Holdfast: steps that do nothing, in a process of their own.

    python bench/subject.py rate --folder DIR --tasks 50 --steps 200
    python bench/subject.py long --folder DIR --steps 10000
    python bench/subject.py idle --folder DIR --tasks 500 --steps 1

A step is a Keyed call that does nothing, with arguments as a real one has them: nested, a few hundred bytes. What is
measured is the checkpoint before it, its record after it, sealing, chain and replay bookkeeping, and the handles, which
are all awaited at once. `idle` gives the share of a core that tasks cost which sleep and are awaited. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import time
from pathlib import Path

import holdfast
from holdfast.core.journal_address import JournalAddress, file_at
from holdfast.journal.records import TaskState

KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)
IDLE_S = 5.0
ORDER: dict[str, object] = {  # what a payment carries beside card and amount
    "customer": {"id": "cus_8f2k1", "name": "Ada Example", "address": {"street": "Long Road 12", "city": "Leiden"}},
    "lines": [{"article": f"A-{number}", "text": "one year of storage", "cents": 1_200} for number in range(3)],
    "reason": "renewal of the yearly plan, asked for by the customer",
}
_marks: list[float] = []  # the moment of every thousandth step


@holdfast.tool(effect=KEYED)
async def charge(call: holdfast.Call, card: str, cents: int, order: dict[str, object]) -> dict[str, object]:
    if cents % 1_000 == 0:
        _marks.append(time.perf_counter())
    return {"id": f"ch_{cents}", "cents": cents}


@holdfast.task
async def many(run: holdfast.Run, steps: int) -> int:
    for cents in range(steps):
        await run.call(charge, card="tok_1", cents=cents, order=ORDER)
    return steps


@holdfast.task
async def sleepy(run: holdfast.Run) -> None:
    await run.sleep(3_600)


async def perform(where: JournalAddress, tasks: int, steps: int) -> tuple[float, float, int]:
    """Seconds from opening the journal to the last result; synced commits and bytes added to a file. On a server they
    are counted from when it is open, as the peers' are."""
    settings = holdfast.Settings(concurrency=max(tasks, 1))
    async with holdfast.open(where, tasks=[many], settings=settings, serve=False) as hf:
        handles = [await hf.submit(many, steps=steps) for _ in range(tasks)]
    before = _size(where)
    began = time.perf_counter()
    async with holdfast.open(where, tasks=[many], settings=settings) as hf:
        began = time.perf_counter() if where.url else began
        await asyncio.gather(*(hf.task(handle.id).result() for handle in handles))
        took = time.perf_counter() - began
        commits = float(getattr(hf.journal, "commits", 0))
    return took, commits, _size(where) - before


def _size(where: JournalAddress) -> int:
    return 0 if where.url else where.path.stat().st_size


async def measure_rate(folder: Path, tasks: int, steps: int, url: str = "") -> dict[str, float]:
    await perform(file_at(folder / "warm.db"), 1, 3)
    where = file_at(folder / "journal.db")
    if url:
        own = folder / "host"
        own.mkdir(mode=0o700)
        where = JournalAddress(folder=own, url=url)
    took, commits, added = await perform(where, tasks, steps)
    done = tasks * steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sizes = {"bytes_per_step": added / done, "peak_mib": peak}
    return {"steps_per_s": done / took, "commits_per_step": commits / done, **sizes}


async def measure_idle(folder: Path, tasks: int) -> dict[str, float]:
    """The share of a core that so many awaited sleepers take."""
    settings = holdfast.Settings(concurrency=max(tasks, 1))
    async with holdfast.open(folder / "journal.db", tasks=[sleepy], settings=settings) as hf:
        handles = await asyncio.gather(*(hf.submit(sleepy) for _ in range(tasks)))
        waiting = [asyncio.create_task(handle.result()) for handle in handles]
        while (await hf.journal.count_tasks()).get(TaskState.SLEEPING, 0) < tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(IDLE_S)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
    return {"tasks": tasks, "share_of_a_core": share}


async def measure_long(folder: Path, steps: int) -> dict[str, object]:
    """The pace of one long task, thousand by thousand."""
    await perform(file_at(folder / "journal.db"), 1, steps)
    paces = [1_000 / (after - before) for before, after in itertools.pairwise(_marks)]
    return {"steps": steps, "by_thousand": paces, "last_of_first": paces[-1] / paces[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rate", "long", "idle"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--journal", default="", metavar="URL", help="rate: a journal there instead of a file")
    options = parser.parse_args()
    if options.what == "rate":
        found = asyncio.run(measure_rate(options.folder, options.tasks, options.steps, options.journal))
        print(json.dumps(found))
    elif options.what == "idle":
        print(json.dumps(asyncio.run(measure_idle(options.folder, options.tasks))))
    else:
        print(json.dumps(asyncio.run(measure_long(options.folder, options.steps))))


if __name__ == "__main__":
    main()
