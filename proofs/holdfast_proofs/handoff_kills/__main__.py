"""The command line: `python -m holdfast_proofs.handoff_kills --points 200`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.app.handoff import read_handoff
from holdfast.app.open import open as open_holdfast
from holdfast.app.worker import Order
from holdfast.host.hardening import die_with_parent
from holdfast_proofs.handoff_kills.app import TRUTH
from holdfast_proofs.handoff_kills.judge import judge
from holdfast_proofs.handoff_kills.person import Person
from holdfast_proofs.handoff_kills.truth import Truth
from holdfast_proofs.runner import Proof, Result, at_least_one

APP = "holdfast_proofs.handoff_kills.app:app"
FILES = ("handoff.md", "HEARTBEAT.md", "MEMORY.md")
KILLS_PER_HOME = 25
LIFE_S_MAX = 1.5
START_S_MAX = 60.0


@dataclass(slots=True)
class Figures:
    points: int = 0
    facts: int = 0
    correct: int = 0
    lags_ms: list[int] = field(default_factory=list[int])
    stalls_ms: list[int] = field(default_factory=list[int])
    findings: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    @property
    def green(self) -> bool:
        return not self.findings and self.points > 0 and self.facts > 0


async def sweep(points: int, *, seed: int, lag_ms: int) -> Figures:
    """Kill at so many random moments, over as many agents as that needs."""
    figures, dice = Figures(), random.Random(seed)
    while figures.points < points:
        with tempfile.TemporaryDirectory(prefix="holdfast-handoff-") as folder:
            count = min(KILLS_PER_HOME, points - figures.points)
            await _one_home(Path(folder), count, figures, dice, lag_ms=lag_ms)
    return figures


async def _one_home(folder: Path, count: int, figures: Figures, dice: random.Random, *, lag_ms: int) -> None:
    home = folder / "ada"
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text('agent = "ada"\n')
    truth = Truth(folder / "tools.jsonl")
    async with open_holdfast(home / "journal.db", serve=False) as hf:
        person = Person(hf, truth, seed=dice.randrange(1 << 30))
        living = asyncio.gather(person.live(), person.watch())
        try:
            for _ in range(count):
                await _one_kill(folder, home, person, truth, figures, dice, lag_ms=lag_ms)
        finally:
            living.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await living


async def _one_kill(
    folder: Path, home: Path, person: Person, truth: Truth, figures: Figures, dice: random.Random, *, lag_ms: int
) -> None:
    worker = await _start(home, folder / "tools.jsonl")
    await asyncio.sleep(dice.uniform(0.0, LIFE_S_MAX))
    stall_ms = person.stall_ms()
    killed_ms = time.time_ns() // 1_000_000
    worker.kill()
    worker.wait()
    ended = await person.ended()
    alone = folder / f"alone-{figures.points}"
    alone.mkdir(mode=0o700)
    for name in FILES:
        if (home / name).exists():
            shutil.copy(home / name, alone / name)
    figures.points += 1
    if not (alone / "handoff.md").exists():
        figures.findings.append(f"kill {figures.points}: there is no hand-off")
        return
    verdict = judge(
        read_handoff(alone / "handoff.md"),
        (alone / "HEARTBEAT.md").read_bytes(),
        truth,
        killed_ms=killed_ms,
        lag_ms=lag_ms + stall_ms,
        ended=ended,
    )
    figures.facts += verdict.asked
    figures.lags_ms.append(verdict.lag_ms)
    figures.stalls_ms.append(stall_ms)
    figures.correct += not verdict.findings
    figures.findings += [f"kill {figures.points}: {finding}" for finding in verdict.findings]


async def _start(home: Path, tools: Path) -> subprocess.Popen[bytes]:
    """A working process; on return it has brought the files up to date and serves."""
    before = _mtime(home / "handoff.md")
    worker = _spawn(home, tools)
    async with asyncio.timeout(START_S_MAX):
        while _mtime(home / "handoff.md") == before:
            if worker.poll() is not None:
                raise RuntimeError((home.parent / "worker.log").read_text()[-2000:])
            await asyncio.sleep(0.01)
    return worker


def _spawn(home: Path, tools: Path) -> subprocess.Popen[bytes]:
    order = json.dumps(asdict(Order(app=APP, journal=str(home / "journal.db"))))
    us = os.getpid()
    with open(home.parent / "worker.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.app.worker", order],
            env=os.environ | {TRUTH: str(tools)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: die_with_parent(us),  # noqa: PLW1509 - no thread starts one
        )


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _run(given: argparse.Namespace) -> Result:
    begun = time.monotonic()
    figures = asyncio.run(sweep(given.points, seed=given.seed, lag_ms=given.lag_ms))
    figures.seconds = round(time.monotonic() - begun, 1)
    lags = sorted(figures.lags_ms) or [0]
    return Result(
        green=figures.green,
        figures=asdict(figures),
        findings=figures.findings[:50],
        summary=f"{figures.points:,} kills, "
        f"{figures.correct:,} answered correctly from the files alone; {figures.facts:,} facts "
        f"looked for; the oldest fact not yet in the file: {lags[len(lags) // 2]} ms (median), "
        f"{lags[-1]} ms (worst); longest stall of this machine {max(figures.stalls_ms, default=0)} ms; "
        f"{figures.seconds:.0f} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--points", type=at_least_one, default=200, metavar="N", help="kills (200)")
    add("--seed", type=int, default=1, help="of the moments and the person (1)")
    add(
        "--lag-ms",
        type=at_least_one,
        default=1_000,
        metavar="MS",
        help="a fact that is older must be in the files (1000)",
    )


PROOF = Proof(
    name="handoff_kills",
    purpose="Kill a working agent at random moments; its files alone must then say where "
    "it is, what is pending, what is decided and what changed.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
