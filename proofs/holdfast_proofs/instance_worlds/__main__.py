"""The command line, and the planted faults."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from holdfast.app.instances import merge_job, standing
from holdfast.app.instances.standing import StandingKind
from holdfast.identity.files.roster_file import join_roster
from holdfast.layout.agent_home import AgentHome
from holdfast_proofs.instance_worlds.world import drop_template, find_breach
from holdfast_proofs.merges.faults import patched
from holdfast_proofs.runner import Proof, Result, at_least_one, self_tested

WORLDS = 1_000
CHUNK = 20
SELF_TEST_WORLDS = 200
FINDINGS_MAX = 20


def breaches_of(seeds: range) -> list[tuple[int, str]]:
    try:
        return [(seed, why) for seed in seeds if (why := find_breach(seed))]
    finally:
        drop_template()


# --- planted faults -------------------------------------------------------------------------------


def _acting(*kinds: StandingKind) -> Callable[[], AbstractContextManager[None]]:
    allowed = (StandingKind.ALONE, StandingKind.PRIMARY, *kinds)
    return lambda: patched(standing.Standing, "may_act", property(lambda self: self.kind in allowed))


def _own_file_only(folder: Path, told: object, log: Any, port: Any) -> Any:  # Any: handed through unread
    return join_roster(folder, (), log, port)


def _used_by_none(*_: object) -> str:
    return ""


def _as_opened(home: AgentHome) -> tuple[object, ...]:
    return ("the roster never changes",)


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "role-ignored": _acting(StandingKind.STANDBY),
    "claim-by-waiting": _acting(StandingKind.COPY),
    "key-used-twice": lambda: patched(standing, "note_host", _used_by_none),
    "roster-of-others-unheard": lambda: patched(standing, "join_roster", _own_file_only),
    "merges-with-the-removed": lambda: patched(merge_job, "_signature", _as_opened),
}


def find_first(fault: str) -> tuple[int, str] | None:
    with FAULTS[fault]():
        try:
            return next(((seed, why) for seed in range(SELF_TEST_WORLDS) if (why := find_breach(seed))), None)
        finally:
            drop_template()


def _run(given: argparse.Namespace) -> Result:
    if given.seed is not None:
        why = find_breach(given.seed)
        drop_template()
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
