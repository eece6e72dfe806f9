"""The command line: `python -m holdfast_proofs.agent_kills examples/travel`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast_proofs.agent_kills.judge import Figures
from holdfast_proofs.agent_kills.server import Choice, Order
from holdfast_proofs.agent_kills.stage import set_up
from holdfast_proofs.shim import build, preloaded
from holdfast_proofs.support.options import at_least_one

BUILD = Path("build")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
_KILL = re.compile(r"(before|after):([0-9]{1,6})")


class SweepFailed(HoldfastError):
    """The fork server ended without figures."""

    code = "agent-sweep-failed"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    try:
        order = Choice(points=given.points, only=given.at, lanes=given.lanes)
        figures = sweep(given.example, order)
    except HoldfastError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 2
    raw = msgspec.json.format(msgspec.json.encode(figures), indent=1)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_bytes(raw + b"\n")
    print(raw.decode() if given.json else _shown(figures, given.example))
    return 0 if figures.green else 1


def sweep(example: Path, choice: Choice) -> Figures:
    """Run the trials of one example in programs of their own."""
    library = build(BUILD / "shim")
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-agent-", dir=memory) as folder,
        set_up(example, Path(folder)) as stage,
    ):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast_proofs.agent_kills.server"],
            env=os.environ | preloaded(library),
            input=msgspec.json.encode(Order(stage=stage, choice=choice)),
            stdout=subprocess.PIPE,
        )
    if done.returncode:
        raise SweepFailed(f"{example}: the fork server ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=Figures)


def _shown(figures: Figures, example: Path) -> str:
    lines = [f"  {finding}" for finding in figures.findings]
    if figures.findings:
        lines.append(f"  again: python -m holdfast_proofs.agent_kills {example} --at SIDE:CALL")
    lines.append(
        f"{'green' if figures.green else 'RED'}: {figures.example}: {figures.points:,} kills at "
        f"{figures.distinct:,} distinct points, {figures.resumed:,} resumed by another program; "
        f"{figures.duplicates} duplicates, {figures.lost} lost, {figures.parked} parked, "
        f"{figures.other_answers} other answers, {figures.other_files} other files, "
        f"{figures.torn_prompts} torn prompts, {figures.seconds:.0f} s"
    )
    return "\n".join(lines)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_proofs.agent_kills",
        description="Kill an example agent at every call it makes, and compare what the resumed "
        "one left with an undisturbed run.",
    )
    parser.add_argument("example", type=Path, help="the example's folder, such as examples/travel")
    parser.add_argument("--points", type=at_least_one, metavar="N", help="a sample of about N kills; default: all")
    parser.add_argument("--at", type=_kill, metavar="SIDE:CALL", help="one kill: after:147")
    parser.add_argument("--lanes", type=at_least_one, default=3, help="trials at a time (3)")
    parser.add_argument("--report", type=Path, default=BUILD / "agent-kills.json", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)


def _kill(text: str) -> tuple[str, int]:
    found = _KILL.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError("such as after:147 or before:12")
    return found[1], int(found[2])


if __name__ == "__main__":
    sys.exit(main())
