"""Resume after SIGKILL: how long until interrupted tasks move again, in a new process.

    python bench/resume.py --folder DIR --tasks 1000

Every task stands inside its second step when its process is killed; the next process has three
steps of each left to do. The clock starts when that process is started, so its own start counts.
The tool notes the moment of each call in a file of the process. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import holdfast
from holdfast.journal.records import TaskState

STEPS = 4
HELD_STEP = 1
WAIT_S = 120.0
KEYED = holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False)


def note(line: str) -> None:
    with Path(os.environ["BENCH_MOMENTS"]).open("a") as moments:
        moments.write(line)


@holdfast.tool(effect=KEYED)
async def charge(call: holdfast.Call, n: int, task: int) -> int:
    note(f"{time.clock_gettime(time.CLOCK_MONOTONIC)} {task} {n}\n")
    if n == HELD_STEP and os.environ["BENCH_HOLD"] == "1":
        await asyncio.sleep(WAIT_S)
    return n


@holdfast.task
async def several(run: holdfast.Run, task: int) -> int:
    for n in range(STEPS):
        await run.call(charge, n=n, task=task)
    return STEPS


async def serve(journal: Path, tasks: int) -> None:
    settings = holdfast.Settings(concurrency=max(tasks, 1))
    async with holdfast.open(journal, tasks=[several], settings=settings) as hf:
        if os.environ["BENCH_HOLD"] == "1":
            for task in range(tasks):
                await hf.submit(several, task=task)
            await asyncio.sleep(WAIT_S)
        while (await hf.journal.count_tasks()).get(TaskState.SUCCEEDED, 0) < tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def start(journal: Path, tasks: int, moments: Path, *, hold: bool) -> subprocess.Popen[bytes]:
    environment = os.environ | {"BENCH_MOMENTS": str(moments), "BENCH_HOLD": str(int(hold))}
    words = [sys.executable, __file__, "--serve", "--folder", str(journal), "--tasks", str(tasks)]
    return subprocess.Popen(words, env=environment)


def read_moments(path: Path) -> list[tuple[float, int, int]]:
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(float(moment), int(task), int(n)) for moment, task, n in rows]


def measure(folder: Path, tasks: int) -> dict[str, float]:
    journal, held, resumed = folder / "journal.db", folder / "held", folder / "resumed"
    first = start(journal, tasks, held, hold=True)
    until = time.monotonic() + WAIT_S
    while sum(n == HELD_STEP for _, _, n in read_moments(held)) < tasks:
        if first.poll() is not None or time.monotonic() > until:
            raise RuntimeError("the tasks did not come to where they are to be killed")
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    second = start(journal, tasks, resumed, hold=False)
    if second.wait(WAIT_S):
        raise RuntimeError("the resuming process failed")
    moments = read_moments(resumed)
    moved: dict[int, float] = {}
    for moment, task, _ in moments:
        moved.setdefault(task, moment)
    if len(moved) != tasks:
        raise RuntimeError(f"{len(moved)} of {tasks} tasks were resumed")
    return {
        "tasks": tasks,
        "first_step_s": min(moved.values()) - began,
        "all_moving_s": max(moved.values()) - began,
        "done_s": max(moment for moment, _, _ in moments) - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.folder, options.tasks))
    else:
        print(json.dumps(measure(options.folder, options.tasks)))


if __name__ == "__main__":
    main()
