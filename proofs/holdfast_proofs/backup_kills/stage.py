"""The world as it is before each trial, and what is done in it."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.backup.backups import Backups, ring_of
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.places.backup_places import open_places
from holdfast.backup.rescue_keys import add_rescue_key, get_entry, revoke_rescue_key
from holdfast.backup.restore.restore_home import Means, Wish, restore_to
from holdfast.backup.upkeep.prune import prune as prune_places
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.ring import read_escrow
from holdfast.identity.vault.slots import file_key
from holdfast.layout.witness_address import WitnessFolder
from holdfast.recovery.recover_agent import RecoveryTarget, recover_agent
from holdfast.recovery.survey import Evidence, survey_evidence
from holdfast_proofs.backup_lab.trees import Tree, tree_of
from holdfast_proofs.backup_lab.world import World, add_places

KEY = "rescue-key"
LATER = timedelta(days=3650)  # when nothing is kept by its age


class Stage:
    """The world as it is before each trial, at one path."""

    def __init__(self, root: Path, world: World) -> None:
        self.root = root
        self.world = world
        self.backups: Backups = asyncio.run(world.backups())
        escrow = read_escrow(self.backups.places.vault)
        self.means = Means(
            engine=self.backups.places.engine,
            places=self.backups.places.read(),
            escrow=escrow,
            log=read_own_log(world.home.folder, Sodium()),
            keys=ring_of(escrow),
        )
        shutil.copytree(root / "world", root / "template", symlinks=True)
        self.old = tree_of(world.home.folder)
        self.held = files_of(world.place())
        self.restored: Tree = {}

    def reset(self, *, bare: bool = False) -> None:
        """The world as it was; on a bare machine only the place is left of it."""
        for path in self.root.iterdir():
            if path.name != "template":
                shutil.rmtree(path)
        shutil.copytree(self.root / "template", self.root / "world", symlinks=True)
        if bare:
            for name in ("ada", "vault", "second", "witness"):
                shutil.rmtree(self.world.root / name)


def files_of(folder: Path) -> Tree:
    return tree_of(folder, everything=True)


async def backup(stage: Stage) -> None:
    await stage.backups.now()


async def verify(stage: Stage) -> None:
    await stage.backups.verify()


async def restore(stage: Stage) -> None:
    await restore_to(stage.world.home.folder, stage.means, Wish(archive=older(stage)))


async def prune(stage: Stage) -> None:
    done = await prune_places(stage.backups.places, now=datetime.now(UTC) + LATER)
    if done[0].error is not None:
        raise done[0].error


async def first(stage: Stage) -> None:
    places = stage.backups.places
    if all(one.name != "place-2" for one in places.read()):
        await add_places(stage.world, [2])
    report = await stage.backups.now(["place-2"], check=False)
    that(report.good, f"not backed up: {report}")


async def recover(stage: Stage) -> None:
    root, port = stage.world.root, Sodium()
    key = [file_key(root / "unlock", (root / "unlock").read_bytes())]
    evidence = Evidence(places=(str(stage.world.place()),), words=stage.world.words)
    survey = await survey_evidence(evidence, root / "ada", engine=stage.means.engine.fresh(root / "base"), port=port)
    target = RecoveryTarget(
        folder=root / "ada",
        vault=root / "new-vault",
        second=root / "new-second",
        keys=key,
        second_keys=key,
        spare_witness=WitnessFolder(root / "new-witness"),
    )
    await recover_agent(
        survey, evidence, target, clock=SystemClock(), entropy=SystemEntropy(), port=port, tell=lambda _: None
    )


async def add_key(world: World) -> None:
    await add_rescue_key(await open_places(world.home), world.root / KEY, name=KEY)


async def revoke(stage: Stage) -> None:
    done = await revoke_rescue_key(stage.backups, get_entry(stage.backups.places, KEY))
    that(all(one.done for one in done), f"not revoked: {done}")


def older(stage: Stage) -> str:
    """The older snapshot, so that old and restored differ."""
    return HeadFile(stage.world.place() / "ada" / "heads.jsonl").read().heads[0].record.archive


def that(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


def same(one: Tree, other: Tree, text: str) -> None:
    if one != other:
        changed = sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
        raise AssertionError(f"{text}: {changed[:5]}")
