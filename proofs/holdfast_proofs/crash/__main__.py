"""`python -m holdfast_proofs.crash`: kill a task at every call it makes, and count.

Runs the chosen suites, two jobs at a time; prints a table for each, and where anything is red
the command that runs each finding's trial alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.errors import BadInput
from holdfast_proofs.crash.jobs import Job, run_job
from holdfast_proofs.crash.report import Figures, Report, SuiteReport, table
from holdfast_proofs.crash.subjects import CLASSES
from holdfast_proofs.crash.suites import MATRIX, SECONDS, SHARED, SHARED_STEPS, SUITES, Kills, Options, Suite
from holdfast_proofs.crash.sweep import CUTS
from holdfast_proofs.runner import BUILD, Proof, Result, at_least_one
from holdfast_proofs.shim import Mode, build

AT_ONCE = 2
POSTGRES = "postgres"
STEPS_MAX = 100
_SIDES = {"before": Mode.KILL_BEFORE, "after": Mode.KILL_AFTER} | {mode.name.lower(): mode for mode in CUTS}
_KILL = re.compile(rf"({'|'.join(_SIDES)}):([0-9]{{1,6}})")
_ALL = {**SUITES, **SHARED}


def _prove(given: argparse.Namespace) -> Result:
    shared = given.journal == POSTGRES
    options = Options(
        classes=given.classes or CLASSES,
        steps=given.steps or (SHARED_STEPS if shared else MATRIX),
        points=given.points,
        seconds=given.seconds,
        seed=given.seed,
        at=given.at,
        flip=given.flip,
        origin=given.origin,
        fault=given.fault,
        shared=shared,
    )
    there = SHARED if shared else SUITES
    if not_there := sorted(set(given.suites or ()) - set(there)):
        raise BadInput(f"not with this kind of journal: {', '.join(not_there)}", hint=f"choose from {', '.join(there)}")
    began = time.monotonic()
    library = build(BUILD / "shim")
    suites: dict[str, SuiteReport] = {}
    with _database(shared=shared) as database:
        for name in given.suites or _suites_for(options):
            suites[name] = _run(name, there[name], options, library, database, quiet=given.json)
    report = Report.over(suites, seconds=time.monotonic() - began)
    return Result(
        green=report.green,
        figures=report,
        summary=f"{report.points:,} trials at {report.distinct:,} "
        f"distinct points, {report.duplicates} duplicates, {report.lost} lost, {report.silent} "
        f"silent, {report.needless_parks} needless parks, {report.seconds:.0f} s",
    )


def _suites_for(options: Options) -> list[str]:
    """One trial alone is told by its kills: one of them, or two."""
    if options.flip:
        return ["flips"]
    if not options.at:
        return list(SHARED if options.shared else SUITES)
    if options.at[0][0] in CUTS:
        return ["cuts"]
    return ["matrix"] if len(options.at) == 1 else ["pairs"]


@contextlib.contextmanager
def _database(*, shared: bool) -> Generator[str]:
    if not shared:
        yield ""
        return
    from holdfast_proofs.support.postgres import NEWEST, started  # only here: the driver is an extra

    with started(NEWEST) as server:
        yield server.url()


def _run(name: str, suite: Suite, options: Options, library: Path, database: str, *, quiet: bool) -> SuiteReport:
    jobs = suite.jobs(options)
    figures = _all(jobs, library, database, progress=not quiet and sys.stderr.isatty())
    report = SuiteReport.over(figures)
    if not quiet:
        print(f"{suite.title}\n\n{table(figures)}\n")
        for one in figures:
            _show_findings(name, one, options)
        sys.stdout.flush()
    return report


def _all(jobs: Sequence[Job], library: Path, database: str, *, progress: bool) -> list[Figures]:
    done: list[Figures] = []
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        for one in [pool.submit(run_job, job, library, database=database) for job in jobs]:
            done.append(one.result())
            if progress:
                print(f"\r{len(done)} of {len(jobs)} jobs ", end="", file=sys.stderr, flush=True)
    if progress:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return done


def _show_findings(suite: str, figures: Figures, options: Options) -> None:
    for finding in figures.findings:
        print(f"  {figures.name}, {figures.steps} steps: {finding}")
    if options.shared:
        suite += f" --journal {POSTGRES}"
    which = "" if suite == "flips" else f"--classes {figures.name} --steps {figures.steps} "
    for again in figures.again:
        print(f"  again: python -m holdfast_proofs.crash --suites {suite} {which}--seed {options.seed} {again}")


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--journal", choices=("file", POSTGRES), default="file", help="where the journals are (file)")
    add("--suites", nargs="+", choices=list(_ALL), metavar="SUITE", help=f"only these: {', '.join(_ALL)}")
    add("--points", type=at_least_one, metavar="N", help="a sample of about N kills per class; default: all")
    add("--classes", nargs="+", choices=CLASSES, metavar="CLASS")
    add("--steps", nargs="+", type=_steps, metavar="N", help="how many steps the tasks have")
    add(
        "--seconds",
        type=at_least_one,
        default=SECONDS,
        metavar="N",
        help="pairs: second kills drawn for each first one",
    )
    add("--seed", type=int, default=1, help="of what is drawn")
    add(
        "--at",
        type=_kills,
        default=(),
        metavar="SIDE:CALL[,SIDE:CALL]",
        help="one trial alone, such as after:147 or after:147,before:12",
    )
    add("--flip", default="", metavar="FILE:OFFSET:BIT", help="one flipped bit alone")
    add("--origin", default="", metavar="FOLDER", help="the journal of that flip")
    add("--fault", default="", metavar="FAULT", help="one trial alone of power, syncs or full, as a finding names it")


def _steps(text: str) -> int:
    count = int(text)
    if not 1 <= count <= STEPS_MAX:
        raise argparse.ArgumentTypeError(f"1 to {STEPS_MAX} steps")
    return count


def _kills(text: str) -> Kills:
    parts = text.split(",")
    found = [_KILL.fullmatch(part) for part in parts]
    if len(parts) > 2 or not all(found):
        raise argparse.ArgumentTypeError("such as after:147 or after:147,before:12")
    return tuple((_SIDES[one[1]], int(one[2])) for one in found if one)


PROOF = Proof(
    name="crash",
    purpose="Kill a task at every call it makes, flip bits, cut the power, fill the disk, and count.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
