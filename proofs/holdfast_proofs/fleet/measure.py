"""Processor time, memory and connections of a worker and its server, as the kernel and PostgreSQL count them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from holdfast_proofs.support.postgres import Server

_TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def processor_s(pids: Iterable[int]) -> float:
    """Of these processes, and of their children that have ended."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += sum(int(one) for one in _stat(pid)[11:15])
    return total / _TICKS


def memory_mib(pids: Iterable[int]) -> float:
    """What they have in memory; of what several share, each counts its part."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def connections(server: Server) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
    return int(server.execute(query)[0][0])


def core_share(roots: dict[str, int], seconds: float) -> dict[str, float]:
    """The share of one core that each family of processes takes while nothing is done with them."""
    before, began = {name: processor_s(family(pid)) for name, pid in roots.items()}, time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return {name: round((processor_s(family(pid)) - before[name]) / passed, 4) for name, pid in roots.items()}


def _stat(pid: int) -> list[str]:
    """The fields after the name; the first is the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
