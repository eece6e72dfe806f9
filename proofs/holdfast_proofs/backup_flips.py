"""`python -m holdfast_proofs.backup_flips`: one wrong bit, and what a restore makes of it.

    repository   a bit of any file of a Borg repository; the snapshot is fetched with real Borg
    staging      a bit of a staged file, of the manifest or of the head, before it is archived
    stream       a bit of the tar stream on its way to the reader
    heads        a bit of the chain of heads

Each is either found (an error, or a finding), or what comes out is equal to what went in, byte by
byte and mode by mode. A wrong file that is given out in silence is counted as such, and is what
this command looks for. With `--self-test` the reader forgets to compare, and must be caught.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from holdfast.backup.archive import reader
from holdfast.backup.archive.reader import read_snapshot
from holdfast.backup.chain.chain import valid_heads
from holdfast.backup.chain.heads import parse_lines
from holdfast.backup.engine import BackupEngine
from holdfast.backup.snapshot.place_snapshots import fetch
from holdfast.errors import HoldfastError
from holdfast.host.folder_swap import remove_tree
from holdfast.host.private_files import ensure_private_folder
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast_proofs.backup_lab import SODIUM, Owner, archive, snapshot, tree_members
from holdfast_proofs.backup_lab.flips import flip
from holdfast_proofs.backup_lab.trees import Tree, tree_of
from holdfast_proofs.backup_lab.world import World, make_world, write_files
from holdfast_proofs.runner import Proof, Result, at_least_one, fast_folder

SHARES = {"repository": 0.2, "staging": 0.3, "stream": 0.3, "heads": 0.2}


@dataclass
class Figures:
    """How many of each kind were found, and how many changed nothing."""

    flips: int = 0
    found: int = 0
    equal: int = 0
    silent: list[str] = field(default_factory=list[str])

    def add(self, outcome: str, what: str) -> None:
        self.flips += 1
        if outcome == "found":
            self.found += 1
        elif outcome == "equal":
            self.equal += 1
        else:
            self.silent.append(what)


def flip_all(flips: int, seed: int, *, weak: bool = False, repositories: bool = True) -> dict[str, Figures]:
    """The figures by kind. `repositories` asks real Borg, which takes half a second each."""
    chance = random.Random(seed)
    figures = {name: Figures() for name in SHARES}
    with fast_folder("flips") as root:
        counts = {name: max(1, round(flips * share)) for name, share in SHARES.items()}
        with _weakened(weak):
            _flip_lab(root / "lab", counts, chance, figures)
            if repositories:
                count = counts["repository"]
                asyncio.run(_flip_repositories(root / "world", count, chance, figures))
    return figures


def _flip_lab(root: Path, counts: dict[str, int], chance: random.Random, figures: dict[str, Figures]) -> None:
    agent, owner = root / "agent", Owner()
    ensure_private_folder(agent)
    write_files(agent, 6, 400)
    (agent / "tool.sh").write_bytes(b"#!/bin/sh\n")
    (agent / "tool.sh").chmod(0o755)
    head = snapshot(owner, agent, root / "staging")
    wanted = tree_of(agent)
    stream = archive(tree_members(root / "staging")).getvalue()

    def from_staging() -> tuple[str, str]:
        copy = root / "copy"
        shutil.copytree(root / "staging", copy)
        files = [path for path in copy.rglob("*") if path.is_file()]
        victim = chance.choices(files, weights=[path.stat().st_size for path in files])[0]
        at = flip(victim, chance)
        outcome = _read(archive(tree_members(copy)).getvalue(), head, root / "work", wanted)
        remove_tree(copy)
        return outcome, f"{victim.name} byte {at}"

    def from_stream() -> tuple[str, str]:
        raw = bytearray(stream)
        at = chance.randrange(len(raw))
        raw[at] ^= 1 << chance.randrange(8)
        return _read(bytes(raw), head, root / "work", wanted), f"byte {at}"

    lines = head.line() + b"\n"
    second = snapshot(owner, agent, root / "staging-2", before=head)
    lines += second.line() + b"\n"

    def from_heads() -> tuple[str, str]:
        raw = bytearray(lines)
        at = chance.randrange(len(raw))
        raw[at] ^= 1 << chance.randrange(8)
        held = parse_lines(bytes(raw), where="heads")
        good, faults = valid_heads(held.heads, owner.log(), port=SODIUM)
        known = {head.digest, second.digest}
        if any(one.digest not in known for one in good):
            return "silent", f"byte {at}"
        lost = len(good) < 2
        return ("found" if held.findings or faults or lost else "silent"), f"byte {at}"

    acts: dict[str, Callable[[], tuple[str, str]]] = {
        "staging": from_staging,
        "stream": from_stream,
        "heads": from_heads,
    }
    for name, act in acts.items():
        for _ in range(counts[name]):
            figures[name].add(*act())


def _read(raw: bytes, head: Signed[Head], work: Path, wanted: Tree) -> str:
    import io

    ensure_private_folder(work)
    try:
        found = read_snapshot(io.BytesIO(raw), head, work)
        return "equal" if tree_of(found.state) == wanted else "silent"
    except HoldfastError:
        return "found"
    finally:
        remove_tree(work)


async def _flip_repositories(root: Path, count: int, chance: random.Random, figures: dict[str, Figures]) -> None:
    world = await make_world(root, places=1, files=6, bytes_each=20_000)
    backups = await world.backups()
    report = await backups.now(check=False)
    newest = (await backups.look()).chain.newest
    if newest is None or not report.good:
        raise SystemExit("the world has no snapshot")
    shutil.copytree(world.repository(), root / "whole")
    wanted = await _fetched(world, backups.places.engine, newest)
    for _ in range(count):
        files = [path for path in world.repository().rglob("*") if path.is_file()]
        victim = chance.choices(files, weights=[max(1, path.stat().st_size) for path in files])[0]
        at = flip(victim, chance) if victim.stat().st_size else 0
        try:
            same = await _fetched(world, backups.places.engine, newest) == wanted
            outcome = "equal" if same else "silent"
        except HoldfastError:
            outcome = "found"
        where = victim.relative_to(world.repository())
        figures["repository"].add(outcome, f"{where} byte {at}")
        remove_tree(world.repository())
        shutil.copytree(root / "whole", world.repository())


async def _fetched(world: World, engine: BackupEngine, head: Signed[Head]) -> Tree:
    from holdfast.backup.places.places import read_places, repository_of
    from holdfast.identity.vault.ring import read_escrow
    from holdfast.identity.vault.vault import open_vault

    place = read_places(world.home.places_file)[0]
    vault = open_vault(world.root / "vault")
    work, base = world.root / "work", world.root / "base"
    ensure_private_folder(work)
    try:
        found = await fetch(engine.fresh(base), repository_of(place, read_escrow(vault)), head, work)
        return tree_of(found.state)
    finally:
        remove_tree(work)
        remove_tree(base)


def _weakened(weak: bool) -> AbstractContextManager[object]:
    """A reader that takes whatever content comes."""

    def careless(_entry: object, _came: object) -> None:
        pass

    return patch.object(reader, "_compare_one", careless) if weak else nullcontext()


def _run(given: argparse.Namespace) -> Result:
    figures = flip_all(given.flips, given.seed, weak=given.self_test)
    silent = [f"{name}: {one}" for name, kind in figures.items() for one in kind.silent]
    kinds = figures.values()
    return Result(
        green=bool(silent) == given.self_test,
        figures=figures,
        findings=() if given.self_test else silent,
        summary=f"{sum(one.flips for one in kinds):,} flips: {sum(one.found for one in kinds):,} found, "
        f"{sum(one.equal for one in kinds):,} changed nothing, {len(silent)} silent",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flips", type=at_least_one, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--self-test", action="store_true", help="a reader that does not compare")


PROOF = Proof(
    name="backup_flips", purpose="One wrong bit, and what a restore makes of it.", add_options=_options, run=_run
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
