"""How long backups take, and what they cost the agent that goes on working.

    python bench/backup.py [--big MB] [--many FILES] [--json]

A 200-file, 5 MB agent with one place: the first backup, then one after a changed line, each with
its test restore; steps a second of a task that runs meanwhile, against the same task alone; with
`--big 1024` one gigabyte, backed up, restored and compared; with `--many 50000` so many files of which
one was changed, against 500 of them, and against Borg alone over the same files (docs/decisions/0049).
Figures are of this machine, now: its load is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import holdfast
from holdfast.backup.backups import ring_of
from holdfast.backup.engine import Repository
from holdfast.backup.restore.restore_home import Means, restore_to
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.secret_bytes import SecretBytes
from holdfast.identity.vault.ring import read_escrow
from holdfast.layout.covered import look
from holdfast_proofs.backup_lab.world import World, count, make_world, write_files

WINDOW_STEPS = 2_000
BIG_BYTES = 4 << 20  # of one file
FEW = 500
MANY_TIMES = 3  # the least of so many


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


def _spent() -> float:
    """Processor time of this process and of the ended ones that it started."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


async def many(root: Path, files: int) -> dict[str, float]:
    """Processor seconds of a backup without its test restore, one file changed; of a bare listing; of Borg alone."""
    few_s, _ = await _one_changed(root / "few", FEW)
    many_s, world = await _one_changed(root / "many", files)
    began = _spent()
    for _ in look(world.home.state, world.home.covering(), is_known=lambda path, mark: True):
        pass
    listing_s = _spent() - began
    borg_s = await _borg_alone(world, root)
    return {
        "files": files,
        "one_changed_s": many_s,
        "few_files_one_changed_s": few_s,
        "listing_s": listing_s,
        "three_few_and_listing_s": 3 * few_s + listing_s,
        "borg_alone_s": borg_s,
        "times_borg_alone": many_s / borg_s,
    }


async def _one_changed(root: Path, files: int) -> tuple[float, World]:
    world = await make_world(root, places=1, files=1)
    for number in range(files):
        folder = world.home.folder / "memory" / f"{number // FEW:03d}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / f"{number}.md").write_bytes(b"entry %d\n" % number * 20)
    backups = await world.backups()
    spent: list[float] = []
    for number in range(MANY_TIMES + 1):
        (world.home.folder / "memory" / "000" / "7.md").write_bytes(b"another %d\n" % number)
        await asyncio.sleep(0.1)
        began = _spent()
        report = await backups.now(check=False)
        spent.append(_spent() - began)
        if not all(place.made for place in report.places):
            raise SystemExit(f"a backup failed: {report}")
    return min(spent[1:]), world


async def _borg_alone(world: World, root: Path) -> float:
    """`borg create` over a folder with the same files, none changed, with Borg's cache warm."""
    shutil.copytree(world.home.folder / "memory", root / "bare")
    await asyncio.sleep(0.1)
    engine = (await world.backups()).places.engine.fresh(root / "base")
    repository = Repository(name="bare", address=str(root / "repository"), passphrase=SecretBytes(b"bare"))
    await engine.init(repository)
    spent: list[float] = []
    for number in range(MANY_TIMES + 1):
        began = _spent()
        await engine.create(repository, f"bare-{number}", root / "bare")
        spent.append(_spent() - began)
    return min(spent[1:])


async def measure(root: Path, *, megabytes: int, files: int) -> dict[str, object]:
    found: dict[str, object] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    found["small"] = await small(root / "small")
    from holdfast.layout.agent_home import load_home

    world = World(root=root / "small", home=load_home(root / "small" / "ada"))
    found["throughput"] = await throughput(world)
    if megabytes:
        found["big"] = await big(root / "big", megabytes)
    if files:
        found["many"] = await many(root / "many", files)
    found["load_after"] = os.getloadavg()[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big", type=int, default=0, metavar="MB", help="so much as well")
    parser.add_argument("--many", type=int, default=0, metavar="FILES", help="and so many files")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        found = asyncio.run(measure(Path(folder).resolve(), megabytes=given.big, files=given.many))
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
