"""`python -m holdfast_proofs.explore`: every interleaving of small worlds, exhaustively.

Configurations that must hold are searched to the end; those with a rule taken out until the
breach is found. Ends with 1 where a holding one breaks or a weakened one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast_proofs.explore.catalogue import CONFIGURATIONS, SMALL, find
from holdfast_proofs.explore.report import HEADER, Explored, Report, judged, line, numbered, summed
from holdfast_proofs.explore.search import explore
from holdfast_proofs.explore.setup import Configuration


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen = _chosen(options)
    if not chosen:
        parser.error(f"no configuration is called {options.only!r}; --list shows them")
    if options.list:
        for one in chosen:
            print(f"{one.kind:<9}{one.name}")
        return 0
    report = _run(chosen, say=not options.json, traces=bool(options.only) or options.traces)
    raw = msgspec.json.format(msgspec.json.encode(report), indent=1)
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_bytes(raw + b"\n")
    print(raw.decode() if options.json else _summary(report))
    return 0 if report.green else 1


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


def _summary(report: Report) -> str:
    totals = report.totals
    lines = [
        f"{'green' if report.green else 'RED'}: {totals.holds} hold, {totals.caught} weakened ones "
        f"caught, {totals.survives} survive; {totals.states:,} states, {totals.edges:,} edges, "
        f"{totals.seconds:.0f} s ({totals.cpu_seconds:.0f} s of processor time)"
    ]
    for one in report.configurations:
        if not one.ok:
            expected = "holds" if one.kind != "caught" else "is caught for its own rule"
            lines.append(f"{one.name}: expected that it {expected}; {one.finding or 'nothing'} found")
            lines.append(f'  python -m holdfast_proofs.explore --only "{one.name}"')
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_proofs.explore",
        description="Search every interleaving of small worlds over production's transitions.",
    )
    parser.add_argument("--only", metavar="NAME", help="this configuration, or all whose names contain it")
    parser.add_argument("--small", action="store_true", help="the set that `make test` runs")
    parser.add_argument("--list", action="store_true", help="name the configurations and stop")
    parser.add_argument("--traces", action="store_true", help="show the way to every breach")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--report", type=Path, help="write the report to this file too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
