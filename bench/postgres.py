"""Steps per second over a journal in PostgreSQL, beside the raw commit rate of the same server; claims; a slow link.

    python bench/steps.py --journal postgres             1, 50 and 500 tasks, claims, 30 ms
    python bench/steps.py --journal postgres --tasks 50  only that many, and only their rate

The server is one of its own, on the disk, with `fsync` on; nothing of it is tuned. The floor is one insert of a row of
a step's size per commit, over one connection. Claims: how long one takes with 1,000 and with 1,000,000 tasks that wait.
The slow link is a proxy that gives every answer of the server 30 ms later, as a standby far away does with commits.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast_proofs.support.postgres import NEWEST, Server, started

HERE = Path(__file__).parent
SLOW_MS = 30
STEPS = {1: 1_000, 50: 100, 500: 20}
SLOW_STEPS = {1: 60, 50: 30, 500: 10}
WAITING = (1_000, 1_000_000)

Figures = dict[str, Any]  # Any: what a subject printed, numbers by name
Run = Callable[[list[str]], Figures]


def measure(
    run: Run, say: Callable[[str], None], *, sizes: Iterable[int], rounds: int, rest: bool, waiting: int
) -> Figures:
    with started(NEWEST, durable=True) as server:
        result: Figures = {"server": server.version, "rounds": rounds}
        fast = _Rates(run, say, lambda name: _database(server, name), STEPS, "")
        result |= fast.measure(sizes, rounds)
        if rest:
            result["claims"] = [_claims(run, say, server, count) for count in (WAITING[0], waiting)]
            with _slow(server) as url:
                slow = _Rates(run, say, lambda name: url(_database(server, name)), SLOW_STEPS, f", {SLOW_MS} ms")
                result["slow"] = {"ms": SLOW_MS} | slow.measure(sizes, 1)
    return result


class _Rates:
    def __init__(
        self, run: Run, say: Callable[[str], None], place: Callable[[str], str], steps: dict[int, int], what: str
    ) -> None:
        self._run, self._say, self._place, self._steps, self._what = run, say, place, steps, what
        self._number = 0

    def measure(self, sizes: Iterable[int], rounds: int) -> Figures:
        floors: list[float] = []
        found: dict[int, list[Figures]] = {}
        for nth in range(rounds):
            for size in sizes:
                self._say(f"PostgreSQL{self._what}: round {nth + 1} of {rounds}, {size} tasks")
                floor = self._run([str(HERE / "postgres_floor.py"), "--url", self._new()])
                floors.append(floor["commits_per_s"])
                steps = str(self._steps.get(size, max(2_000 // size, 1)))
                words = ["rate", "--journal", self._new(), "--tasks", str(size), "--steps", steps]
                found.setdefault(size, []).append(self._run([str(HERE / "subject.py"), *words]))
        commits = statistics.median(floors)
        rates: list[Figures] = []
        for size, ones in found.items():
            row = {key: statistics.median(one[key] for one in ones) for key in ones[0]}
            spread = [min(one["steps_per_s"] for one in ones), max(one["steps_per_s"] for one in ones)]
            rates.append({"tasks": size, **row, "of_floor": row["steps_per_s"] / commits, "spread": spread})
        return {"floor_commits_per_s": commits, "floor_spread": [min(floors), max(floors)], "rates": rates}

    def _new(self) -> str:
        self._number += 1
        return self._place(f"bench{'_slow' if self._what else ''}_{self._number}")


def _database(server: Server, name: str) -> str:
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


def _claims(run: Run, say: Callable[[str], None], server: Server, count: int) -> Figures:
    say(f"claims with {count:,} tasks that wait")
    url = _database(server, f"claims_{count}")
    return run([str(HERE / "postgres_claims.py"), "--url", url, "--waiting", str(count)])


@contextmanager
def _slow(server: Server) -> Generator[Callable[[str], str]]:
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
    lines = _rates(result, f"PostgreSQL {result['server']}, fsync on")
    if "claims" in result:
        few, many = result["claims"]
        lines += [
            "",
            f"one claim: {few['claim_ms']:.2f} ms with {few['waiting']:,} tasks that wait, {many['claim_ms']:.2f} ms "
            f"with {many['waiting']:,}: {many['claim_ms'] / few['claim_ms']:.2f} x",
            "",
            *_rates(result["slow"], f"every answer {result['slow']['ms']} ms later"),
        ]
    return "\n".join(lines)


def _rates(result: Figures, what: str) -> list[str]:
    lines = [
        f"{what}; raw commits of one row, one after the other: {result['floor_commits_per_s']:,.0f} /s",
        f"{'tasks':>6} {'steps/s':>10} {'of floor':>9} {'commits/step':>13}",
    ]
    for row in result["rates"]:
        lines.append(
            f"{row['tasks']:>6} {row['steps_per_s']:>10,.0f} {row['of_floor']:>9.2f} {row['commits_per_step']:>13.2f}"
        )
    return lines
