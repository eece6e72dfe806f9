"""The command line of the fuzzers."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from holdfast.errors import BadInput
from holdfast_proofs.fuzz.campaign import find_engine, run_campaign
from holdfast_proofs.fuzz.targets import TARGETS
from holdfast_proofs.fuzz.watch import Watch
from holdfast_proofs.runner import Proof, Result, at_least_one


def _run(given: argparse.Namespace) -> Result:
    if given.input is not None:
        return _run_one(given)
    report = run_campaign(
        given.target or TARGETS, runs=given.runs, seed=given.seed, engine=given.engine or find_engine(), each=_progress
    )
    shown = report.to_json()
    return Result(
        green=not report.findings,
        figures=shown,
        findings=[f"{one.target}: {one.kind}: {one.what} {one.where}\n    {one.command}" for one in report.findings],
        summary=f"{shown['executions']} executions of {len(report.targets)} borders in {shown['seconds']} "
        f"s by {report.engine} ({shown['executions_per_s']} per second), slowest "
        f"{shown['slowest_ms']} ms, at most {shown['memory_mib']} MiB: {len(report.findings)} findings",
    )


def _run_one(given: argparse.Namespace) -> Result:
    if not given.target or len(given.target) != 1:
        raise BadInput("--input goes with one --target")
    watch = Watch(TARGETS[given.target[0]])
    ended = str(watch.run(bytes.fromhex(given.input)))
    found = [f"{one.kind}: {one.what} at {one.where}" for one in watch.findings.values()]
    return Result(green=not found, figures={"ended": ended, "findings": found}, findings=found, summary=ended)


def _progress(found: dict[str, Any]) -> None:
    print(
        f"{found['target']:<12} {found['executions']:>8} executions in {found['seconds']:>6} s, "
        f"{found['accepted']} accepted, slowest {found['slowest_ms']} ms, "
        f"{found['memory_mib']} MiB",
        file=sys.stderr,
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--runs", type=at_least_one, default=1_000_000, help="executions in all (1000000)")
    add(
        "--target",
        action="append",
        choices=[*TARGETS],
        metavar="NAME",
        help=f"only this border, may be repeated: {', '.join(TARGETS)}",
    )
    add("--seed", type=int, default=0, help="of the mutations")
    add(
        "--engine",
        choices=("atheris", "mutations"),
        help="atheris follows the branches, where it is installed; else our own mutations",
    )
    add("--input", metavar="HEX", help="one input, as a finding shows it")


PROOF = Proof(
    name="fuzz", purpose="Give every border what no program sends on purpose.", add_options=_options, run=_run
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
