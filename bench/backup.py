"""How long backups take, and what they cost the agent that goes on working.

    python bench/backup.py [--big MB] [--json]

A 200-file, 5 MB agent with one place: the first backup, then one after a changed line, each with
its test restore; steps a second of a task that runs meanwhile, against the same task alone; with
`--big 1024` one gigabyte, backed up, restored and compared. Figures are of this machine, now: its
load is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import holdfast
from holdfast.backup.backups import ring_of
from holdfast.backup.restore.restore_home import Means, restore_to
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.ring import read_escrow
from holdfast_proofs.backup_lab.world import World, count, make_world, write_files

WINDOW_STEPS = 2_000
BIG_BYTES = 4 << 20  # of one file


async def small(root: Path) -> dict[str, float]:
    world = await make_world(root, places=1, files=200, bytes_each=25_000)
    backups = await world.backups()
    began = time.monotonic()
    first = await backups.now()
    first_s = time.monotonic() - began
    with world.home.memory_file.open("a") as file:
        file.write("- one line more\n")
    began = time.monotonic()
    second = await backups.now()
    again_s = time.monotonic() - began
    if not (first.good and second.good):
        raise SystemExit(f"a backup failed: {second}")
    (place,) = second.places
    return {
        "first_s": first_s,
        "incremental_s": again_s,
        "staging_s": second.staging_s,
        "backup_s": place.backup_s,
        "verify_s": place.verify_s,
        "stored_bytes": place.stored_bytes,
        "files": second.snapshot.files,
        "bytes": second.snapshot.bytes,
    }


async def throughput(world: World) -> dict[str, float]:
    """Steps a second alone, during backups, and alone again."""
    command = [sys.executable, "-m", "holdfast", "backup", "now", "--home", str(world.home.folder)]
    rates: dict[str, list[float]] = {"alone": [], "during": []}
    async with holdfast.open(world.home.journal, tasks=[count]) as hf:
        for _ in range(3):
            rates["alone"].append(await _rate(hf))
            child = subprocess.Popen(  # noqa: ASYNC220 - it runs beside
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            rates["during"].append(await _rate(hf))
            child.wait()
    alone, during = (sum(rates[name]) / 3 for name in ("alone", "during"))
    return {"alone_steps_s": alone, "during_steps_s": during, "share": during / alone}


async def _rate(hf: holdfast.Holdfast) -> float:
    began = time.monotonic()
    task = await hf.submit(count, steps=WINDOW_STEPS)
    await task.result()
    return WINDOW_STEPS / (time.monotonic() - began)


async def big(root: Path, megabytes: int) -> dict[str, float]:
    world = await make_world(root, places=1, files=1)
    write_files(world.home.folder, (megabytes << 20) // BIG_BYTES, BIG_BYTES)
    backups = await world.backups()
    began = time.monotonic()
    report = await backups.now(check=False)
    backup_s = time.monotonic() - began
    escrow = read_escrow(backups.places.vault)
    means = Means(
        engine=backups.places.engine,
        places=backups.places.read(),
        escrow=escrow,
        log=read_own_log(world.home.folder, Sodium()),
        keys=ring_of(escrow),
    )
    began = time.monotonic()
    restored = await restore_to(root / "restored", means)
    return {
        "bytes": report.snapshot.bytes,
        "backup_s": backup_s,
        "restore_s": time.monotonic() - began,
        "fetch_and_compare_s": restored.fetch_s,
    }


async def measure(root: Path, *, megabytes: int) -> dict[str, object]:
    found: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    found["small"] = await small(root / "small")
    from holdfast.layout.agent_home import load_home

    world = World(root=root / "small", home=load_home(root / "small" / "ada"))
    found["throughput"] = await throughput(world)
    if megabytes:
        found["big"] = await big(root / "big", megabytes)
    found["load_after"] = os.getloadavg()[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", type=int, default=0, metavar="MB", help="so much as well")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        found = asyncio.run(measure(Path(folder).resolve(), megabytes=given.big))
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    for name, value in found.items():
        if isinstance(value, dict):
            for inner, figure in msgspec.convert(value, dict[str, float]).items():
                print(f"{name:12} {inner:22} {figure:,.2f}")
        else:
            print(f"{name:12} {'':22} {value}")


if __name__ == "__main__":
    main()
