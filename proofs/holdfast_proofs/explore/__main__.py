"""`python -m holdfast_proofs.explore`: every interleaving of small worlds, exhaustively.

Configurations that must hold are searched to the end; those with a rule taken out until the
breach is found. Ends with 1 where a holding one breaks or a weakened one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time

from holdfast.errors import BadInput
from holdfast_proofs.explore.catalogue import CONFIGURATIONS, SMALL, find
from holdfast_proofs.explore.report import HEADER, Explored, Report, judged, line, numbered, summed
from holdfast_proofs.explore.search import explore
from holdfast_proofs.explore.setup import Configuration
from holdfast_proofs.runner import Proof, Result


def _prove(given: argparse.Namespace) -> Result:
    chosen = _chosen(given)
    if not chosen:
        raise BadInput(f"no configuration is called {given.only!r}", hint="--list shows them")
    if given.list:
        names = [f"{one.kind:<9}{one.name}" for one in chosen]
        return Result(green=True, figures=names, findings=names, summary=f"{len(names)} configurations")
    report = _run(chosen, say=not given.json, traces=bool(given.only) or given.traces)
    totals = report.totals
    return Result(
        green=report.green,
        figures=report,
        findings=[_wrong(one) for one in report.configurations if not one.ok],
        summary=f"{totals.holds} hold, {totals.caught} weakened ones "
        f"caught, {totals.survives} survive; {totals.states:,} states, {totals.edges:,} edges, "
        f"{totals.seconds:.0f} s ({totals.cpu_seconds:.0f} s of processor time)",
    )


def _wrong(one: Explored) -> str:
    expected = "holds" if one.kind != "caught" else "is caught for its own rule"
    again = f'python -m holdfast_proofs.explore --only "{one.name}"'
    return f"{one.name}: expected that it {expected}; {one.finding or 'nothing'} found\n    {again}"


def _chosen(options: argparse.Namespace) -> list[Configuration]:
    if options.only:
        return find(options.only)
    return list(SMALL if options.small else CONFIGURATIONS)


def _run(chosen: list[Configuration], *, say: bool, traces: bool) -> Report:
    began, began_cpu = time.perf_counter(), time.process_time()
    explored: list[Explored] = []
    if say:
        print(HEADER)
    for one in chosen:
        done = judged(one, explore(one.setup, tell=_progress(one.name)))
        explored.append(done)
        if say:
            _clear_line()
            print(line(done), flush=True)
            if done.trace and (traces or not done.ok):
                print(numbered(done.trace))
    return summed(explored, seconds=time.perf_counter() - began, cpu_seconds=time.process_time() - began_cpu)


class _progress:  # noqa: N801 - used as a function
    """Shows on a terminal how far a search is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, states: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{self._name}: {states:,} states", end="", file=sys.stderr, flush=True)


def _clear_line() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only", metavar="NAME", help="this configuration, or all whose names contain it")
    add("--small", action="store_true", help="the set that `make test` runs")
    add("--list", action="store_true", help="name the configurations and stop")
    add("--traces", action="store_true", help="show the way to every breach")


PROOF = Proof(
    name="explore",
    purpose="Search every interleaving of small worlds over production's transitions.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
