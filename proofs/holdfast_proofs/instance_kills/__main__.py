"""`python -m holdfast_proofs.instance_kills`: each command of `holdfast instance`, killed before every call."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

import msgspec

from holdfast_proofs.instance_kills.trials import ACTS, SHARED_ACTS, Figures
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder, run_with_shim
from holdfast_proofs.support.postgres import find_oldest, started


def _run(given: argparse.Namespace) -> Result:
    with fast_folder("instances") as folder, started(find_oldest()) if given.shared else nullcontext() as server:
        url = "" if server is None else f"{server.url()}&schema=instances"
        acts = given.act or (SHARED_ACTS if given.shared else ACTS)
        words = (str(folder), str(given.points), str(given.at or 0), url, *acts)
        figures = msgspec.json.decode(run_with_shim("instance_kills.trials", *words), type=Figures)
    return Result(
        green=figures.green,
        figures=figures,
        findings=figures.findings,
        summary=f"{figures.kills} kills over {figures.acts} calls: {figures.both} left two folders able to act, "
        f"{figures.unfinished} were not finished by the same command, {figures.seconds:.0f} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--points", type=at_least_one, default=1_000_000, metavar="N", help="of each act (all)")
    parser.add_argument("--act", action="append", choices=ACTS, help="this one only; repeatable")
    parser.add_argument("--shared", action="store_true", help="the instances share a journal in PostgreSQL")
    parser.add_argument("--at", type=at_least_one, metavar="N", help="repeat one kill: before this call")


PROOF = Proof(
    name="instance_kills",
    purpose="Kill each command of `holdfast instance` before each of its calls, and look who could act.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
