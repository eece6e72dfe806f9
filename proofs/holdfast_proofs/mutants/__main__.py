"""The command line of the mutants; run it from a clone, where the tests are."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from holdfast.errors import BadInput
from holdfast_proofs.mutants.campaign import Result as Score
from holdfast_proofs.mutants.campaign import command, run_module
from holdfast_proofs.mutants.defences import Outcome, read_defences, run_defences
from holdfast_proofs.mutants.modules import MODULES, read_explained
from holdfast_proofs.mutants.operators import Mutant, find_mutants, mutated
from holdfast_proofs.mutants.run import Child, Ending, load_tools
from holdfast_proofs.runner import Proof, Result

SCORE_WANTED = 0.95


def _run(given: argparse.Namespace) -> Result:
    if not Path("tests/unit").is_dir():
        raise BadInput("run this in a clone of the project: the tests are what is tried")
    if given.defences:
        return _defences(given)
    load_tools()
    names: list[str] = given.module or [*MODULES]
    if given.mutant is not None:
        return _show(names, given.mutant)
    explained = read_explained()
    began = time.monotonic()
    results: list[Score] = []
    for name in names:
        result = run_module(
            MODULES[name], explained.get(name, {}), jobs=given.jobs, each=_each if given.verbose else _quiet
        )
        results.append(result)
        _tell(result)
    mutants = sum(one.mutants for one in results)
    killed = sum(one.killed + one.timed_out for one in results)
    survivors = [f"{one.module} line {mutant.line}: {mutant.key}" for one in results for mutant in one.survivors]
    stale = [f"explained, but no mutant any more: {key}" for one in results for key in one.stale]
    explained_count = sum(one.explained for one in results)
    return Result(
        green=all(_is_green(result) for result in results),
        figures={
            "mutants": mutants,
            "killed": killed,
            "survived": len(survivors),
            "explained": explained_count,
            "seconds": round(time.monotonic() - began, 1),
            "modules": [one.to_json() for one in results],
        },
        findings=[*survivors, *stale],
        summary=f"{mutants} mutants, {killed} killed, {explained_count} explained, {len(survivors)} survived",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--module",
        action="append",
        choices=[*MODULES],
        metavar="NAME",
        help=f"only this module, may be repeated: {', '.join(MODULES)}",
    )
    add("--mutant", type=int, metavar="N", help="one mutant, with the output of its tests")
    add(
        "--defences",
        action="store_true",
        help="take out each defence of the attack table; the test of its row must fail",
    )
    add("--row", action="append", type=int, metavar="N", help="only these defences")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    add("--verbose", action="store_true", help="say how each mutant ended")


def _defences(given: argparse.Namespace) -> Result:
    chosen = [one for one in read_defences() if not given.row or one.row in given.row]
    began = time.monotonic()
    outcomes = run_defences(chosen, root=Path.cwd(), each=_tell_defence)
    red = sum(one.verdict == "red" for one in outcomes)
    return Result(
        green=bool(outcomes) and red == len(outcomes),
        figures={
            "defences": len(outcomes),
            "red": red,
            "seconds": round(time.monotonic() - began, 1),
            "outcomes": [one.to_json() for one in outcomes],
        },
        summary=f"{red} of {len(outcomes)} defences, taken out, turn the test of their row red",
    )


def _tell_defence(outcome: Outcome) -> None:
    one = outcome.defence
    sys.stderr.write(f"row {one.row:>2}  {outcome.verdict:<7}  without: {one.what}\n")
    if outcome.verdict != "red":
        sys.stderr.write(f"        {one.test}: {outcome.said}\n")


def _is_green(result: Score) -> bool:
    return result.score >= SCORE_WANTED and not result.stale


def _tell(result: Score) -> None:
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


def _show(names: list[str], number: int) -> Result:
    if len(names) != 1:
        raise BadInput("--mutant goes with one --module")
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
    return Result(green=ending != "survived", figures={"ending": ending}, summary=ending)


PROOF = Proof(
    name="mutants",
    purpose="Change the deciding modules in small wrong ways; some test must notice.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
