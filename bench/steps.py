"""Steps per second beside the floor: raw SQLite commits on the same disk in the same run.

    python bench/steps.py                 1, 50 and 500 tasks at the same time
    python bench/steps.py --tasks 50      only that many
    python bench/steps.py --json          one JSON object on standard output

A step is a Keyed call that does nothing: what is measured is the checkpoint before it, its
record after it, sealing, chain and replay bookkeeping. The floor is one insert of a row of the
same size per synced transaction. Rounds alternate, medians are printed; a noisy machine shows in
the spread, not in a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import apsw

import holdfast
from holdfast.journal.sqlite.db import open_db

ROW_BYTES = 600
FLOOR_COMMITS = 600
STEPS = {1: 1_000, 50: 60, 500: 12}


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False))
async def charge(call: holdfast.Call, card: str, cents: int) -> dict[str, object]:
    return {"id": f"ch_{cents}", "cents": cents}


@holdfast.task
async def many(run: holdfast.Run, steps: int) -> int:
    for cents in range(steps):
        await run.call(charge, card="tok_1", cents=cents)
    return steps


def floor(folder: Path) -> float:
    """Synced one-row commits per second, one after the other."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = open_db(str(folder / "floor.db"), flags=flags)
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "FULL")
    db.execute("CREATE TABLE row (n INTEGER PRIMARY KEY, body BLOB)")
    body = os.urandom(ROW_BYTES)
    began = time.perf_counter()
    for _ in range(FLOOR_COMMITS):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO row (body) VALUES (?)", (body,))
        db.execute("COMMIT")
    took = time.perf_counter() - began
    db.close()
    return FLOOR_COMMITS / took


async def measure(folder: Path, tasks: int, steps: int) -> dict[str, float]:
    """Steps per second, commits and bytes per step of this many tasks at the same time."""
    path = folder / "journal.db"
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
    done = tasks * steps
    return {
        "steps_per_s": done / took,
        "commits_per_step": commits / done,
        "bytes_per_step": (path.stat().st_size - before) / done,
    }


def run(tasks: list[int], rounds: int, folder: str | None) -> dict[str, Any]:
    floors: list[float] = []
    found: dict[int, list[dict[str, float]]] = {count: [] for count in tasks}
    for _ in range(rounds):
        for count in tasks:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                floors.append(floor(Path(name)))
                steps = STEPS.get(count, max(6_000 // count, 1))
                found[count].append(asyncio.run(measure(Path(name), count, steps)))
    base = statistics.median(floors)
    rows: list[dict[str, float]] = []
    for count in tasks:
        middle = {
            key: statistics.median(one[key] for one in found[count]) for key in found[count][0]
        }
        rates = [one["steps_per_s"] for one in found[count]]
        rows.append(
            {
                "tasks": count,
                **middle,
                "of_floor": middle["steps_per_s"] / base,
                "slowest": min(rates),
                "fastest": max(rates),
            }
        )
    one = next((row["steps_per_s"] for row in rows if row["tasks"] == 1), None)
    for row in rows:
        if one is not None:
            row["of_one_task"] = row["steps_per_s"] / one
    return {
        "floor_commits_per_s": base,
        "floor_spread": [min(floors), max(floors)],
        "rounds": rounds,
        "rows": rows,
        "sqlite": apsw.sqlite_lib_version(),
        "python": sys.version.split()[0],
    }


def table(result: dict[str, Any]) -> str:
    lines = [f"raw SQLite, one row per synced commit: {result['floor_commits_per_s']:,.0f} /s"]
    lines.append(
        f"{'tasks':>6} {'steps/s':>10} {'of floor':>9} {'of 1 task':>10} {'commits/step':>13} "
        f"{'bytes/step':>11}"
    )
    lines.extend(
        f"{row['tasks']:>6} {row['steps_per_s']:>10,.0f} {row['of_floor']:>9.2f} "
        f"{row.get('of_one_task', 0):>10.2f} {row['commits_per_step']:>13.2f} "
        f"{row['bytes_per_step']:>11,.0f}"
        for row in result["rows"]
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", type=int, action="append", help="this many at the same time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to measure (default: the temporary folder)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = run(args.tasks or [1, 50, 500], args.rounds, args.folder)
    Path("build").mkdir(exist_ok=True)
    Path("build/bench.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if args.json else table(result))


if __name__ == "__main__":
    main()
