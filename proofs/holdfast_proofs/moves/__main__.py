"""`python -m holdfast_proofs.moves`: an agent's move to another host, killed before every call."""

from __future__ import annotations

import argparse
import sys

import msgspec

from holdfast_proofs.moves.trials import Figures
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder, run_with_shim


def _run(given: argparse.Namespace) -> Result:
    arbiter = "alone" if given.no_arbiter else "arbiter"
    with fast_folder("moves") as folder:
        raw = run_with_shim("moves.trials", str(folder), str(given.points), arbiter)
    figures = msgspec.json.decode(raw, type=Figures)
    return Result(
        green=figures.green,
        figures=figures,
        findings=figures.findings,
        summary=f"{figures.kills} kills over {figures.acts} calls: {figures.both} left both copies able to run, "
        f"{figures.neither_for_good} left none that the next command brought back, {figures.seconds:.0f} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--points", type=at_least_one, default=1_000_000, metavar="N", help="of each act (all)")
    parser.add_argument("--no-arbiter", action="store_true", help="the mark alone keeps the old copy from running")


PROOF = Proof(
    name="moves",
    purpose="Kill an agent's move to another host before each of its calls, and look who could run.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
