"""The command line."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from holdfast_proofs.instance_worlds.campaign import FAULTS, breaches_of, find_first
from holdfast_proofs.runner import Proof, Result, at_least_one, self_tested

WORLDS = 1_000
CHUNK = 20
FINDINGS_MAX = 20


def _run(given: argparse.Namespace) -> Result:
    if given.seed is not None:
        why = dict(breaches_of(range(given.seed, given.seed + 1))).get(given.seed, "")
        return Result(green=not why, figures={"breach": why}, summary=why or "holds")
    began = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        if given.self_test:
            return self_tested(pool, find_first, [given.fault] if given.fault else list(FAULTS))
        last = given.first + given.worlds
        chunks = [range(at, min(at + CHUNK, last)) for at in range(given.first, last, CHUNK)]
        broken = [one for found in pool.map(breaches_of, chunks) for one in found]
    seconds = round(time.monotonic() - began, 1)
    return Result(
        green=not broken,
        figures={"worlds": given.worlds, "broken": len(broken), "findings": broken[:FINDINGS_MAX], "seconds": seconds},
        findings=[f"seed {seed}: {why}" for seed, why in broken[:FINDINGS_MAX]],
        again="--seed SEED",
        summary=f"{given.worlds:,} worlds of 2 to 4 instances, {len(broken)} broken, {seconds} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--worlds", type=at_least_one, default=WORLDS, help=f"how many ({WORLDS})")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one world")
    parser.add_argument("--self-test", action="store_true", help="plant each fault: it must be noticed")
    parser.add_argument("--fault", choices=list(FAULTS), help="with --self-test: only this one")


PROOF = Proof(
    name="instance_worlds",
    purpose="Instances of one agent in simulated time: who may act, and what memory they have in the end.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
