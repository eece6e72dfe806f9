"""Memory of a worker that holds so many tasks, each inside a call.

    python bench/memory.py --folder DIR --tasks 500

Starts `holdfast worker` and reads the resident set of its worker process and of the parent that
watches over it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import holdfast

WAIT_S = 60.0
APP = """
import asyncio
import holdfast

@holdfast.tool(effect=holdfast.Read())
async def hang(call):
    await asyncio.sleep(3600)

@holdfast.task
async def idle(run):
    await run.call(hang)

tasks = [idle]
"""


async def submit(journal: Path, tasks: int) -> None:
    async with holdfast.open(journal, serve=False) as hf:
        for _ in range(tasks):
            await hf.submit("idle")


def resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"process {pid} has no resident set")
    return int(found[1]) / 1024


def child_of(pid: int) -> int:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not words:
        raise RuntimeError("the worker process is not running")
    return int(words[0])


def measure(folder: Path, tasks: int) -> dict[str, float]:
    (folder / "app.py").write_text(APP)
    journal = folder / "journal.db"
    asyncio.run(submit(journal, tasks))
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "holdfast",
            "worker",
            "app.py:tasks",
            "--journal",
            str(journal),
            "--concurrency",
            str(tasks),
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + WAIT_S
        while not _all_inside(journal, tasks):
            if worker.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the worker did not take all tasks")
            time.sleep(0.5)
        child = child_of(worker.pid)
        return {"tasks": tasks, "worker_mib": resident_mib(child), "parent_mib": resident_mib(worker.pid)}
    finally:
        worker.terminate()
        worker.wait(WAIT_S)


def _all_inside(journal: Path, tasks: int) -> bool:
    listed = subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast",
            "task",
            "list",
            "--journal",
            str(journal),
            "--state",
            "running",
            "--limit",
            str(tasks + 1),
            "--json",
        ],
        capture_output=True,
        check=True,
    ).stdout
    rows = json.loads(listed)["tasks"]
    return sum(row.get("records", 0) >= 3 for row in rows) >= tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(measure(options.folder, options.tasks)))


if __name__ == "__main__":
    main()
