"""The command line of the failovers: the link is cut under writers, the standby promoted, and the records compared.

One round: eight writers, two in each region and four between them, append to a journal whose url names both servers. In
the middle of it the primary's region is cut off, with its two writers, which go on at their server as long as it lets
them. The standby is promoted; the writers that reach it go on there. The link is healed while both servers are up; a
stranger that knows only the old one tries to write. The old server is stopped and made the standby of the new one, and
the next round cuts off the other region.

At the end the same once more, with commits that wait for no standby: then records must be lost, or the proof is red
because it would not notice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from holdfast.host.hardening import die_with_parent
from holdfast_proofs.failovers.cluster import Cluster, cluster, wait_for
from holdfast_proofs.failovers.judge import Told, Verdict, judge
from holdfast_proofs.failovers.network import Network, Region, network
from holdfast_proofs.failovers.patroni import PatroniCluster, patroni
from holdfast_proofs.runner import Proof, ProofFailed, Result, at_least_one
from holdfast_proofs.support.postgres import SUPPORTED, find_oldest

STEPS = 10  # of each writer, before and after
STRANGER_S = 2.0
OPTIONS = {"connect_timeout": "2", "tcp_user_timeout": "3000"}  # so that a round is short


class Writers:
    """The processes, their folders and what they were told."""

    def __init__(self, net: Network, url: str, folder: Path, *, count: int, weak: bool) -> None:
        self._url, self._folder, self._weak = url, folder, weak
        self._children: list[subprocess.Popen[bytes]] = []
        self.told: list[Told] = []
        self.set_round(1)
        for number in range(count):
            region = (net.east, net.west, net.middle, net.middle)[number % 4]
            self.told.append(self._start(number, region))

    def _start(self, number: int, region: Region, url: str = "") -> Told:
        folder = self._folder / str(number)
        folder.mkdir(mode=0o700)
        command = [sys.executable, "-m", "holdfast_proofs.failovers.writer", "--number", str(number)]
        own = os.getpid()
        with open(folder / "output", "ab") as output:
            child = subprocess.Popen(
                [*region.inside(), *command, "--url", url or self._url, "--folder", folder]
                + (["--weak"] if self._weak else []),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: die_with_parent(own),  # noqa: PLW1509 - no thread starts one
            )
        self._children.append(child)
        return Told(number, folder)

    def set_round(self, number: int) -> None:
        fresh = self._folder / "round.new"
        fresh.write_text(str(number))
        fresh.replace(self._folder / "round")

    def try_stranger(self, number: int, url: str, region: Region) -> int:
        """How many writes a process without a memory had acknowledged by this server."""
        told = self._start(number, region, url)
        time.sleep(STRANGER_S)
        self._children.pop().kill()
        return sum(words[0] == "ack" for words in told.lines())

    def wait_steps(self, told: Sequence[Told], round_number: int, before: dict[int, int] | None = None) -> None:
        """Until each of them has had some more acknowledged."""

        def enough() -> bool:
            ended = [child.args for child in self._children if child.poll() is not None]
            if ended:
                raise ProofFailed(f"a writer ended: {ended[0]}")
            return all(len(one.acknowledged(round_number)) >= (before or {}).get(one.number, 0) + STEPS for one in told)

        numbers = ", ".join(str(one.number) for one in told)
        wait_for(enough, f"the writers {numbers} have {STEPS} more steps in round {round_number}")

    def stop(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()


@contextmanager
def _writers(made: Cluster | PatroniCluster, folder: Path, *, count: int, weak: bool = False) -> Generator[Writers]:
    folder.mkdir(mode=0o700)
    writers = Writers(made.network, made.url(OPTIONS), folder, count=count, weak=weak)
    try:
        yield writers
    finally:
        writers.stop()


def _round(
    made: Cluster | PatroniCluster, writers: Writers, number: int, chance: random.Random, verdict: Verdict
) -> dict[str, float]:
    """One promotion; how long things took."""
    net, old, timeline = made.network, made.primary, made.timeline()
    writers.wait_steps(writers.told, number)
    time.sleep(chance.random())
    net.cut(old.region)
    cut = time.monotonic()
    time.sleep(chance.random())  # commits wait now
    made.promote()
    promoted = time.monotonic()
    counts = {one.number: len(one.acknowledged(number)) for one in writers.told}
    index = 0 if old.region is net.east else 1
    reached = [one for one in writers.told if one.number % 4 != index]
    writers.wait_steps(reached, number, counts)
    resumed = time.monotonic()
    net.heal(old.region)
    strange = writers.try_stranger(1_000 + number, old.url(), old.region)
    if strange:
        verdict.lost += strange
        verdict.say(f"round {number}: the old server acknowledged {strange} steps to a stranger")
    if not timeline < made.timeline():
        verdict.breaches += 1
        verdict.say(f"round {number}: the promoted server has no newer timeline")
    made.rejoin()
    counts = {one.number: len(one.acknowledged(number)) for one in writers.told}
    writers.wait_steps(writers.told, number, counts)
    return {"promote_s": promoted - cut, "resume_s": resumed - cut, "round_s": time.monotonic() - cut}


def _prove(given: argparse.Namespace) -> Result:
    signal.signal(signal.SIGTERM, _end)
    chance = random.Random(given.seed)
    verdict, times, doubts = Verdict(), list[dict[str, float]](), Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-failovers-"))
    version = given.version or find_oldest()
    with network() as net:
        begun = patroni(net, version=version) if given.patroni else cluster(net, version=version)
        with begun as made, _writers(made, folder / "w", count=given.writers) as writers:
            for number in range(1, (given.patroni or given.rounds) + 1):
                writers.set_round(number)
                times.append(_round(made, writers, number, chance, verdict))
                asyncio.run(judge(verdict, writers.told, number, url=made.primary.url(), folder=folder / "judge"))
                print(
                    f"round {number}: {verdict.acknowledged} steps acknowledged, {verdict.lost} lost", file=sys.stderr
                )
                if verdict.findings and not given.go_on:
                    break
            for one in writers.told:
                doubts += one.events()
        weak = None if given.no_weak or given.patroni else _weakened(net, folder / "weak", version, given.writers)
    return _result(given, verdict, times, doubts, weak, folder)


def _end(*_: object) -> None:
    sys.exit(1)  # what was begun is removed


def _weakened(net: Network, folder: Path, version: int, count: int) -> Verdict:
    """One round in which no commit waits for a standby."""
    verdict = Verdict()
    folder.mkdir(mode=0o700)
    with cluster(net, version=version) as made, _writers(made, folder / "w", count=count, weak=True) as writers:
        writers.wait_steps(writers.told, 1)
        net.cut(made.primary.region)
        counts = {one.number: len(one.acknowledged(1)) for one in writers.told}
        writers.wait_steps([one for one in writers.told if one.number % 4 == 0], 1, counts)  # at the old server
        made.promote()
        writers.stop()
        asyncio.run(judge(verdict, writers.told, 1, url=made.primary.url(), folder=folder / "judge"))
    return verdict


def _result(
    given: argparse.Namespace,
    verdict: Verdict,
    times: Sequence[dict[str, float]],
    doubts: Counter[str],
    weak: Verdict | None,
    folder: Path,
) -> Result:
    findings = list(verdict.findings)
    if weak is not None and not weak.lost:
        findings.append("commits that wait for no standby lost nothing: this proof would not notice")
    if findings:
        findings.append(f"logs of the writers: {folder}")
    settled = sum(count for name, count in doubts.items() if name.startswith(("settled", "confirmed")))
    longest = {name: round(max(one[name] for one in times), 2) for name in times[0]}
    figures = {
        "rounds": len(times),
        "writers": given.writers,
        "version": given.version,
        **asdict(verdict),
        "doubts": dict(doubts),
        "seconds_max": longest,
        "times": times,
        "weakened": None if weak is None else asdict(weak),
    }
    lost = "" if weak is None else f"; without the wait for a standby {weak.lost} of {weak.acknowledged} are lost"
    by = " by Patroni" if given.patroni else ""
    return Result(
        green=not findings,
        figures=figures,
        findings=findings,
        again=f"{f'--patroni {given.patroni}' if given.patroni else f'--rounds {given.rounds}'} --seed {given.seed}",
        summary=f"{len(times)} promotions{by} under {given.writers} writers, {verdict.acknowledged} acknowledged: "
        f"lost {verdict.lost}, doubled {verdict.doubled}, breaches {verdict.breaches}; {settled} commits in doubt "
        f"settled; writers went on at most {longest['resume_s']} s after the cut{lost}",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=at_least_one, default=50, help="promotions (50)")
    parser.add_argument("--patroni", type=at_least_one, help="so many instead, by Patroni, with no step of ours")
    parser.add_argument("--writers", type=at_least_one, default=8, help="writer processes (8)")
    parser.add_argument("--version", type=int, choices=SUPPORTED, help="of PostgreSQL (the oldest here)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--go-on", action="store_true", help="after a finding too")
    parser.add_argument("--no-weak", action="store_true", help="leave out the round that must lose something")


PROOF = Proof(
    name="failovers",
    purpose="Cut the link between two servers under writers, promote the standby, compare every record. Needs root.",
    add_options=_options,
    run=_prove,
)
main: Callable[..., int] = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
