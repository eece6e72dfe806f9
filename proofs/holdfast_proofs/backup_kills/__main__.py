"""`python -m holdfast_proofs.backup_kills`: backups, test restores and recoveries, killed at every call."""

from __future__ import annotations

import argparse
import json
import sys

from holdfast_proofs.backup_kills.trials import ACTS
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder, run_with_shim

MOMENTS = 20


def _run(given: argparse.Namespace) -> Result:
    acts: list[str] = given.act or list(ACTS)
    each = "" if given.points is None else str(max(1, -(-given.points // len(acts))))
    with fast_folder("kills") as folder:
        raw = run_with_shim("backup_kills.trials", str(folder), each, str(given.moments), given.at, *acts)
    figures = json.loads(raw)
    return Result(
        green=bool(figures["kills"]) and not figures["wrong"],
        figures=figures,
        findings=figures["wrong"],
        summary=f"{figures['kills']:,} kills of {', '.join(acts)}: {len(figures['wrong'])} wrong, "
        f"{figures['seconds']:.0f} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--points", type=at_least_one, metavar="N", help="of all acts together (default: all)")
    add(
        "--moments",
        type=at_least_one,
        default=MOMENTS,
        metavar="N",
        help=f"times, spread over each act, at which the backup engine is killed with it ({MOMENTS})",
    )
    add("--act", choices=ACTS, action="append", help="this act alone")
    add("--at", default="", metavar="N,...", help="before these calls alone")


PROOF = Proof(
    name="backup_kills",
    purpose="Kill backups, test restores, restores, prunes, first runs, recoveries and revocations at every call.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
