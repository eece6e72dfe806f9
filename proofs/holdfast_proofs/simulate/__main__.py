"""The command line of the simulation."""

from __future__ import annotations

import argparse
import sys

from holdfast_proofs.runner import Proof, Result, at_least_one
from holdfast_proofs.simulate.bugs import find_bugs
from holdfast_proofs.simulate.campaign import mode_of, run_seeds
from holdfast_proofs.simulate.coverage import missing
from holdfast_proofs.simulate.run import Mode, Verdict, simulate

TELL_EVERY = 1_000
ALL_PAIRS_SEEDS = 10_000  # from so many worlds on, every (event, class) pair must be seen


def _run(given: argparse.Namespace) -> Result:
    mode: Mode | None = None if given.mode == "both" else given.mode
    if given.self_test:
        return _self_test(given)
    if given.seed is not None:
        return _show_one(given.seed, mode, say=not given.json)

    def each(verdict: Verdict) -> None:
        if (verdict.seed - given.first + 1) % TELL_EVERY == 0:
            print(f"{verdict.seed - given.first + 1} worlds", file=sys.stderr)
        if verdict.breaches:
            broken.append(f"--seed {verdict.seed} --mode {verdict.mode}: {verdict.breaches[0]}")

    broken: list[str] = []
    report = run_seeds(range(given.first, given.first + given.seeds), mode=mode, each=each)
    shown = report.to_json()
    unseen = given.seeds >= ALL_PAIRS_SEEDS and bool(missing(report.pairs))
    if unseen:
        broken.append(f"not every (event, class) pair was seen in {given.seeds} worlds")
    return Result(
        green=not report.bad and not unseen,
        figures=shown,
        findings=broken,
        again="--seed SEED --mode MODE",
        summary=f"{report.runs} worlds in {report.seconds:.1f} s ({shown['runs_per_s']} per second, "
        f"{shown['speed_up']} x real time): {report.effects} effects, {report.crashes} deaths, "
        f"{report.pauses} pauses; duplicates {shown['duplicates']}, lost {shown['lost']}, silent "
        f"{shown['silent']}, needless parks {shown['needless_parks']}, worlds with a breach {len(report.bad)}; "
        f"{len(report.pairs)} (event, class) pairs, not seen: {shown['pairs_missing'] or 'none'}",
    )


def _show_one(seed: int, mode: Mode | None, *, say: bool) -> Result:
    verdict = simulate(seed, mode or mode_of(seed), keep_trace=True)
    shown = {
        "seed": seed,
        "mode": verdict.mode,
        "digest": verdict.digest,
        "breaches": verdict.breaches,
        "tasks": verdict.states,
        "trace": verdict.trace,
    }
    if say:
        print("\n".join(verdict.trace))
    return Result(
        green=not verdict.breaches, figures=shown, findings=verdict.breaches, summary=f"{verdict.profile} {verdict}"
    )


def _self_test(given: argparse.Namespace) -> Result:
    found = find_bugs(seeds_max=given.seeds)
    missed = [f"{name}: NOT FOUND" for name, one in found.items() if one is None]
    return Result(
        green=not missed,
        figures={name: None if one is None else one.seed for name, one in found.items()},
        findings=missed,
        summary=f"{len(found) - len(missed)} of {len(found)} planted bugs found",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seeds", type=at_least_one, default=500, help="how many worlds")
    add("--first", type=int, default=0, help="the first seed")
    add("--seed", type=int, help="one world, with its trace")
    add("--mode", choices=("safety", "liveness", "both"), default="both")
    add("--self-test", action="store_true", help="find every planted bug")


PROOF = Proof(
    name="simulate",
    purpose="Run the production engine in simulated worlds, one per seed.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
