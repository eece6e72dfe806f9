"""A standby is promoted: each instance has a journal file of its own, and a person runs `holdfast instance promote`.

One round is a new agent with a primary and a standby. The primary works; a backup is made in the middle of it; after
some more effects the primary is lost, by turns in one of these ways:

    killed    it never comes back
    stopped   SIGSTOP; it is woken when the tasks have ended elsewhere
    running   it runs on while the standby is promoted, and reaches its witness

The standby is promoted and finishes the tasks, of which its journal knows only the beginning. A person settles what is
parked, by the services' books. Red: an effect that took place twice or never, a task that has not ended, a request of
the old primary after the tasks have ended, an old primary that still runs then or does not say why it stopped, a line
of the memory that the standby lacks.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast.backup.backups import open_backups
from holdfast.backup.places.backup_places import PlaceRequest, open_places
from holdfast.core.journal_address import file_at
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.ledger import count_duplicates
from holdfast.downstream.process import FarEnd
from holdfast.errors import EXIT_CONFLICT, HoldfastError
from holdfast.journal.contract import Filter
from holdfast.journal.records import ENDED, TaskState
from holdfast.layout.agent_home import load_home
from holdfast_proofs.instance_kills.world import World
from holdfast_proofs.runner import ProofFailed
from holdfast_proofs.soak.app import CLASSES, FAR_ENDS, class_of
from holdfast_proofs.soak.books import Books
from holdfast_proofs.soak.load import Plan, far_ends
from holdfast_proofs.soak.person import Person
from holdfast_proofs.soak.site import Site
from holdfast_proofs.support.command_line import Worker, command_line, environment
from holdfast_proofs.takeovers.app import APP, TASK
from holdfast_proofs.takeovers.lab import signal_all

KINDS = ("killed", "stopped", "running")
TASKS, STEPS = 6, len(CLASSES)
WATCH_S, GRACE_S = 2.0, 5.0
WAIT_S_MAX = 180.0
LOOK_S = 0.1
FIRST, LAST = "- written before the backup", "- written by the standby"


@dataclass(slots=True)
class Promotes:
    rounds: dict[str, int] = field(default_factory=dict[str, int])
    effects: int = 0
    unknown_effects: int = 0  # that had happened when the primary was lost, and are not in the backup
    duplicates: int = 0
    lost: int = 0
    settled: int = 0  # steps in doubt that a person decided
    sent_after: int = 0
    promote_s: list[float] = field(default_factory=list[float])
    stopped_s: list[float] = field(default_factory=list[float])  # until the old one had ended
    findings: list[str] = field(default_factory=list[str])


class Round:
    def __init__(self, folder: Path, number: int, kind: str, chance: random.Random, figures: Promotes) -> None:
        self._world, self._number, self._kind = World(folder / "world"), number, kind
        self._folder, self._chance, self._figures = folder, chance, figures
        self._books = Books(folder, FAR_ENDS)
        self._known = 0  # effects when the backup was made

    def _say(self, text: str) -> None:
        self._figures.findings.append(f"promotion {self._number}, {self._kind}: {text}")

    async def run(self) -> None:
        world = self._world
        await asyncio.to_thread(world.make, backup=False)
        await asyncio.to_thread(world.invite)
        await asyncio.to_thread(world.join)
        settings = world.home("a") / "holdfast.toml"
        text = settings.read_text().replace("[identity]\n", f"[identity]\nwatch_s = {WATCH_S}\n")
        settings.write_text(f"{text}\n[worker]\ngrace_s = {GRACE_S}\n")
        plan = Plan(tasks=TASKS, steps=STEPS, workers=1, concurrency=TASKS, backlog=TASKS)
        async with far_ends(plan, self._folder) as ends:
            old = await self._live(ends)
            try:
                await self._lose(old)
                new = self._promoted()
                try:
                    await self._finish()
                    await self._wake(old, ends)
                finally:
                    new.close()
            finally:
                signal_all(old.process.pid, signal.SIGCONT)
                old.close()
        self._judge()

    async def _live(self, ends: list[FarEnd]) -> Worker:
        """Tasks, a worker, a backup after some of the effects, then more effects."""
        home, world, urls = self._world.home("a"), self._world, {end.kind: end.url for end in ends}
        async with holdfast.open(home / "journal.db", serve=False) as hf:
            for number in range(TASKS):
                await hf.submit(TASK, request_id=str(number), urls=urls, number=number, steps=STEPS)
        (home / "MEMORY.md").write_text(f"{FIRST}\n")
        await (await open_places(load_home(home))).add(PlaceRequest(name="disk", address=str(world.root / "place")))
        worker = Worker(home, ("worker", APP, "--concurrency", str(TASKS)), environment(home))
        await self._wait_effects(worker, self._chance.randint(1, TASKS))
        for end in ends:  # the tasks wait inside a call, so that the backup does not have all of them
            await end.faults(Fault(kind=FaultKind.HOLD, n=None))
        await (await open_backups(load_home(home))).now(check=False)
        self._known = self._count()
        for end in ends:
            await end.faults()
            await end.release()
        await self._wait_effects(worker, min(self._known + self._chance.randint(2, 2 * TASKS), TASKS * 5))
        return worker

    def _count(self) -> int:
        self._books.read()
        return sum(len(log.effects) for log in self._books.logs.values())

    async def _wait_effects(self, worker: Worker, count: int) -> None:
        until = time.monotonic() + WAIT_S_MAX
        while self._count() < count:
            if time.monotonic() > until or worker.process.poll() is not None:
                raise ProofFailed(f"promotion {self._number}: fewer than {count} effects: {worker.said[-20:]}")
            await asyncio.sleep(0.02)

    async def _lose(self, old: Worker) -> None:
        if self._kind == "killed":
            signal_all(old.process.pid, signal.SIGKILL)
        elif self._kind == "stopped":
            signal_all(old.process.pid, signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        self._figures.unknown_effects += self._count() - self._known
        memory = self._world.home("b") / "MEMORY.md"
        memory.write_text(f"{memory.read_text() if memory.exists() else ''}{LAST}\n")

    def _promoted(self) -> Worker:
        home, began = self._world.home("b"), time.monotonic()
        off = ("--primary-is-off",) if self._kind == "killed" else ()
        done = subprocess.run(
            command_line("instance", "promote", "--yes", "--json", "--home", str(home), "--place", self._place, *off),
            env=environment(home),
            capture_output=True,
            text=True,
            timeout=WAIT_S_MAX,
        )
        if done.returncode:
            raise ProofFailed(f"instance promote ended with {done.returncode}: {done.stderr[-900:]}")
        self._figures.promote_s.append(round(time.monotonic() - began, 2))
        return Worker(home, ("worker", APP, "--concurrency", str(TASKS)), environment(home))

    @property
    def _place(self) -> str:
        return str(self._world.root / "place")

    async def _finish(self) -> None:
        """Every task ends at the standby; a person settles what is parked."""
        until = time.monotonic() + WAIT_S_MAX
        async with holdfast.open(self._world.home("b") / "journal.db", serve=False) as hf:
            person = Person(hf, self._books)
            while True:
                with suppress(HoldfastError):
                    await person.look()
                rows = await hf.journal.list_tasks(Filter(name=TASK, limit=TASKS + 1))
                if len(rows) == TASKS and all(row.state in ENDED for row in rows):
                    break
                if time.monotonic() > until:
                    self._say(f"the tasks have not ended: {Counter(row.state.value for row in rows)}")
                    break
                await asyncio.sleep(LOOK_S)
            self._figures.settled += sum(person.settled.values())
            for row in rows:
                if row.state is not TaskState.SUCCEEDED:
                    self._say(f"task {row.task_id} is {row.state}")

    async def _wake(self, old: Worker, ends: list[FarEnd]) -> None:
        """It sends nothing more, ends by itself and says why."""
        if self._kind == "killed":
            return
        sent, began = await _requests(ends), time.monotonic()
        signal_all(old.process.pid, signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(old.process.wait, WAIT_S_MAX)
        self._figures.stopped_s.append(round(time.monotonic() - began, 2))
        self._figures.sent_after += (after := await _requests(ends) - sent)
        if after:
            self._say(f"the old primary sent {after} requests after the tasks had ended")
        if old.process.poll() is None:
            self._say("the old primary still runs")
            return
        code = await asyncio.to_thread(old.wait_end)
        if code != EXIT_CONFLICT or "was not made here" not in "".join(old.said):
            self._say(f"the old primary ended with {code} and does not say why: {old.said[-3:]}")

    def _judge(self) -> None:
        self._books.read()
        home, figures = self._world.home("b"), self._figures
        rows = Site(journal=file_at(home / "journal.db"), hosts=()).count_rows()
        per_class = Counter({"transactional": len(rows)})
        if any(count > 1 for count in rows.values()):
            self._say("a transaction took place twice")
        for name, log in self._books.logs.items():
            twice = count_duplicates(log.effects, repeats_allowed=name == "idempotent")
            if twice:
                figures.duplicates += twice
                self._say(f"{name}: {twice} effects took place once too often")
            per_class[name] = len(log.by_step)
        wanted = Counter(class_of(number, step) for number in range(TASKS) for step in range(1, STEPS + 1))
        for name, count in wanted.items():
            figures.effects += per_class[name]
            if per_class[name] != count:
                figures.lost += abs(count - per_class[name])
                self._say(f"{name}: {per_class[name]} effects, and {count} were asked for")
        said = (home / "MEMORY.md").read_text()
        for line in (FIRST, LAST):
            if said.count(line) != 1:
                self._say(f"{line!r} is in MEMORY.md {said.count(line)} times")


async def _requests(ends: list[FarEnd]) -> int:
    return sum([len((await end.ledger()).requests) for end in ends])


def promote_rounds(count: int, seed: int) -> Promotes:
    figures, chance = Promotes(), random.Random(seed)
    for number in range(1, count + 1):
        kind = KINDS[number % len(KINDS)]
        folder = Path(tempfile.mkdtemp(prefix="holdfast-promotes-"))
        asyncio.run(Round(folder, number, kind, chance, figures).run())
        figures.rounds[kind] = figures.rounds.get(kind, 0) + 1
        print(f"promotion {number}: {kind}, {figures.promote_s[-1]} s", file=sys.stderr)
        if figures.findings:
            figures.findings.append(f"logs, folders and books: {folder}")
            break
        shutil.rmtree(folder)
    return figures


def summary(one: Promotes) -> str:
    times = sorted(one.promote_s)
    return (
        f"promotes: {sum(one.rounds.values())} of standbys with a journal of their own, {one.effects} effects, "
        f"{one.unknown_effects} unknown to the backup: duplicates {one.duplicates}, lost {one.lost}, settled by a "
        f"person {one.settled}, sent after {one.sent_after}; promoted within {times[-1] if times else 0:g} s"
    )
