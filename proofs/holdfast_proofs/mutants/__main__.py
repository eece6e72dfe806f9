"""The command line of the mutants; run it from a clone, where the tests are."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from holdfast_proofs.mutants.campaign import Result, command, run_module
from holdfast_proofs.mutants.defences import Outcome, read_defences, run_defences
from holdfast_proofs.mutants.modules import MODULES, read_explained
from holdfast_proofs.mutants.operators import Mutant, find_mutants, mutated
from holdfast_proofs.mutants.run import Child, Ending, load_tools

SCORE_WANTED = 0.95


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if not Path("tests/unit").is_dir():
        raise SystemExit("run this in a clone of the project: the tests are what is tried")
    if options.defences:
        return _defences(options)
    load_tools()
    names: list[str] = options.module or [*MODULES]
    if options.mutant is not None:
        return _show(names, options.mutant)
    explained = read_explained()
    began = time.monotonic()
    results: list[Result] = []
    for name in names:
        result = run_module(
            MODULES[name], explained.get(name, {}), jobs=options.jobs, each=_each if options.verbose else _quiet
        )
        results.append(result)
        _tell(result)
    green = all(_is_green(result) for result in results)
    shown: dict[str, object] = {
        "mutants": sum(one.mutants for one in results),
        "killed": sum(one.killed + one.timed_out for one in results),
        "survived": sum(len(one.survivors) for one in results),
        "explained": sum(one.explained for one in results),
        "seconds": round(time.monotonic() - began, 1),
        "modules": [one.to_json() for one in results],
    }
    _report(shown, options)
    return 0 if green else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_proofs.mutants",
        description="Change the deciding modules in small wrong ways; some test must notice.",
    )
    parser.add_argument(
        "--module",
        action="append",
        choices=[*MODULES],
        metavar="NAME",
        help=f"only this module, may be repeated: {', '.join(MODULES)}",
    )
    parser.add_argument("--mutant", type=int, metavar="N", help="one mutant, with its tests' words")
    parser.add_argument(
        "--defences",
        action="store_true",
        help="take out each defence of the attack table; the test of its row must fail",
    )
    parser.add_argument("--row", action="append", type=int, metavar="N", help="only these defences")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--verbose", action="store_true", help="say how each mutant ended")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--report", type=Path, help="write the JSON object to this file too")
    return parser


def _defences(options: argparse.Namespace) -> int:
    chosen = [one for one in read_defences() if not options.row or one.row in options.row]
    began = time.monotonic()
    outcomes = run_defences(chosen, root=Path.cwd(), each=_tell_defence)
    red = sum(one.verdict == "red" for one in outcomes)
    sys.stderr.write(f"{red} of {len(outcomes)} defences are missed by the test of their row\n")
    shown: dict[str, object] = {
        "defences": len(outcomes),
        "red": red,
        "seconds": round(time.monotonic() - began, 1),
        "outcomes": [one.to_json() for one in outcomes],
    }
    _report(shown, options)
    return 0 if outcomes and red == len(outcomes) else 1


def _tell_defence(outcome: Outcome) -> None:
    one = outcome.defence
    sys.stderr.write(f"row {one.row:>2}  {outcome.verdict:<7}  without: {one.what}\n")
    if outcome.verdict != "red":
        sys.stderr.write(f"        {one.test}: {outcome.said}\n")


def _report(shown: dict[str, object], options: argparse.Namespace) -> None:
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(shown, indent=2) + "\n")
    if options.json:
        print(json.dumps(shown))


def _is_green(result: Result) -> bool:
    return result.score >= SCORE_WANTED and not result.stale


def _tell(result: Result) -> None:
    say = sys.stderr.write
    say(
        f"{result.module:<18} {result.mutants:>4} mutants, {result.killed + result.timed_out} "
        f"killed ({result.timed_out} by time), {result.explained} explained, "
        f"{len(result.survivors)} survived: {result.score:.1%} in {result.seconds:.0f} s\n"
    )
    for one in result.survivors:
        say(f"  survived: line {one.line}: {one.key}\n    {command(one)}\n")
    for key in result.stale:
        say(f"  explained, but no mutant any more: {key}\n")
    for key in result.killed_though_explained:
        say(f"  explained, and yet killed: {key}\n")


def _each(mutant: Mutant, ending: Ending) -> None:
    sys.stderr.write(f"{ending:<9} {mutant.module} {mutant.number}: {mutant.key}\n")


def _quiet(mutant: Mutant, ending: Ending) -> None:
    """Only the results count."""


def _show(names: list[str], number: int) -> int:
    if len(names) != 1:
        raise SystemExit("--mutant goes with one --module")
    module = MODULES[names[0]]
    source = module.path.read_text()
    mutant = find_mutants(module.name, source)[number]
    print(f"line {mutant.line}: {mutant.key}", flush=True)
    child = Child(
        mutated(source, number),
        module=module.full_name,
        path=module.path,
        tests=[*module.quick, *module.wide],
        seeds=0,
        seconds_max=300.0,
        show=True,
    )
    ending = child.wait()
    print(ending)
    return 1 if ending == "survived" else 0


if __name__ == "__main__":
    sys.exit(main())
