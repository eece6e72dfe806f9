"""`python -m holdfast_proofs.identity_schedules`: the log's rules under random schedules.

Ends with 1 where a promise broke, and prints the seed that shows it; with `--self-test` where a
rule that was taken out went unnoticed.
"""

from __future__ import annotations

import argparse
import sys

from holdfast_proofs.identity_schedules.campaign import find_breach, find_weakness, run
from holdfast_proofs.identity_schedules.weakened import WEAKENED
from holdfast_proofs.runner import Proof, Result, at_least_one

TELL_EVERY = 10_000
SELF_TEST_SCHEDULES = 2_000


def _run(given: argparse.Namespace) -> Result:
    if given.self_test:
        return _self_test()
    if given.seed is not None:
        why = find_breach(given.seed)
        return Result(green=not why, figures={"breach": why}, summary=why or "holds")
    campaign = run(range(given.first, given.first + given.schedules), _tell)
    report = campaign.to_json()
    return Result(
        green=not campaign.broken,
        figures=report,
        findings=[f"seed {seed}: {why}" for seed, why in campaign.broken.items()],
        again="--seed SEED",
        summary=f"{report['schedules']:,} schedules, {len(campaign.broken)} broken, {report['cpu_s']} s of one core",
    )


def _self_test() -> Result:
    found = {name: find_weakness(name, schedules_max=SELF_TEST_SCHEDULES) for name in WEAKENED}
    missed = [f"{name}: NOT NOTICED" for name, one in found.items() if one is None]
    return Result(
        green=not missed,
        figures={name: None if one is None else one[0] for name, one in found.items()},
        findings=missed,
        summary=f"{len(found) - len(missed)} of {len(found)} rules taken out were noticed",
    )


def _tell(done: int) -> None:
    if done % TELL_EVERY == 0:
        print(f"{done:,} schedules", file=sys.stderr, flush=True)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedules", type=at_least_one, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one schedule")
    parser.add_argument("--self-test", action="store_true", help="notice every rule taken out")


PROOF = Proof(
    name="identity_schedules",
    purpose="Try the rules of the identity log under random schedules of owner, thieves and liars.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
