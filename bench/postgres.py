"""Steps per second over a journal in PostgreSQL, beside raw commits and beside peers on the same server; claims; 30 ms.

    python bench/steps.py --journal postgres                      1, 50 and 500 tasks, claims, 30 ms
    python bench/steps.py --journal postgres --peers build/peers  also DBOS, LangGraph and absurd, interleaved
    python bench/steps.py --journal postgres --tasks 50           only that many, and only their rate

The server is one of its own, on the disk, with `fsync` on; nothing of it is tuned. Every measurement has a process and
a database of its own. In a round every subject has its turn at every size, and a ratio is the median of the ratios
within a round: a noisy neighbour then meets both sides of it. The floor is one insert of a row of a step's size per
commit, over one connection, by the same driver, measured before and after ours: a disk's speed drifts. Claims: how
long one takes with 1,000 and with 1,000,000 tasks that wait.

30 ms, in two ways. A slow link: a proxy gives every answer of the server 30 ms later, so each round trip counts. A slow
commit: the server waits 30 ms before it writes the log, as it does for a standby far away; other answers come at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast_proofs.support.postgres import NEWEST, Server, started

HERE = Path(__file__).parent
OURS = "holdfast"
SLOW_MS = 30
WAITING = (1_000, 1_000_000)
# How many steps a task gets: as many with 50 tasks as with 500, and a lone one about as many seconds as the floor. A
# peer's task costs something before its first step, so it gets more than a few.
STEPS = {1: 7_500, 50: 100, 500: 100}
PEER_STEPS = {1: 300, 50: 40, 500: 10}
SLOW_STEPS = {1: 200, 50: 40, 500: 20}
SLOW_PEER_STEPS = {1: 40, 50: 10, 500: 4}
PEERS: dict[str, tuple[str, ...]] = {
    "absurd": ("absurd_steps.py",),
    "absurd, intent step": ("absurd_steps.py", "--intent"),
    "dbos": ("dbos_steps.py",),
    "dbos, intent step": ("dbos_steps.py", "--intent"),
    "langgraph functional": ("langgraph_steps.py", "--form", "functional"),
    "langgraph graph, sync": ("langgraph_steps.py", "--form", "graph"),
}
QUICK_PEERS = ("absurd", "dbos", "langgraph functional")  # of each the faster form: 30 ms take long enough

Figures = dict[str, Any]  # Any: what a subject printed, numbers by name
Say = Callable[[str], None]


class Run(Protocol):
    def __call__(self, words: list[str], /, *, python: str = ...) -> Figures: ...


@dataclass
class Bench:
    """One server and what is measured on it."""

    run: Run
    say: Say
    server: Server
    peers: Path | None
    _number: int = field(default=0, init=False)

    def rates(
        self,
        sizes: Iterable[int],
        rounds: int,
        *,
        what: str = "",
        peers: Sequence[str] = (*PEERS,),
        steps: tuple[dict[int, int], dict[int, int]] = (STEPS, PEER_STEPS),
        url: Callable[[str], str] = lambda url: url,
    ) -> Figures:
        floors: list[float] = []
        found: dict[tuple[str, int], list[Figures]] = {}
        for nth in range(rounds):
            for size in sizes:
                now = f"PostgreSQL{what}: round {nth + 1} of {rounds}, {size} tasks"
                ones = dict[str, Figures]()
                around = [self.floor(now, url)]
                for name in (OURS, *(peers if self.peers else ())):
                    self.say(f"{now}, {name}")
                    ones[name] = self.subject(name, size, steps[name != OURS], url(self.database()))
                    around += [self.floor(now, url)] if name == OURS else []
                floors += around
                for name, one in ones.items():
                    rate = one["steps_per_s"]
                    ratios = {"of_floor": rate / statistics.mean(around), "ours_is": ones[OURS]["steps_per_s"] / rate}
                    found.setdefault((name, size), []).append(one | ratios)
        rows = [_row(name, size, ones) for (name, size), ones in found.items()]
        return {
            "floor_commits_per_s": statistics.median(floors),
            "floor_spread": [min(floors), max(floors)],
            "rates": rows,
            "best_peer": {size: best for size in sizes if (best := _best_peer(rows, size)) is not None},
        }

    def floor(self, now: str, url: Callable[[str], str]) -> float:
        self.say(f"{now}, raw commits")
        return self.run([str(HERE / "postgres_floor.py"), "--url", url(self.database())])["commits_per_s"]

    def subject(self, name: str, size: int, steps: dict[int, int], url: str) -> Figures:
        sized = ["--tasks", str(size), "--steps", str(steps.get(size, max(2_000 // size, 5)))]
        if name == OURS:
            return self.run([str(HERE / "subject.py"), "rate", "--journal", url, *sized])
        script, *options = PEERS[name]
        words = [str(HERE / "peers" / script), *options, "--url", url, *sized]
        return self.run(words, python=f"{self.peers}/bin/python")

    def database(self) -> str:
        self._number += 1
        self.server.execute(f"CREATE DATABASE bench_{self._number}")
        return self.server.url(f"bench_{self._number}")

    def claims(self, count: int) -> Figures:
        self.say(f"claims with {count:,} tasks that wait")
        return self.run([str(HERE / "postgres_claims.py"), "--url", self.database(), "--waiting", str(count)])

    def slow(self, sizes: Iterable[int]) -> Figures:
        some: Figures = {"peers": QUICK_PEERS, "steps": (SLOW_STEPS, SLOW_PEER_STEPS)}
        with _slow_link(self.server) as url:
            link = self.rates(sizes, 1, what=f", link {SLOW_MS} ms", url=url, **some)
        with _slow_commit(self.server):
            commit = self.rates(sizes, 1, what=f", commit {SLOW_MS} ms", **some)
        return {"slow_ms": SLOW_MS, "slow_link": link, "slow_commit": commit}


def measure(
    run: Run, say: Say, *, sizes: Sequence[int], rounds: int, rest: bool, waiting: int, peers: Path | None
) -> Figures:
    load = [os.getloadavg()[0]]
    with started(NEWEST, durable=True) as server:
        bench = Bench(run, say, server, peers)
        result: Figures = {"server": server.version, "rounds": rounds, **bench.rates(sizes, rounds)}
        if rest:
            result["claims"] = [bench.claims(count) for count in (WAITING[0], waiting)]
            result |= bench.slow(sizes)
    return result | {"load": [*load, os.getloadavg()[0]], "cores": os.cpu_count()}


def _row(name: str, size: int, ones: list[Figures]) -> Figures:
    rates = [one["steps_per_s"] for one in ones]
    medians = {key: statistics.median(one[key] for one in ones) for key in ones[0]}
    return {"subject": name, "tasks": size, **medians, "spread": [min(rates), max(rates)]}


def _best_peer(rows: Sequence[Figures], size: int) -> Figures | None:
    """Beside which Holdfast is the least fast."""
    peers = [row for row in rows if row["tasks"] == size and row["subject"] != OURS]
    best = min(peers, key=lambda row: row["ours_is"], default=None)
    return None if best is None else {"subject": best["subject"], "ours_is": best["ours_is"]}


@contextmanager
def _slow_commit(server: Server) -> Generator[None]:
    server.configure({"commit_delay": str(SLOW_MS * 1_000), "commit_siblings": "0"})
    server.reload()
    try:
        yield
    finally:
        server.configure({"commit_delay": "0"})
        server.reload()


@contextmanager
def _slow_link(server: Server) -> Generator[Callable[[str], str]]:
    """What makes a url of the server one through the proxy."""
    folder = server.folder / "slow"
    folder.mkdir(mode=0o700)
    proxy = multiprocessing.get_context("spawn").Process(target=serve_proxy, args=(str(server.folder), str(folder)))
    proxy.start()
    try:
        while not (folder / ".s.PGSQL.5432").exists():
            time.sleep(0.02)
        yield lambda url: url.replace(f"host={server.folder}", f"host={folder}")
    finally:
        proxy.kill()
        proxy.join()


def serve_proxy(behind: str, before: str) -> None:
    """Every answer of the server that listens in the folder `behind` comes SLOW_MS later. A process of its own."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        while block := await reader.read(1 << 16):
            if delay_s:
                loop.call_later(delay_s, writer.write, block)
            else:
                writer.write(block)
        loop.call_later(delay_s, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(f"{behind}/.s.PGSQL.5432")
        await asyncio.gather(
            forward(reader, there[1], 0.0), forward(there[0], writer, SLOW_MS / 1_000), return_exceptions=True
        )

    async def main() -> None:
        server = await asyncio.start_unix_server(serve, f"{before}/.s.PGSQL.5432")
        await server.serve_forever()

    asyncio.run(main())


def table(result: Figures) -> str:
    before, after = result["load"]
    lines = _rates(result, f"PostgreSQL {result['server']}, fsync on")
    if "claims" in result:
        few, many = result["claims"]
        lines += [
            "",
            f"one claim: {few['claim_ms']:.2f} ms with {few['waiting']:,} tasks that wait, {many['claim_ms']:.2f} ms "
            f"with {many['waiting']:,}: {many['claim_ms'] / few['claim_ms']:.2f} x",
            "",
            *_rates(result["slow_link"], f"slow link: every answer {result['slow_ms']} ms later"),
            "",
            *_rates(result["slow_commit"], f"slow commit: every commit {result['slow_ms']} ms later"),
        ]
    busy = f"load average {before:.1f} before, {after:.1f} after, on {result['cores']} cores"
    return "\n".join([*lines, "", f"{busy}; ratios are medians of {result['rounds']} rounds (30 ms: one)"])


def _rates(result: Figures, what: str) -> list[str]:
    lines = [
        f"{what}; raw commits of one row, one after the other: {result['floor_commits_per_s']:,.0f} /s",
        f"{'subject':<24} {'tasks':>6} {'steps/s':>10} {'of raw':>8} {'ours is':>9} {'commits/step':>13}",
    ]
    for row in sorted(result["rates"], key=lambda row: row["tasks"]):
        times = "" if row["subject"] == OURS else f"{row['ours_is']:.1f} x"
        commits = f"{row['commits_per_step']:.2f}" if "commits_per_step" in row else ""
        lines.append(
            f"{row['subject']:<24} {row['tasks']:>6} {row['steps_per_s']:>10,.0f} {row['of_floor']:>8.2f} "
            f"{times:>9} {commits:>13}"
        )
    best = [f"{size} tasks: {one['ours_is']:.1f} x {one['subject']}" for size, one in result["best_peer"].items()]
    return [*lines, f"holdfast beside the best peer: {', '.join(best)}"] if best else lines
