"""`python -m holdfast_proofs.identity_kills`: every act of an identity's life, cut short at every call."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from holdfast_proofs.identity_kills.lives import LIVES
from holdfast_proofs.runner import BUILD, Proof, Result, at_least_one, fast_folder, run_with_shim
from holdfast_proofs.shim import build


def sweep(life: str, *, points: int = 0) -> dict[str, Any]:  # Any: JSON
    """All trials of a life, or so many of each kind, in a process with the shim."""
    library = build(BUILD / "shim")
    with fast_folder("identity") as folder:
        return json.loads(run_with_shim("identity_kills.trials", life, str(folder), str(points), library=library))


def _run(given: argparse.Namespace) -> Result:
    reports: list[dict[str, Any]] = []
    for life in given.life or LIVES:
        reports.append(sweep(life, points=given.points or 0))
        print(f"{life}: {reports[-1]['calls']} calls, trials {reports[-1]['trials']}", file=sys.stderr, flush=True)
    wrong = [f"{one['life']}: {finding}" for one in reports for finding in one["wrong"]]
    trials = sum(sum(one["trials"].values()) for one in reports)
    return Result(
        green=trials > 0 and not wrong,
        figures=reports,
        findings=wrong,
        summary=f"{trials:,} kills and failures over {len(reports)} acts, {len(wrong)} wrong",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--life", choices=tuple(LIVES), action="append", help="only these")
    parser.add_argument("--points", type=at_least_one, help="so many points of each kind")


PROOF = Proof(
    name="identity_kills",
    purpose="Kill and fail every act of an identity's life at every call.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
