"""`python -m holdfast_proofs`: every proof at its full size, one after the other; `make proofs`.

Writes one table, build/proofs.md: what was run, how it ended, its closing line, its time. A proof
that is red does not stop the others. Hours on two cores; the options choose and shorten.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BUILD = Path("build")
# In order: what finds the most in the least time comes first. The name is that of the make target.
PROOFS: dict[str, tuple[str, ...]] = {
    "explore": ("explore",),
    "simulate": ("simulate", "--seeds", "10000"),
    "identities": ("identity_schedules", "--schedules", "100000"),
    "crash": ("crash",),
    "agent-kills": ("agent_kills", "examples/travel"),
    "agent-kills-research": ("agent_kills", "examples/research"),
    "handoff-kills": ("handoff_kills", "--points", "200"),
    "identity-kills": ("identity_kills",),
    "backup-kills": ("backup_kills",),
    "backup-flips": ("backup_flips",),
    "moves": ("moves",),
    "moves-alone": ("moves", "--no-arbiter"),
    "instance-kills": ("instance_kills",),
    "instance-kills-shared": ("instance_kills", "--shared"),
    "twin-recoveries": ("twin_recoveries",),
    "relay-kills": ("relay_kills",),
    "relay-evictions": ("relay_evictions",),
    "relay-idle": ("relay_idle",),
    "drills": ("drills",),
    "level-walk": ("level_walk",),
    "escapes": ("shadow_escapes",),
    "drill-reports": ("drill_reports",),
    "far-drill": ("far_drill",),
    "drill-kills": ("drill_kills", "--kills", "100"),
    "drill-load": ("drill_load", "--rounds", "50"),
    "rewind": ("rewind", "--cases", "200"),
    "decisions": ("decision_races",),
    "merges": ("merges",),
    "merges-traps": ("merges", "--self-test"),
    "memory-edits": ("memory_edits", "--edits", "10000"),
    "memory-edits-instances": ("memory_edits", "--edits", "10000", "--instances", "3"),
    "instance-folders": ("instance_worlds.folders",),
    "instance-folders-faults": ("instance_worlds.folders", "--self-test"),
    "merge-kills": ("merges.kills",),
    "soak": ("soak",),
    "relay-soak": ("relay_lab",),
    "relay-restores": ("relay_lab.restores",),
    "relay-liars": ("relay_lab.liars",),
    "failovers": ("failovers",),
    "region-loss": ("failovers.regions",),
    "breaks": ("failovers.breaks",),
    "takeovers": ("takeovers", "--partitions", "70", "--default-timers", "20", "--promotes", "20", "--self-test"),
    "instances": ("instance_worlds",),
    "instances-traps": ("instance_worlds", "--self-test"),
    "fleet": ("fleet",),
    "reproduce": ("reproduce",),
    "fuzz": ("fuzz",),
    "defences": ("mutants", "--defences"),
    "mutants": ("mutants",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast_proofs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(PROOFS)}")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(PROOFS))
    if unknown:
        parser.error(f"no proof is called {', '.join(unknown)}")
    rows: list[str] = []
    red = 0
    for name in given.names or PROOFS:
        row, code = _run(name)
        red += code != 0
        rows.append(row)
        _write(rows)
    print(f"{len(rows) - red} of {len(rows)} proofs are green; {BUILD / 'proofs.md'} holds the table")
    return 1 if red else 0


def _run(name: str) -> tuple[str, int]:
    module, *words = PROOFS[name]
    command = ["-m", f"holdfast_proofs.{module}", *words]
    print(f"{name}: python {' '.join(command)}", flush=True)
    began = time.monotonic()
    report = ["--report", str(BUILD / f"{name}.json")]
    done = subprocess.run([sys.executable, *command, *report], stdout=subprocess.PIPE, text=True)
    sys.stdout.write(done.stdout)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1].replace("|", "\\|")
    ended = {0: "green", 1: "RED"}.get(done.returncode, f"did not run (exit {done.returncode})")
    return f"| {name} | `python {' '.join(command)}` | {ended} | {last} | {time.monotonic() - began:.0f} s |", (
        done.returncode
    )


def _write(rows: Sequence[str]) -> None:
    BUILD.mkdir(exist_ok=True)
    head = ["# Proofs", "", "| Proof | Command | Result | Closing line | Time |", "|---|---|---|---|---|"]
    (BUILD / "proofs.md").write_text("\n".join([*head, *rows]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
