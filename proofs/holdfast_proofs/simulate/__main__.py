"""The command line of the simulation."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from holdfast_proofs.simulate.bugs import find_bugs
from holdfast_proofs.simulate.campaign import Report, mode_of, run_seeds
from holdfast_proofs.simulate.coverage import missing
from holdfast_proofs.simulate.run import Mode, Verdict, simulate
from holdfast_proofs.support.options import at_least_one

TELL_EVERY = 1_000
ALL_PAIRS_SEEDS = 10_000  # from so many worlds on, every (event, class) pair must be seen


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    mode: Mode | None = None if options.mode == "both" else options.mode
    if options.self_test:
        return _self_test(options)
    if options.seed is not None:
        return _show_one(options.seed, mode, as_json=options.json)

    def each(verdict: Verdict) -> None:
        if verdict.breaches:
            print(_replay(verdict.seed, verdict.mode, verdict.breaches[0]), file=sys.stderr)
        if (verdict.seed - options.first + 1) % TELL_EVERY == 0:
            print(f"{verdict.seed - options.first + 1} worlds", file=sys.stderr)

    report = run_seeds(range(options.first, options.first + options.seeds), mode=mode, each=each)
    _tell(report, options)
    if options.seeds >= ALL_PAIRS_SEEDS and missing(report.pairs):
        print(f"red: not every (event, class) pair was seen in {options.seeds} worlds", file=sys.stderr)
        return 1
    return 1 if report.bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast_proofs.simulate",
        description="Run the production engine in simulated worlds, one per seed.",
    )
    parser.add_argument("--seeds", type=at_least_one, default=500, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one world, with its trace")
    parser.add_argument("--mode", choices=("safety", "liveness", "both"), default="both")
    parser.add_argument("--self-test", action="store_true", help="find every planted bug")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--report", type=Path, help="write the JSON object to this file too")
    return parser


def _show_one(seed: int, mode: Mode | None, *, as_json: bool) -> int:
    verdict = simulate(seed, mode or mode_of(seed), keep_trace=True)
    if as_json:
        shown = {
            "seed": seed,
            "mode": verdict.mode,
            "digest": verdict.digest,
            "breaches": verdict.breaches,
            "tasks": verdict.states,
            "trace": verdict.trace,
        }
        print(json.dumps(shown))
    else:
        print("\n".join(verdict.trace))
        print(f"\n{verdict.profile}\n{verdict}")
    return 1 if verdict.breaches else 0


def _tell(report: Report, options: argparse.Namespace) -> None:
    shown = report.to_json()
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps(shown, indent=2) + "\n")
    if options.json:
        print(json.dumps(shown))
        return
    print(
        f"{report.runs} worlds in {report.seconds:.1f} s ({shown['runs_per_s']} per second, "
        f"{shown['speed_up']} x real time): {report.effects} effects, {report.crashes} deaths, "
        f"{report.pauses} pauses"
    )
    print(
        f"duplicates {shown['duplicates']}, lost {shown['lost']}, silent {shown['silent']}, "
        f"needless parks {shown['needless_parks']}, worlds with a breach {len(report.bad)}"
    )
    print(f"tasks {shown['tasks']}")
    print(f"(event, class) pairs {len(report.pairs)}, not seen: {shown['pairs_missing'] or 'none'}")


def _self_test(options: argparse.Namespace) -> int:
    found = find_bugs(seeds_max=options.seeds)
    if options.json:
        print(json.dumps({name: None if one is None else one.seed for name, one in found.items()}))
    else:
        for name, one in found.items():
            where = "NOT FOUND" if one is None else f"seed {one.seed}: {one.breaches[0]}"
            print(f"{name:<42} {where}")
    return 0 if all(found.values()) else 1


def _replay(seed: int, mode: Mode, breach: str) -> str:
    return f"seed {seed} ({mode}): {breach}\n  python -m holdfast_proofs.simulate --seed {seed} --mode {mode}"


if __name__ == "__main__":
    sys.exit(main())
