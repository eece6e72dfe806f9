"""A machine whose agent was recovered elsewhere stops, and its witnesses are relays and nothing else.

Each round is a new agent with three relay processes as its only witnesses, a `holdfast worker` on the old machine, and
`holdfast recover` on a bare one, which has the words and the relays' addresses. By turns:

    plain   the relays answer
    liar    one of them takes the new records, signs for them, and shows the old log
    cut     no relay answers the old machine, before, during and after the recovery; then they answer again

True of every round: the old worker ends by itself with exit code 4 within `watch_s` and the slack for its calls under
way, counted from the end of the recovery, or from the moment when relays answer again. While no relay answers it
continues, its log says so, and `holdfast doctor` says so. The new machine is not stopped.

With `--blind` the worker's look at its witnesses is taken out: the proof must be red.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.app.eviction import check_speaks
from holdfast.errors import EXIT_CONFLICT, HoldfastError
from holdfast.layout.agent_home import load_home
from holdfast_proofs.runner import Proof, Result, at_least_one
from holdfast_proofs.support.agents import make_unattended
from holdfast_proofs.support.command_line import Worker, command_line, environment
from holdfast_proofs.support.relays import RelayProcess, relays

WATCH_S = 2.0
SLACK_S = 20.0  # for the calls under way on a loaded machine; what was measured is in the report
COMMAND_S = 180.0
KINDS = ("plain", "liar", "cut")
LIAR = ("-m", "holdfast_proofs.support.old_log_relay")
APP = """import holdfast

@holdfast.task
async def t(run: holdfast.Run) -> int:
    await run.sleep(600)
    return 1

tasks = [t]
"""
BLIND = """import holdfast.app.eviction
import holdfast.app.worker

holdfast.app.eviction.check_speaks = lambda home, port=None: holdfast.app.eviction.Looked(answered=1)
"""


@dataclass
class Report:
    rounds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    stopped_s: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    watch_s: float = WATCH_S
    findings: list[str] = field(default_factory=list[str])


class Wrong(AssertionError):
    pass


def that(true: bool, why: str) -> None:
    if not true:
        raise Wrong(why)


@contextmanager
def old_worker(root: Path, folder: Path, *, blind: bool) -> Generator[Worker]:
    settings = folder / "holdfast.toml"
    settings.write_text(settings.read_text().replace("[identity]\n", f"[identity]\nwatch_s = {WATCH_S}\n"))
    (root / "app.py").write_text((BLIND if blind else "") + APP)
    worker = Worker(folder, ("worker", f"{root / 'app.py'}:tasks"), environment(folder))
    try:
        worker.wait_event("serving")
        yield worker
    finally:
        worker.close()


def recover(root: Path, words: str, running: Sequence[RelayProcess]) -> Path:
    """On a machine that has nothing else."""
    new = root / "new"
    new.mkdir(mode=0o700)
    folders = {"--home": "ada", "--vault": "vault", "--second": "second"}
    unlocks = {"--unlock-file": "unlock", "--second-unlock-file": "unlock2"}
    places = [word for option, name in (folders | unlocks).items() for word in (option, str(new / name))]
    named = [word for one in running for word in ("--witness", one.address)]
    reads, writes = os.pipe()
    os.write(writes, f"{words}\n".encode())
    os.close(writes)
    try:
        done = subprocess.run(
            command_line("recover", "--agent", "ada", *places, *named, "--yes", "--json", "--words-fd", str(reads)),
            cwd=new,
            pass_fds=(reads,),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
    finally:
        os.close(reads)
    that(done.returncode == 0, f"the recovery failed: {done.stderr[-600:]}")
    return new / "ada"


def round_of(kind: str, root: Path, running: Sequence[RelayProcess], *, blind: bool) -> float:
    """The seconds after which the old worker had stopped."""
    folder, words = make_unattended(root, [one.address for one in running])
    with old_worker(root, folder, blind=blind) as worker:
        if kind == "liar":
            check_speaks(load_home(folder))  # the liar has been asked: this is what it shows from now on
        if kind == "cut":
            new, began = _recovered_unseen(root, words, folder, worker, running)
        else:
            new, began = recover(root, words, running), time.monotonic()
        while worker.process.poll() is None and time.monotonic() - began < WATCH_S + SLACK_S:
            time.sleep(0.02)
        took_s = time.monotonic() - began
        that(worker.process.poll() is not None, f"it still runs {took_s:.0f} s later")
        code = worker.wait_end()
        said = "".join(worker.said)
        that(code == EXIT_CONFLICT, f"it ended with {code}: {said[-600:]}")
        that("was not made here" in said, f"it does not say why: {said[-600:]}")
    check_speaks(load_home(new))
    return took_s


def _recovered_unseen(
    root: Path, words: str, folder: Path, worker: Worker, running: Sequence[RelayProcess]
) -> tuple[Path, float]:
    """The relays move to ports that only the new machine knows; then back. When the first of them answers again."""
    for one in running:
        one.kill()
    elsewhere = [RelayProcess(one.folder, one.options) for one in running]
    try:
        worker.wait_event("watch-unheard")
        for one in elsewhere:
            one.start()
        new = recover(root, words, elsewhere)
        time.sleep(2 * WATCH_S)
        that(worker.process.poll() is None, "it stopped although no relay answered it")
        doctor = subprocess.run(
            command_line("doctor", "--home", str(folder)),
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )
        that("no witness answers" in doctor.stdout, f"doctor does not say it: {doctor.stdout[-900:]}")
    finally:
        for one in elsewhere:
            if one.process is not None:
                one.kill()
        running[0].start()
        began = time.monotonic()
        for one in running[1:]:
            one.start()
    return new, began


def run(*, rounds: int, blind: bool, folder: Path, kinds: Sequence[str] = KINDS) -> Report:
    report = Report()
    liar = RelayProcess(folder / "liar", program=LIAR)
    with relays(folder, "r1", "r2", "r3") as running:
        try:
            if "liar" in kinds:
                liar.start()
            for number in range(rounds):
                kind = kinds[number % len(kinds)]
                among = [*running[:2], liar] if kind == "liar" else running
                try:
                    took_s = round_of(kind, folder / f"round-{number}", among, blind=blind)
                    report.stopped_s[kind].append(round(took_s, 2))
                    print(f"round {number}, {kind}: stopped {took_s:.2f} s later", flush=True)
                except (HoldfastError, OSError, AssertionError) as error:
                    report.findings.append(f"round {number}, {kind}: {error}")
                report.rounds[kind] += 1
        finally:
            if liar.process is not None:
                liar.kill()
    return report


def _run(given: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="evictions-") as folder:
        report = run(rounds=given.rounds, blind=given.blind, folder=Path(folder), kinds=given.kind or KINDS)
    times = sorted(one for found in report.stopped_s.values() for one in found)
    shown = ", ".join(f"{kind} at most {max(found):g} s" for kind, found in report.stopped_s.items() if found)
    middle = times[len(times) // 2] if times else 0.0
    summary = f"{sum(report.rounds.values())} rounds, watch_s {WATCH_S:g}: half stopped within {middle:g} s; {shown}"
    return Result(
        green=bool(times) and not report.findings,
        figures=vars(report),
        findings=report.findings,
        again="--rounds 1 --kind KIND",
        summary=f"{summary}; {len(report.findings)} findings",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=at_least_one, default=100, help="(100)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these, by turns")
    parser.add_argument("--blind", action="store_true", help="without the look at the witnesses: must be red")


PROOF = Proof(
    name="relay_evictions",
    purpose="A recovery elsewhere stops the old machine, with relays as its only witnesses.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
