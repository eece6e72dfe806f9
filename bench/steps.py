"""Steps per second beside the floor and beside peers, measured in one run.

    python bench/steps.py                       1, 50 and 500 tasks, then the rest
    python bench/steps.py --tasks 50            only that many, and only their rate
    python bench/steps.py --peers VENV          also the peers, interleaved (see peers/)
    python bench/steps.py --journal postgres    over a journal in PostgreSQL (see postgres.py)
    python bench/steps.py --json                one JSON object on standard output

Each measurement is a process of its own. In a round every subject has its turn at every size,
so that a noisy neighbour meets them all; medians are printed, and the spread is in the JSON. The
floor is one insert of a row of a step's size per synced transaction, on the same disk. A timing
never fails anything here: the figures are read by people.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from report import table

HERE = Path(__file__).parent
BUILD = Path("build")
SIZES = (1, 50, 500)
LIMIT_S = 300.0

Figures = dict[str, Any]  # Any: what a subject printed, numbers by name

OURS = "holdfast"
PEERS: dict[str, tuple[str, ...]] = {
    "dbos": ("dbos_steps.py",),
    "dbos, intent step": ("dbos_steps.py", "--intent"),
    "langgraph graph, sync": ("langgraph_steps.py", "--form", "graph"),
    "langgraph functional": ("langgraph_steps.py", "--form", "functional"),
}
# How many steps a task gets: as many with 50 tasks as with 500, so that the two differ in nothing else. A peer's
# measurement would then take many minutes; it gets enough that the start of its tasks counts for little.
STEPS = {OURS: {1: 2_000, 50: 200, 500: 200}}
PEER_STEPS = {1: 200, 50: 40, 500: 6}


def run_subject(words: Iterable[str], *, python: str = sys.executable) -> Figures:
    """One measurement in a process and a folder of its own."""
    with tempfile.TemporaryDirectory(dir=FOLDER[0]) as folder:
        # Compiled modules are kept, as they are where the package is installed.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            [python, *words, "--folder", folder], capture_output=True, timeout=LIMIT_S, text=True, env=environment
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


FOLDER: list[str | None] = [None]


def run_peer(words: tuple[str, ...], size: int, venv: str) -> Figures:
    script, *options = words
    steps = str(PEER_STEPS.get(size, max(300 // size, 1)))
    sized = [*options, "--tasks", str(size), "--steps", steps]
    return run_subject([str(HERE / "peers" / script), *sized], python=f"{venv}/bin/python")


def measure_rates(sizes: Iterable[int], rounds: int, peers: Path | None) -> Figures:
    floors: list[Figures] = []
    found: dict[tuple[str, int], list[Figures]] = {}
    for number in range(rounds):
        for size in sizes:
            say(f"round {number + 1} of {rounds}, {size} tasks")
            floors.append(run_subject([str(HERE / "floor.py")]))
            steps = str(STEPS[OURS].get(size, max(6_000 // size, 1)))
            words = [str(HERE / "subject.py"), "rate", "--tasks", str(size), "--steps", steps]
            found.setdefault((OURS, size), []).append(run_subject(words))
            for name, words in PEERS.items() if peers else ():
                one = run_peer(words, size, str(peers))
                found.setdefault((name, size), []).append(one)
    commits = statistics.median(one["commits_per_s"] for one in floors)
    rows = [_row(name, size, ones, commits) for (name, size), ones in found.items()]
    return {
        "floor_commits_per_s": commits,
        "floor_spread": _spread(one["commits_per_s"] for one in floors),
        "disk_syncs_per_s": statistics.median(one["syncs_per_s"] for one in floors),
        "rounds": rounds,
        "rates": rows,
    }


def _row(name: str, size: int, ones: list[Figures], floor: float) -> Figures:
    row: Figures = {"subject": name, "tasks": size}
    row |= {key: statistics.median(one[key] for one in ones) for key in ones[0]}
    row["of_floor"] = row["steps_per_s"] / floor
    row["spread"] = _spread(one["steps_per_s"] for one in ones)
    return row


def _spread(values: Iterable[float]) -> list[float]:
    found = list(values)
    return [min(found), max(found)]


def measure_import(times: int = 7) -> Figures:
    """What `import holdfast` adds to a bare start, and the start of the command line."""

    def start(*words: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    bare = min(start("-c", "pass") for _ in range(times))
    imported = min(start("-c", "import holdfast") for _ in range(times))
    helped = min(start("-m", "holdfast", "--help") for _ in range(times))
    return {"import_s": imported - bare, "help_s": helped, "bare_s": bare}


def measure_rest(rounds: int) -> Figures:
    say("one task of 10,000 steps")
    long = [run_subject([str(HERE / "subject.py"), "long", "--steps", "10001"]) for _ in range(rounds)]
    long.sort(key=lambda one: one["last_of_first"])
    resumes: list[Figures] = []
    for size in (1, 1_000):
        say(f"resume of {size}")
        ones = [run_subject([str(HERE / "resume.py"), "--tasks", str(size)]) for _ in range(rounds)]
        resumes.append({key: statistics.median(one[key] for one in ones) for key in ones[0]})
    memory: list[Figures] = []
    for size in (1, 500):
        say(f"memory of a worker with {size}")
        memory.append(run_subject([str(HERE / "memory.py"), "--tasks", str(size)]))
    say("500 sleepers, awaited; 1,000 tasks of 50 steps")
    idle = run_subject([str(HERE / "subject.py"), "idle", "--tasks", "500", "--steps", "1"])
    crowd = run_subject([str(HERE / "subject.py"), "rate", "--tasks", "1000", "--steps", "50"])
    return {
        "idle": idle,
        "crowd": crowd,
        "long": long[len(long) // 2],
        "resume": resumes,
        "memory": memory,
        "start": measure_import(),
    }


def measure_postgres(options: argparse.Namespace) -> None:
    import postgres  # only here: the driver is an extra

    sizes, rest = options.tasks or SIZES, not options.tasks
    peers: Path | None = options.peers
    result = postgres.measure(
        run_subject, say, sizes=sizes, rounds=options.rounds, rest=rest, waiting=options.waiting, peers=peers
    )
    say("")
    BUILD.mkdir(exist_ok=True)
    (BUILD / "bench-postgres.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if options.json else postgres.table(result))


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text} ...", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, action="append", help="this many at the same time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to measure (default: the temporary folder)")
    parser.add_argument("--peers", type=Path, help="the peers' venv (`make bench-peers` makes it)")
    parser.add_argument("--journal", choices=("file", "postgres"), default="file")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="postgres: tasks that wait while one is claimed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    FOLDER[0] = options.folder
    if options.journal == "postgres":
        measure_postgres(options)
        return
    began = time.monotonic()
    result = measure_rates(options.tasks or SIZES, options.rounds, options.peers)
    if not options.tasks:
        result |= measure_rest(options.rounds)
    result |= {
        "seconds": round(time.monotonic() - began, 1),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    say("")
    BUILD.mkdir(exist_ok=True)
    (BUILD / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if options.json else table(result))
    if options.peers:
        plot = [str(options.peers / "bin" / "python"), str(HERE / "peers" / "plot.py")]
        subprocess.run([*plot, str(BUILD / "bench.json"), str(BUILD / "bench.png")], check=True)


if __name__ == "__main__":
    main()
