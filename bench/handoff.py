"""What keeping the hand-off costs: steps per second in an agent's folder, beside a bare journal.

    python bench/handoff.py [--rounds 3] [--json]

The same work in turn in both folders, in a process of its own each time; the ratio is that of the
medians. In the agent's folder handoff.md and HEARTBEAT.md follow the journal all the while.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SUBJECT = Path(__file__).with_name("subject.py")
STEPS = 20_000  # in all
TASKS = (1, 50)


def rate(tasks: int, *, agent: bool) -> float:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        if agent:
            (Path(folder) / "holdfast.toml").write_text('agent = "ada"\n')
        done = subprocess.run(
            [
                sys.executable,
                SUBJECT,
                "rate",
                "--folder",
                folder,
                "--tasks",
                str(tasks),
                "--steps",
                str(STEPS // tasks),
            ],
            stdout=subprocess.PIPE,
            check=True,
        )
        if agent and not (Path(folder) / "handoff.md").exists():
            raise SystemExit("no hand-off was kept: there is nothing to measure")
    return json.loads(done.stdout)["steps_per_s"]


def measure(tasks: int, rounds: int) -> dict[str, float]:
    bare, kept = list[float](), list[float]()
    for _ in range(rounds):
        bare.append(rate(tasks, agent=False))
        kept.append(rate(tasks, agent=True))
    middle, other = statistics.median(bare), statistics.median(kept)
    return {"tasks": tasks, "bare": middle, "kept": other, "ratio": other / middle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [measure(tasks, options.rounds) for tasks in TASKS]
    if options.json:
        print(json.dumps(found))
        return
    for one in found:
        print(
            f"{one['tasks']:>3.0f} tasks: {one['bare']:,.0f} steps/s without, "
            f"{one['kept']:,.0f} with the hand-off kept: {one['ratio']:.2f}"
        )


if __name__ == "__main__":
    main()
