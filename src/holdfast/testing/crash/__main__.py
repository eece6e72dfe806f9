"""`python -m holdfast.testing.crash`: kill a task at every call it makes, and count.

Sweeps the chosen effect classes, two at a time, then zombies and races; prints a table and leaves
every figure in build/crash.json. Ends with 1 where anything is red.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from holdfast.testing.crash.jobs import Job, Pairs, Races, Sweep, Zombies, run_job
from holdfast.testing.crash.report import Figures, table
from holdfast.testing.crash.subjects import CLASSES, ClassName
from holdfast.testing.shim import build

BUILD = Path("build")
AT_ONCE = 2

# Stopped programs by class: with the timer everywhere, without it where no timer is needed.
ZOMBIES = 8
RACES = 15
PAIRS = 100


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What build/crash.json holds."""

    green: bool
    seconds: float
    sweeps: list[Figures]
    zombies: list[Figures]
    pairs: list[Figures]
    races: list[Figures]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    began = time.monotonic()
    library = build(BUILD / "shim")
    classes: list[ClassName] = options.classes or list(CLASSES)
    report = _run(classes, options.points, library, say=not options.json, began=began)
    _write(report, options.json)
    return 0 if report.green else 1


def _run(
    classes: Sequence[ClassName], points: int | None, library: Path, *, say: bool, began: float
) -> Report:
    sweeps = _all([Sweep(name=name, points=points) for name in classes], library)
    if say:
        _show("Killed at every call, then resumed", sweeps)
    sample = points is not None
    pairs = _all([Pairs(name=name, count=2 if sample else PAIRS) for name in classes], library)
    if say:
        _show("Killed, resumed, killed again, resumed", pairs)
    zombies = _all(_zombies(classes, sample=sample), library)
    if say:
        _show("Stopped, overtaken, woken (with and without the dead-man timer)", zombies)
    races = _all(_races(classes, sample=sample), library)
    if say:
        _show("Two to sixteen resumers of one orphan", races)
    return Report(
        green=all(one.green for one in (*sweeps, *pairs, *zombies, *races)),
        seconds=round(time.monotonic() - began, 1), sweeps=sweeps, pairs=pairs, zombies=zombies,
        races=races,
    )  # fmt: skip


def _zombies(classes: Sequence[ClassName], *, sample: bool) -> list[Job]:
    """Timers divided by 20; three more at the default timers in a full run."""
    count = 2 if sample else ZOMBIES
    jobs: list[Job] = [
        Zombies(name=name, guarded=guarded, count=count)
        for name in classes
        for guarded in (True, False)
    ]
    if not sample:
        jobs.append(Zombies(name=classes[-1], guarded=True, count=3, divide=1))
        jobs.append(Zombies(name=classes[-1], guarded=False, count=3, divide=1))
    return jobs


def _races(classes: Sequence[ClassName], *, sample: bool) -> list[Job]:
    jobs: list[Job] = [Races(name=name, count=2 if sample else RACES) for name in classes]
    if not sample:
        jobs.append(Races(name=classes[-1], count=4, divide=1, lanes=4))
    return jobs


def _all(jobs: Sequence[Job], library: Path) -> list[Figures]:
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        return [one.result() for one in [pool.submit(run_job, job, library) for job in jobs]]


def _show(title: str, figures: list[Figures]) -> None:
    print(f"{title}\n\n{table(figures)}\n")
    for one in figures:
        for finding in one.findings:
            print(f"  {one.name}: {finding}")
    sys.stdout.flush()


def _write(report: Report, as_json: bool) -> None:
    raw = msgspec.json.format(msgspec.json.encode(report), indent=1)
    BUILD.mkdir(exist_ok=True)
    path = BUILD / "crash.json"
    path.write_bytes(raw + b"\n")
    if as_json:
        print(raw.decode())
    else:
        verdict = "green" if report.green else "RED"
        points = sum(one.points for one in report.sweeps)
        distinct = sum(one.distinct for one in report.sweeps)
        print(
            f"{verdict}: {points:,} kills at {distinct:,} distinct points, {report.seconds:.0f} s; "
            f"figures in {path}"
        )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.crash", description=__doc__)
    parser.add_argument(
        "--points", type=int, metavar="N", help="a sample of about N kills per class; default: all"
    )
    parser.add_argument("--classes", nargs="+", choices=CLASSES, metavar="CLASS")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
