"""`python -m holdfast_proofs.relay_kills`: a relay's store, an agent's send and its intake, killed at every call."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from holdfast_proofs.relay_kills.agents import NAMES
from holdfast_proofs.relay_kills.faults import FAULTS
from holdfast_proofs.relay_kills.store import PARTS
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder, run_with_shim

ALL = (*PARTS, *NAMES)


def sweep(parts: Sequence[str], *, points: int = 0, fault: str = "") -> dict[str, Any]:  # Any: JSON
    """All trials of these parts, or so many of each way, in a process with the shim."""
    with fast_folder("relay") as folder:
        return json.loads(run_with_shim("relay_kills.trials", str(folder), str(points), fault, *parts))


def _run(given: argparse.Namespace) -> Result:
    reports = sweep(given.part or ALL, points=given.points or 0, fault=given.fault)
    wrong = [f"{name}: {finding}" for name, one in reports.items() for finding in one["wrong"]]
    trials = sum(sum(one["trials"].values()) for one in reports.values())
    unreached = sum(one["unreached"] for one in reports.values())
    return Result(
        green=trials > 0 and not wrong,
        figures=reports,
        findings=wrong,
        again=f"--part {next((name for name, one in reports.items() if one['wrong']), '')}",
        summary=f"{trials:,} kills, full disks, failed syncs and wrong clocks over {len(reports)} parts "
        f"({unreached} not reached), {len(wrong)} wrong",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=ALL, action="append", help="only these")
    parser.add_argument("--points", type=at_least_one, metavar="N", help="so many of each way (default: every call)")
    parser.add_argument("--fault", choices=FAULTS, default="", help="plant this fault: it must be found")


PROOF = Proof(
    name="relay_kills",
    purpose="Kill a relay's store, an agent's send and its intake at every call; full disks, wrong clocks.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
