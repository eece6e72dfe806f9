"""Snapshots that somebody removed, and folders that somebody put back: both are told."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.backup.backups import Backups
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.upkeep.prune import prune
from holdfast.backup.upkeep.scheduled import notify_changes, notify_warning, run_due
from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.core.notices import Notice
from holdfast.errors import PruneRefused
from holdfast.layout.agent_home import load_home
from holdfast_proofs.backup_lab.world import World


class Told:
    def __init__(self) -> None:
        self.notices: list[Notice] = []

    async def tell(self, notice: Notice) -> None:
        self.notices.append(notice)


async def stolen(world: World, number: int = 1) -> tuple[Backups, list[str]]:
    """All archives of a place are removed with Borg itself, past us."""
    backups = await world.backups()
    await backups.look()
    repository = backups.places.repository(backups.places.read()[number - 1])
    listing = await backups.places.engine.list_archives(repository)
    names = [one.name for one in listing.archives]
    await backups.places.engine.delete(repository, names)
    return backups, names


async def run(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))


async def test_removed_archives_are_told_by_every_run_until_a_person_accepts_it(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    backups, names = await stolen(world)
    home = ("--home", str(world.home.folder))
    assert await run("place", "check", "place-1", "--json", *home) == 4
    checked = json.loads(capfd.readouterr().out)
    assert (checked["snapshots"], checked["missing"]) == ([], names)
    assert checked["result"] == "snapshots-missing"
    assert await run("backup", "list", "--json", *home) == 0
    listed = json.loads(capfd.readouterr().out)
    shown = listed["places"]
    assert all(datetime.fromisoformat(one["made"]).timestamp() == one["at"] for one in listed["snapshots"])
    assert all(bool(one[f"{name}_at"]) == bool(one[name]) for one in shown for name in ("last_backup", "last_verified"))
    assert [one["result"] for one in shown] == ["snapshots-missing", "ok"]
    assert [one["missing"] for one in shown] == [names, []]
    assert shown[0]["last_verified"] == 0, "what is gone is no verified backup"
    assert await run("backup", "list", *home) == 0
    assert capfd.readouterr().out.split()[:6] == ["number", "made", "files", "bytes", "places", "snapshot"]
    told = Told()
    await notify_changes(world.home, clock=SystemClock(), notices=told)
    assert [one.kind for one in told.notices] == ["backup-snapshots-missing"]
    assert names[0] in told.notices[0].text

    report = await backups.now(["place-1"])  # covers nothing up
    (made,) = report.places
    assert (made.made, made.verified, made.error) == (True, True, "snapshots-missing")
    assert (made.exit_code, report.good) == (4, False)
    assert await run("place", "list", *home) == 0
    listed = capfd.readouterr()
    assert "snapshots-missing" in listed.out
    assert names[0] in listed.err
    (refused,) = await prune(backups.places, names=["place-1"])
    assert isinstance(refused.error, PruneRefused)
    verified = await backups.verify(["place-1"])
    assert (verified.places[0].verified, verified.places[0].error) == (True, "snapshots-missing")

    (accepted,) = await prune(backups.places, names=["place-1"], accept_missing=True)
    assert accepted.error is None
    again = await backups.now(["place-1"], check=False)
    assert again.good
    await notify_changes(world.home, clock=SystemClock(), notices=told)
    assert [one.kind for one in told.notices][1:] == ["backup-well"]


async def test_a_backup_that_is_due_tells_it_and_our_own_pruning_is_no_loss(world: World) -> None:
    backups = await world.backups()
    await backups.now(["place-1"])
    later = datetime.now(UTC) + timedelta(days=800)
    (pruned,) = await prune(backups.places, names=["place-1"], now=later)
    assert pruned.plan is not None
    assert len(pruned.plan.remove) == 2
    told = Told()

    async def due() -> None:
        async def backup(names: object) -> None:
            await backups.now(["place-1"], check=False)

        await run_due(world.home, backup, every_s=0, clock=SystemClock(), notices=told)

    await due()
    assert told.notices == []
    repository = backups.places.repository(backups.places.read()[0])
    await backups.places.engine.delete(repository, [pruned.plan.keep[-1]])
    await due()
    assert [one.kind for one in told.notices] == ["backup-snapshots-missing"]
    await due()
    assert len(told.notices) == 1, "told once"


async def test_place_check_names_what_is_wrong_beside(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    home = ("--home", str(world.home.folder))
    assert await run("place", "check", "place-1", *home) == 0
    own = world.repository(1).parent
    heads, escrow = own / "heads.jsonl", own / "escrow.age"
    heads.write_bytes(heads.read_bytes()[:-40])
    escrow.unlink()
    (own / "place.json").write_text("{}")
    (own / "kel.jsonl").unlink()
    capfd.readouterr()
    assert await run("place", "check", "place-1", "--json", *home) == 6
    beside = json.loads(capfd.readouterr().out)["beside"]
    assert beside == [
        "place.json differs from what it should be",
        "escrow.age is missing",
        "heads.jsonl: the last line has no end: the file was cut off",
        "kel.jsonl is missing",
    ]
    assert (await (await world.backups()).verify(["place-1"])).good
    assert await run("place", "check", "place-1", *home) == 0


async def test_a_folder_that_was_put_back_is_backed_up_with_a_warning_and_nothing_is_pruned(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An agent without a journal: nothing else would tell."""
    world.home.journal.path.unlink()
    old = tmp_path / "ada.bak"
    shutil.copytree(world.home.folder, old, symlinks=True)
    backups = await world.backups()
    for _ in range(2):
        assert (await backups.now(["place-1"], check=False)).warnings == ()
    shutil.rmtree(world.home.folder)
    shutil.copytree(old, world.home.folder, symlinks=True)

    home = ("--home", str(world.home.folder))
    assert await run("backup", "list", "--json", *home) == 0
    (finding,) = json.loads(capfd.readouterr().out)["findings"]
    assert "end at snapshot 2, but its places have the head of snapshot 4" in finding
    assert await run("backup", "now", "--json", *home) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["snapshot"]["seq"] == 5
    (warned,) = shown["warnings"]
    assert warned["code"] == "older-folder"
    assert "either an older copy of the folder was put back" in warned["message"]
    assert "holdfast recover" in warned["hint"]
    numbers = [one.record.seq for one in HeadFile(world.home.heads_file).read().heads]
    assert numbers == [1, 2, 3, 4, 5]

    backups = await world.backups()
    assert (await backups.now(check=False)).warnings == (), "told once"
    soon = datetime.now(UTC) + timedelta(days=20)
    kept = {one.place.name: one.plan for one in await prune(backups.places, now=soon, dry_run=True)}
    plan = kept["place-1"]
    assert plan is not None
    assert {name.split("-")[2] for name in plan.keep} >= {"3", "4"}
    late = await prune(backups.places, now=soon + timedelta(days=11), dry_run=True)
    assert late[0].plan is not None
    assert {name.split("-")[2] for name in late[0].plan.remove} >= {"3", "4"}


async def test_the_warning_is_kept_until_it_is_told(world: World) -> None:
    first = HeadFile(world.home.heads_file).read().heads[0]
    world.home.heads_file.write_bytes(first.line() + b"\n")
    backups = await world.backups()
    report = await backups.now(["place-1"], check=False)
    assert (report.snapshot.seq, len(report.warnings)) == (3, 1)
    told = Told()
    home = load_home(world.home.folder)
    assert await notify_warning(home, clock=SystemClock(), notices=told)
    assert not await notify_warning(home, clock=SystemClock(), notices=told)
    assert [one.kind for one in told.notices] == ["backup-older-folder"]
