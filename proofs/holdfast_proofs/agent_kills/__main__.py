"""The command line: `python -m holdfast_proofs.agent_kills examples/travel`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import msgspec

from holdfast.testing.offline import set_up
from holdfast_proofs.agent_kills.judge import Figures
from holdfast_proofs.agent_kills.server import Choice, Order
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder, run_with_shim

_KILL = re.compile(r"(before|after):([0-9]{1,6})")


def sweep(example: Path, choice: Choice) -> Figures:
    """Run the trials of one example in programs of their own."""
    with fast_folder("agent") as folder, set_up(example, folder) as stage:
        order = msgspec.json.encode(Order(stage=stage, choice=choice))
        return msgspec.json.decode(run_with_shim("agent_kills.server", given=order), type=Figures)


def _run(given: argparse.Namespace) -> Result:
    figures = sweep(given.example, Choice(points=given.points, only=given.at, lanes=given.lanes))
    return Result(
        green=figures.green,
        figures=figures,
        findings=figures.findings,
        again=f"{given.example} --at SIDE:CALL",
        summary=f"{figures.example}: {figures.points:,} kills at "
        f"{figures.distinct:,} distinct points, {figures.resumed:,} resumed by another program; "
        f"{figures.duplicates} duplicates, {figures.lost} lost, {figures.parked} parked, "
        f"{figures.other_answers} other answers, {figures.other_files} other files, "
        f"{figures.torn_prompts} torn prompts, {figures.seconds:.0f} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("example", type=Path, help="the example's folder, such as examples/travel")
    add("--points", type=at_least_one, metavar="N", help="a sample of about N kills; default: all")
    add("--at", type=_kill, metavar="SIDE:CALL", help="one kill: after:147")
    add("--lanes", type=at_least_one, default=3, help="trials at a time (3)")


def _kill(text: str) -> tuple[str, int]:
    found = _KILL.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("such as after:147 or before:12")
    return found[1], int(found[2])


PROOF = Proof(
    name="agent_kills",
    purpose="Kill an example agent at every call, and compare what the resumed one left with an undisturbed run.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
