"""Connections that break under load: the server ends them, or the pooler before it is killed and started again.

The load is the soak's, on four real workers. `connections`: their connections, and those of the one who submits and
settles, are ended with `pg_terminate_backend`, whatever they are doing. `poolers`: everybody reaches the server through
pgbouncer in transaction mode, which is killed again and again. Judged as the soak is. A load is run again, on a new
journal, until there were enough breaks.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg

from holdfast.app.binder import KEYS
from holdfast.core.clock import SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast_proofs.runner import Proof, Result
from holdfast_proofs.soak.judge import judge
from holdfast_proofs.soak.load import Plan, run_load
from holdfast_proofs.soak.site import Host, Site
from holdfast_proofs.support.postgres import SUPPORTED, Pgbouncer, Server, find_oldest, pooled, started

WORKERS, STEPS, CONCURRENCY = 4, 10, 8
CONNECTION_EVERY_S, POOLER_EVERY_S = 0.03, 0.5
_PIDS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' AND pid <> pg_backend_pid()"


@dataclass(slots=True)
class Figures:
    breaks: int = 0
    loads: int = 0
    workers: int = WORKERS
    schema: str = ""  # of the load under way
    effects: int = 0
    duplicates: int = 0
    lost: int = 0
    silent: int = 0
    breaches: int = 0
    parked: int = 0
    needless_parks: int = 0
    poisoned: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list[str])


async def _end_connections(server: Server, figures: Figures, chance: random.Random, count: int) -> None:
    await _wait_serving(server, figures)
    while figures.breaks < count:
        await asyncio.sleep(CONNECTION_EVERY_S)
        with suppress(psycopg.Error):
            pids = [row[0] for row in await asyncio.to_thread(server.execute, _PIDS)]
            if pids:
                await asyncio.to_thread(server.execute, f"SELECT pg_terminate_backend({chance.choice(pids)})")
                figures.breaks += 1


async def _wait_serving(server: Server, figures: Figures) -> None:
    """Somebody who opens the journal while its connection ends gets an error, and would have to ask again."""
    sessions = 0
    while sessions < figures.workers:
        await asyncio.sleep(0.1)
        with suppress(psycopg.Error):
            query = f"SELECT count(*) FROM {figures.schema}.session"
            sessions = (await asyncio.to_thread(server.execute, query))[0][0]


async def _restart(pooler: Pgbouncer, figures: Figures, chance: random.Random, count: int) -> None:
    await _wait_serving(pooler.server, figures)
    while figures.breaks < count:
        await asyncio.sleep(chance.uniform(0.5, 1.5) * POOLER_EVERY_S)
        # Not in a thread: a pooler ends together with the thread that started it.
        pooler.end(signal.SIGKILL)
        pooler.start()
        figures.breaks += 1


async def _load(plan: Plan, url: str, folder: Path, figures: Figures, breaking: Awaitable[None]) -> None:
    folder.mkdir(mode=0o700)
    load_or_create(folder / KEYS, journal_exists=False, entropy=SystemEntropy())
    journal = JournalAddress(folder=folder, url=f"{url}&schema={folder.name}")
    site = Site(journal=journal, hosts=[Host(folder=folder)])
    figures.schema = folder.name
    task = asyncio.ensure_future(breaking)
    try:
        ran = await run_load(plan, site, lambda _: None)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    verdict = await judge(plan, ran, site)
    for name in ("effects", "duplicates", "lost", "silent", "breaches", "parked", "needless_parks"):
        setattr(figures, name, getattr(figures, name) + getattr(verdict, name))
    figures.findings += verdict.findings
    figures.poisoned += ran.retried
    figures.seconds += round(ran.seconds, 1)
    figures.loads += 1


def _run(
    name: str, given: argparse.Namespace, folder: Path, url: str, breaking: Callable[[Figures], Awaitable[None]]
) -> Figures:
    figures, count = Figures(), getattr(given, name)
    plan = Plan(
        tasks=given.tasks,
        steps=STEPS,
        workers=given.workers,
        concurrency=CONCURRENCY,
        backlog=2 * given.workers * CONCURRENCY,
    )
    figures.workers = given.workers
    while figures.breaks < count and not figures.findings:
        where = folder / f"{name}_{figures.loads}"
        asyncio.run(_load(plan, url, where, figures, breaking(figures)))
        print(f"{name}: {figures.breaks} of {count}, {figures.effects} effects", file=sys.stderr)
        if not figures.findings:
            shutil.rmtree(where)
    return figures


def _prove(given: argparse.Namespace) -> Result:
    chance = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-breaks-"))
    done: dict[str, Figures] = {}
    with started(given.version or find_oldest()) as server, pooled(server) as pooler:
        if given.connections:
            done["connections"] = _run(
                "connections",
                given,
                folder,
                server.url(),
                lambda f: _end_connections(server, f, chance, given.connections),
            )
        if given.poolers:
            done["poolers"] = _run(
                "poolers", given, folder, pooler.url(), lambda f: _restart(pooler, f, chance, given.poolers)
            )
    findings = [f"{name}: {one}" for name, figures in done.items() for one in figures.findings]
    if findings:
        findings.append(f"logs and books: {folder}")
    else:
        shutil.rmtree(folder)
    return Result(
        green=not findings,
        figures={name: asdict(figures) for name, figures in done.items()},
        findings=findings,
        again=f"--connections {given.connections} --poolers {given.poolers} --tasks {given.tasks} "
        f"--workers {given.workers} --seed {given.seed}",
        summary="; ".join(_said(name, figures) for name, figures in done.items()),
    )


def _said(name: str, one: Figures) -> str:
    return (
        f"{one.breaks} {name} broken under {one.effects} effects: duplicates {one.duplicates}, lost {one.lost}, "
        f"silent {one.silent}, breaches {one.breaches}, parked {one.parked} (needless {one.needless_parks})"
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=1_000, help="connections that the server ends (1000)")
    parser.add_argument("--poolers", type=int, default=100, help="times that pgbouncer is killed (100)")
    parser.add_argument("--tasks", type=int, default=200, help="tasks of ten effects in each load (200)")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"worker processes ({WORKERS})")
    parser.add_argument("--version", type=int, choices=SUPPORTED, help="of PostgreSQL (the oldest here)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of victims")


PROOF = Proof(
    name="failovers.breaks",
    purpose="End connections and restart the pooler under load, then count every effect.",
    add_options=_options,
    run=_prove,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
