"""Loss of a region: real workers in two of them, the first is cut off with its server, the other one goes on.

The load is the soak's: tasks of ten steps, all effect classes by turns, counting services. One round: two workers in
each region, every task submitted; after some of the effects the region of the primary is cut off, and the standby is
promoted. By turns the cut region still reaches the services, or does not until the link is healed; and the link is
healed while the others still work, or after them. The folder of each region is new and holds the agent's keys alone.

Judged as the soak is: what the services counted against what the promoted journal says. Beyond that: all tasks end;
once they have, the old region sends nothing more, and its server has kept no further record.

Before the rounds the region of the standby is cut off, and nobody is promoted: nothing may be sent until it is back.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.app.binder import KEYS
from holdfast.core.clock import SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.downstream.process import FarEnd
from holdfast.errors import HoldfastError
from holdfast.host.hardening import die_with_parent
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast_proofs.failovers.cluster import Cluster, RegionServer, cluster, wait_for
from holdfast_proofs.failovers.network import Network, Region, network
from holdfast_proofs.runner import Proof, ProofFailed, Result, at_least_one
from holdfast_proofs.soak.app import DELAY_S, FAR_ENDS, TASK
from holdfast_proofs.soak.books import Books
from holdfast_proofs.soak.judge import Verdict, judge
from holdfast_proofs.soak.load import Plan, Ran, far_ends
from holdfast_proofs.soak.person import Person
from holdfast_proofs.soak.site import Site
from holdfast_proofs.soak.workers import APP
from holdfast_proofs.support.postgres import SUPPORTED, find_oldest

LEASE_S = 4.0
STALL_S_MAX = 300.0
STEPS = 10
WORKERS = 2  # of each region


@dataclass(slots=True)
class Lost:
    """What the rounds came to."""

    rounds: int = 0
    effects: int = 0
    duplicates: int = 0
    lost: int = 0
    silent: int = 0
    breaches: int = 0
    parked: int = 0
    needless_parks: int = 0
    sent_after: int = 0
    written_after: int = 0
    sent_alone: int = 0  # requests while the standby was gone
    first_step_s: list[float] = field(default_factory=list[float])
    findings: list[str] = field(default_factory=list[str])

    def add(self, number: int, verdict: Verdict) -> None:
        for name in ("effects", "duplicates", "lost", "silent", "breaches", "parked", "needless_parks"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))
        self.findings += [f"round {number}: {one}" for one in verdict.findings]


class Round:
    def __init__(
        self, made: Cluster, folder: Path, number: int, plan: Plan, chance: random.Random, *, lease_s: float
    ) -> None:
        self._made, self._folder, self._number, self._plan, self._chance = made, folder, number, plan, chance
        self._lease_s = lease_s
        self._log = folder / "workers.log"
        self._schema = f"region_{number}"
        folder.mkdir(mode=0o700)
        load_or_create(folder / KEYS, journal_exists=False, entropy=SystemEntropy())

    async def lose_standby(self, figures: Lost) -> None:
        """The other region is gone, and nobody is promoted: no effect leaves until it is back."""
        net, ran = self._made.network, Ran()
        async with far_ends(self._plan, self._folder, host=Network.world) as ends:
            await self._submit({end.kind: end.url for end in ends})
            books = Books(self._folder, FAR_ENDS)
            with self._workers(net.east), self._workers(net.west):
                await self._wait_effects(books, self._plan.tasks * self._plan.steps // 4)
                net.cut(self._made.standby.region)
                await asyncio.sleep(self._lease_s / 2)  # calls that had begun
                sent = await _requests(ends)
                await asyncio.sleep(3 * self._lease_s)
                figures.sent_alone += await _requests(ends) - sent
                net.heal(self._made.standby.region)
                await self._wait_ended(ran, books)
        figures.add(self._number, await judge(self._plan, ran, self._site(self._made.primary)))

    async def run(self, figures: Lost) -> None:
        net, old, ran = self._made.network, self._made.primary, Ran()
        async with far_ends(self._plan, self._folder, host=Network.world) as ends:
            await self._submit({end.kind: end.url for end in ends})
            books = Books(self._folder, FAR_ENDS)
            with self._workers(net.east), self._workers(net.west):
                share = self._chance.uniform(0.1, 0.5)
                await self._wait_effects(books, int(self._plan.tasks * self._plan.steps * share))
                net.cut(old.region, from_world=self._number % 2 == 0)
                kept = self._records(old)
                await asyncio.sleep(self._chance.uniform(0, 2))
                self._made.promote()
                promoted, before = time.monotonic(), self._records(self._made.primary)
                heal_s = None if self._number % 4 < 2 else self._lease_s + self._chance.uniform(0, 8)
                healing = asyncio.create_task(self._heal(old.region, heal_s))
                await self._wait_step(before)
                figures.first_step_s.append(round(time.monotonic() - promoted, 2))
                await self._wait_ended(ran, books)
                healing.cancel()
                net.heal(old.region)
                sent = await _requests(ends)
                await asyncio.sleep(2 * self._lease_s)
                figures.sent_after += await _requests(ends) - sent
                figures.written_after += self._records(old) - kept
        verdict = await judge(self._plan, ran, self._site(self._made.primary))
        figures.add(self._number, verdict)
        figures.rounds += 1

    def _site(self, server: RegionServer) -> Site:
        url = f"{server.url()}&schema={self._schema}"
        return Site(journal=JournalAddress(folder=self._folder, url=url), hosts=(), services=Network.world)

    async def _submit(self, urls: dict[str, str]) -> None:
        site = self._site(self._made.primary)
        async with holdfast.open(site.journal, serve=False) as hf:
            site.make_table()
            await asyncio.gather(
                *(
                    hf.submit(TASK, request_id=str(number), urls=urls, number=number, steps=self._plan.steps)
                    for number in range(self._plan.tasks)
                )
            )

    @contextmanager
    def _workers(self, region: Region) -> Generator[None]:
        home = self._folder / region.name
        home.mkdir(mode=0o700)
        shutil.copy(self._folder / KEYS, home / KEYS)
        url, own = self._made.url({"schema": self._schema}, first=region), os.getpid()
        children: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(WORKERS):
                name = f"{region.name}-{number}"
                words = ("--journal", url, "--home", str(home), "--name", name, "--lease-ttl", str(self._lease_s))
                command = (*region.inside(), sys.executable, "-P", "-m", "holdfast", "worker", APP, *words)
                with open(self._log, "ab") as log:
                    child = subprocess.Popen(
                        (*command, "--concurrency", str(self._plan.concurrency)),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        preexec_fn=lambda: die_with_parent(own),  # noqa: PLW1509 - no thread starts one
                    )
                children.append(child)
            yield
        finally:
            for child in children:
                child.kill()
                child.wait()

    async def _wait_effects(self, books: Books, count: int) -> None:
        until = time.monotonic() + STALL_S_MAX
        while sum(len(log.effects) for log in books.logs.values()) < count:
            books.read()
            if time.monotonic() > until:
                raise ProofFailed(f"round {self._number}: fewer than {count} effects", hint=f"see {self._log}")
            await asyncio.sleep(0.05)

    def _records(self, server: RegionServer) -> int:
        return int(server.execute(f"SELECT count(*) FROM {self._schema}.record WHERE kind = 3")[0][0])

    async def _wait_step(self, before: int) -> None:
        until = time.monotonic() + STALL_S_MAX
        while self._records(self._made.primary) <= before:
            if time.monotonic() > until:
                raise ProofFailed(f"round {self._number}: no step after the promotion", hint=f"see {self._log}")
            await asyncio.sleep(0.05)

    async def _heal(self, region: Region, after_s: float | None) -> None:
        if after_s is not None:
            await asyncio.sleep(after_s)
            self._made.network.heal(region)

    async def _wait_ended(self, ran: Ran, books: Books) -> None:
        """Until every task has ended; a person settles what is parked."""
        began = moved = time.monotonic()
        async with holdfast.open(self._site(self._made.primary).journal, serve=False) as hf:
            person = Person(hf, books)
            while ran.finished < self._plan.tasks:
                with suppress(HoldfastError):
                    await person.look()
                before, ran.ended = ran.finished, await hf.journal.count_tasks()
                if ran.finished > before:
                    moved = time.monotonic()
                if time.monotonic() - moved > STALL_S_MAX:
                    ran.trouble = f"no task has ended for {STALL_S_MAX:g} s: {ran.ended}"
                    break
                await asyncio.sleep(0.1)
            ran.settled, ran.retried, ran.asked = person.settled, person.retried, person.asked
        ran.seconds = time.monotonic() - began


async def _requests(ends: list[FarEnd]) -> int:
    return sum([len((await end.ledger()).requests) for end in ends])


def _prove(given: argparse.Namespace) -> Result:
    signal.signal(signal.SIGTERM, _end)
    chance, figures = random.Random(given.seed), Lost()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-regions-"))
    plan = Plan(tasks=given.tasks, steps=STEPS, workers=2 * WORKERS, concurrency=8, backlog=given.tasks)
    with network() as net, cluster(net, version=given.version or find_oldest()) as made:
        if not given.rounds_only:
            asyncio.run(Round(made, folder / "0", 0, plan, chance, lease_s=given.lease).lose_standby(figures))
            print(f"standby gone: {figures.sent_alone} requests meanwhile", file=sys.stderr)
        for number in range(given.first, given.first + given.rounds):
            old = made.primary
            asyncio.run(Round(made, folder / str(number), number, plan, chance, lease_s=given.lease).run(figures))
            print(
                f"round {number}: {figures.effects} effects, next step after {figures.first_step_s[-1]} s",
                file=sys.stderr,
            )
            if figures.findings or figures.sent_after or figures.written_after or figures.sent_alone:
                break
            shutil.rmtree(folder / str(number))
            if number < given.first + given.rounds - 1:
                old.kill()
                made.replicate()
                wait_for(lambda: made.primary.sync_state() == "sync", "the standby is synchronous")
    return _result(given, figures, folder)


def _end(*_: object) -> None:
    sys.exit(1)  # what was begun is removed


def _result(given: argparse.Namespace, figures: Lost, folder: Path) -> Result:
    findings = list(figures.findings)
    if figures.sent_after or figures.written_after:
        findings.append(
            f"the old region sent {figures.sent_after} requests and wrote {figures.written_after} records afterwards"
        )
    if figures.sent_alone:
        findings.append(f"{figures.sent_alone} requests were sent while the standby was gone")
    if findings:
        findings.append(f"logs and books: {folder}")
    else:
        shutil.rmtree(folder)
    longest = max(figures.first_step_s)
    return Result(
        green=not findings,
        figures=figures,
        findings=findings,
        again=f"--rounds {given.rounds} --tasks {given.tasks} --lease {given.lease:g} --seed {given.seed}",
        summary=f"{figures.rounds} regions lost under {given.tasks} tasks each, {figures.effects} effects: duplicates "
        f"{figures.duplicates}, lost {figures.lost}, silent {figures.silent}, breaches {figures.breaches}, parked "
        f"{figures.parked} (needless {figures.needless_parks}); the old region then sent {figures.sent_after} requests "
        f"and wrote {figures.written_after} records; with the standby gone {figures.sent_alone} were sent; "
        f"next step at most {longest} s after the promotion (wanted {2 * given.lease + DELAY_S:g})",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=at_least_one, default=20, help="regions lost (20)")
    parser.add_argument(
        "--first", type=at_least_one, default=1, help="number of the first round: it decides what is cut"
    )
    parser.add_argument("--tasks", type=at_least_one, default=40, help="tasks of ten effects in each round (40)")
    parser.add_argument("--rounds-only", action="store_true", help="the standby is not lost before the rounds")
    parser.add_argument("--lease", type=float, default=LEASE_S, help=f"of the workers, in seconds ({LEASE_S:g})")
    parser.add_argument("--version", type=int, choices=SUPPORTED, help="of PostgreSQL (the oldest here)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")


PROOF = Proof(
    name="failovers.regions",
    purpose="Cut off a region with its server and workers, promote the other one's, count every effect. Needs root.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
