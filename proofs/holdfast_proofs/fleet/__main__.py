"""`python -m holdfast_proofs.fleet`: one worker process serves 200 agents in one database of a real PostgreSQL.

Measured: the worker's connections; the memory of worker and server; the share of a core that both take while nothing
happens; and how long a task waits from the end of its submission to the first line of its code. That is measured with
tasks of quiet agents, by turns while nothing else happens and while one agent has thousands of tasks. At last the
worker process is killed in the middle of a flood: every agent must be served again, and every task must end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.app.binder import open_journal
from holdfast.core.ids import TaskId, fingerprint, fingerprint_key, task_id_from_bytes
from holdfast.core.values import canonical
from holdfast.journal.bind import Connections
from holdfast.journal.contract import Journal, Submission
from holdfast.journal.records import TaskState
from holdfast.layout.journal_location import journal_address
from holdfast_proofs.fleet import app
from holdfast_proofs.fleet.measure import connections, core_share, family, memory_mib
from holdfast_proofs.runner import Proof, ProofFailed, Result, at_least_one
from holdfast_proofs.support.command_line import Worker
from holdfast_proofs.support.postgres import SUPPORTED, Server, started

AGENTS, SETTLE_S, FLOOD, SAMPLES, ROUNDS = 200, 45.0, 5_000, 150, 3
IDLE_S = 310.0  # the looks that no change asks for are 300 s apart
CONNECTIONS_MAX, MEMORY_MIB_MAX, IDLE_SHARE_MAX, RATIO_MAX = 100, 4_096, 0.10, 2.0
BATCH = 500  # submissions that share a commit
PAUSE_S = 0.04  # between two measured tasks, on average
WAIT_S = 300.0
CLIENT = "application_name=client"  # of the one who submits: not counted


@dataclass(slots=True)
class Figures:
    agents: int
    start_s: float = 0.0
    restart_s: float = 0.0  # after a kill, until every agent is served again
    connections: int = 0  # the most that were seen
    memory_mib: dict[str, float] = field(default_factory=dict[str, float])
    idle_share: dict[str, float] = field(default_factory=dict[str, float])
    claim_ms: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    claim_p99_ratio: float = 0.0
    flood_tasks_per_s: float = 0.0
    tasks: int = 0
    unfinished: int = 0
    load: float = 0.0  # of the machine: what else it did

    def findings(self) -> list[str]:
        memory, idle = sum(self.memory_mib.values()), sum(self.idle_share.values())
        bounds = (
            (self.connections, CONNECTIONS_MAX, "connections of the worker"),
            (memory, MEMORY_MIB_MAX, "MiB of worker and server"),
            (idle, IDLE_SHARE_MAX, "of a core for worker and server while nothing happens"),
            (self.claim_p99_ratio, RATIO_MAX, "times the calm p99 of a claim during a flood"),
            (self.unfinished, 0, "tasks did not end"),
        )
        return [f"{found:,.4g} {what}: more than {most:,.4g}" for found, most, what in bounds if found > most]


class Agents:
    """The homes, and their journals as the one who submits has them open."""

    def __init__(self, folder: Path, server: Server, count: int) -> None:
        self.folder, self._server = folder, server
        self.homes = [folder / f"agent{number}" for number in range(count)]
        for home in self.homes:
            home.mkdir(mode=0o700)
            url = f"{server.url()}&schema={home.name}"
            (home / "holdfast.toml").write_text(f'agent = "{home.name}"\n\n[journal]\nurl = "{url}"\n')
        self.list_file = folder / "agents.txt"
        self.list_file.write_text("".join(f"{home}\n" for home in self.homes))
        self.begun = folder / "begun"
        self.begun.touch()
        self._journals: dict[Path, tuple[Journal, bytes]] = {}
        self._connections = Connections()
        self.submitted = 0

    async def open(self, homes: Sequence[Path], stack: AsyncExitStack) -> None:
        stack.push_async_callback(self._connections.close)
        for home in homes:
            address = journal_address(f"{self._server.url()}&schema={home.name}&{CLIENT}", home=home)
            journal, keys = await open_journal(address, create=False, connections=self._connections)
            stack.push_async_callback(journal.close)
            self._journals[home] = (journal, keys.k_effect)

    async def submit(self, home: Path, sample: str = "") -> TaskId:
        journal, key = self._journals[home]
        args = {"sample": sample}
        task_id = task_id_from_bytes(os.urandom(16))
        marked = fingerprint(fingerprint_key(key), tool="task work", canonical_args=canonical(args))
        self.submitted += 1
        await journal.submit(Submission(task_id=task_id, name="work", args=args, args_fingerprint=marked))
        return task_id

    async def unfinished(self) -> int:
        counted = [await journal.count_tasks() for journal, _ in self._journals.values()]
        return sum(sum(one.values()) - one.get(TaskState.SUCCEEDED, 0) for one in counted)

    async def waiting(self, home: Path) -> int:
        counted = await self._journals[home][0].count_tasks()
        return sum(counted.values()) - counted.get(TaskState.SUCCEEDED, 0)

    def find_begun(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for line in self.begun.read_text().splitlines():
            sample, at_ns = line.split()
            found.setdefault(sample, int(at_ns))
        return found


async def _sample(agents: Agents, quiet: Sequence[Path], dice: random.Random, *, name: str, count: int) -> list[float]:
    """How long these tasks waited, in milliseconds."""
    submitted: dict[str, int] = {}
    for number in range(count):
        await asyncio.sleep(dice.expovariate(1 / PAUSE_S))
        sample = f"{name}.{number}"
        await agents.submit(dice.choice(quiet), sample)
        submitted[sample] = time.monotonic_ns()
    until = time.monotonic() + WAIT_S
    while not submitted.keys() <= (begun := agents.find_begun()).keys():
        if time.monotonic() > until:
            raise ProofFailed(f"{len(submitted.keys() - begun.keys())} tasks of quiet agents did not begin", hint="")
        await asyncio.sleep(0.1)
    return [max(0, begun[sample] - at_ns) / 1e6 for sample, at_ns in submitted.items()]


async def _flood(agents: Agents, home: Path, count: int) -> None:
    for done in range(0, count, BATCH):
        await asyncio.gather(*(agents.submit(home) for _ in range(min(BATCH, count - done))))


async def _measure(agents: Agents, worker: Worker, server: Server, given: argparse.Namespace, figures: Figures) -> None:
    dice = random.Random(given.seed)
    flooded, *rest = agents.homes
    quiet = dice.sample(rest, min(len(rest), given.quiet))
    waits: dict[str, list[float]] = {"calm": [], "flood": []}
    async with AsyncExitStack() as stack:
        await agents.open([flooded, *quiet], stack)
        await _sample(agents, quiet, dice, name="warm", count=2 * len(quiet))
        for number in range(given.rounds):
            waits["calm"] += await _sample(agents, quiet, dice, name=f"calm{number}", count=given.samples)
            begun_s, before = time.monotonic(), await agents.waiting(flooded)
            await _flood(agents, flooded, given.flood)
            waits["flood"] += await _sample(agents, quiet, dice, name=f"flood{number}", count=given.samples)
            figures.connections = max(figures.connections, connections(server))
            left = await agents.waiting(flooded)
            if not left:
                raise ProofFailed("the flood was over before it was measured", hint="give a larger --flood")
            done = before + given.flood - left
            figures.flood_tasks_per_s = round(done / (time.monotonic() - begun_s), 1)
            if number + 1 == given.rounds:
                figures.restart_s = await asyncio.to_thread(_kill, worker)
            await _wait_finished(agents, flooded)
        figures.unfinished = await agents.unfinished()
    figures.claim_ms = {name: _spread(found) for name, found in waits.items()}
    figures.claim_p99_ratio = round(figures.claim_ms["flood"]["p99"] / figures.claim_ms["calm"]["p99"], 2)


def _kill(worker: Worker) -> float:
    """Kill the worker process; the seconds until every agent is served again."""
    began = time.monotonic()
    os.kill(family(worker.process.pid)[1], signal.SIGKILL)
    event = worker.wait_event("fleet", WAIT_S)
    if event["serving"] != event["agents"]:
        raise ProofFailed(f"after a kill only {event['serving']} of {event['agents']} agents are served", hint="")
    return round(time.monotonic() - began, 1)


async def _wait_finished(agents: Agents, home: Path) -> None:
    until = time.monotonic() + WAIT_S
    while await agents.waiting(home) and time.monotonic() < until:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.5)


def _spread(waits: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(waits, n=100)
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": round(max(waits), 1), "samples": len(waits)}


def _run(given: argparse.Namespace) -> Result:
    figures = Figures(agents=given.agents)
    with (
        started(given.version, durable=not given.no_sync) as server,
        tempfile.TemporaryDirectory(prefix="holdfast-fleet-") as at,
    ):
        agents = Agents(Path(at), server, given.agents)
        began = time.monotonic()
        line = ("worker", f"{app.__file__}:tasks", "--fleet", str(agents.list_file))
        worker = Worker(agents.folder, line, {**os.environ, app.BEGUN: str(agents.begun)})
        try:
            event = worker.wait_event("fleet", WAIT_S)
            if event["serving"] != given.agents:
                raise ProofFailed(f"only {event['serving']} of {given.agents} agents are served", hint="")
            figures.start_s = round(time.monotonic() - began, 1)
            time.sleep(SETTLE_S)
            roots = {"worker": worker.process.pid, "server": server.pid}
            figures.idle_share = core_share(roots, given.idle)
            figures.connections = connections(server)
            asyncio.run(_measure(agents, worker, server, given, figures))
            figures.memory_mib = {name: round(memory_mib(family(pid)), 1) for name, pid in roots.items()}
            figures.tasks, figures.load = agents.submitted, round(os.getloadavg()[0], 1)
            worker.stop()
        finally:
            worker.close()
    found, claims = figures.findings(), figures.claim_ms
    memory, idle = sum(figures.memory_mib.values()), sum(figures.idle_share.values())
    return Result(
        green=not found,
        findings=found,
        figures=asdict(figures),
        summary=f"{given.agents} agents: {figures.connections} connections, {memory:,.0f} MiB, {idle:.1%} of a core "
        f"while nothing happens; p99 of a claim {claims['calm']['p99']} ms, {claims['flood']['p99']} ms during a flood "
        f"of one agent ({figures.claim_p99_ratio} x)",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agents", type=at_least_one, default=AGENTS)
    parser.add_argument("--quiet", type=at_least_one, default=40, help="agents whose claims are measured")
    parser.add_argument("--flood", type=at_least_one, default=FLOOD, help="tasks that one agent gets at once")
    parser.add_argument("--samples", type=at_least_one, default=SAMPLES, help="measured tasks in each part of a round")
    parser.add_argument("--rounds", type=at_least_one, default=ROUNDS, help="calm and flood by turns")
    parser.add_argument("--idle", type=float, default=IDLE_S, metavar="S", help="how long idleness is measured")
    parser.add_argument("--version", type=int, choices=SUPPORTED, default=SUPPORTED[-1], help="of PostgreSQL")
    parser.add_argument("--no-sync", action="store_true", help="the server waits for no disk")
    parser.add_argument("--seed", type=int, default=1)


PROOF = Proof(
    name="fleet",
    purpose="200 agents in one worker process: connections, memory, idle share, and a flood of one of them.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
