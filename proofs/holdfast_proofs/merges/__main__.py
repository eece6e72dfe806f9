"""`python -m holdfast_proofs.merges`: random schedules of five instances that share a memory file.

Ends with 1 where a promise broke, and prints the seed that shows it; with `--self-test` where a trap that was opened
again went unnoticed. The figures say how many lines were excused, by the cases that `ledger.py` names; `--without`
takes one of them out, and shows what it excuses.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from holdfast_proofs.merges.campaign import find_breach, find_first, judge_all
from holdfast_proofs.merges.faults import FAULTS
from holdfast_proofs.merges.ledger import Why
from holdfast_proofs.runner import Proof, Result, at_least_one, self_tested

SCHEDULES = 100_000
CHUNK = 500
TELL_EVERY = 10_000
FINDINGS_MAX = 20


def _run(given: argparse.Namespace) -> Result:
    if given.seed is not None:
        why = find_breach(given.seed)
        return Result(green=not why, figures={"breach": why}, summary=why or "holds")
    if given.self_test:
        with _pool() as pool:
            return self_tested(pool, find_first, [given.fault] if given.fault else list(FAULTS))
    began, done, broken, excused = time.monotonic(), 0, list[tuple[int, str]](), Counter[Why]()
    judge = partial(judge_all, without=None if given.without is None else Why(given.without))
    last = given.first + given.schedules
    chunks = [range(at, min(at + CHUNK, last)) for at in range(given.first, last, CHUNK)]
    with _pool() as pool:
        for chunk, (found, used) in zip(chunks, pool.map(judge, chunks), strict=True):
            broken += found
            excused += used
            done += len(chunk)
            if done % TELL_EVERY == 0:
                print(f"{done:,} schedules", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began, 1)
    return Result(
        green=not broken,
        figures={
            "schedules": done,
            "broken": len(broken),
            "findings": broken[:FINDINGS_MAX],
            "lines_excused": {why.value: excused[why] for why in Why},
            "seconds": seconds,
        },
        findings=[f"seed {seed}: {why}" for seed, why in broken[:FINDINGS_MAX]],
        again="--seed SEED",
        summary=f"{done:,} schedules of 5 instances, {len(broken)} broken, lines excused: {_told(excused)}; "
        f"{seconds} s on {os.cpu_count()} cores",
    )


def _told(excused: Counter[Why]) -> str:
    return ", ".join(f"{why} {excused[why]:,}" for why in Why)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedules", type=at_least_one, default=SCHEDULES, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one schedule")
    parser.add_argument("--without", choices=[str(one) for one in Why], help="an excuse that does not count")
    parser.add_argument("--self-test", action="store_true", help="open each trap again: it must be noticed")
    parser.add_argument("--fault", choices=list(FAULTS), help="with --self-test: only this one")


PROOF = Proof(
    name="merges",
    purpose="Try the merge of memory files under random schedules of five instances.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
