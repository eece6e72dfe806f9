"""Damage in one place: what is whole elsewhere comes back, and what is lost is said."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

import pytest

from holdfast.backup.backups import ring_of
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.engine import Amount
from holdfast.backup.restore.restore_choice import Failures, Wish
from holdfast.backup.restore.restore_files import Gathering
from holdfast.backup.restore.restore_home import Means, restore_to
from holdfast.errors import BackupDamaged, DiskFull, PlaceUnreachable, RepositoryDamaged, SnapshotNotFound
from holdfast.identity.files.own_log import read_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.vault.ring import read_escrow
from holdfast_proofs.backup_lab.flips import damage, damage_newest
from holdfast_proofs.backup_lab.trees import tree_of
from holdfast_proofs.backup_lab.world import World


class Heard:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.amounts: list[tuple[str, Amount]] = []

    def say(self, text: str, /) -> None:
        self.said.append(text)

    def reached(self, what: str, amount: Amount, /) -> None:
        self.amounts.append((what, amount))


async def means_of(world: World) -> Means:
    """What a bare machine has: escrow, log, places."""
    backups = await world.backups()
    escrow = read_escrow(backups.places.vault)
    return Means(
        engine=backups.places.engine,
        places=backups.places.read(),
        escrow=escrow,
        log=read_own_log(world.home.folder, Sodium()),
        keys=ring_of(escrow),
    )


async def listening(world: World) -> tuple[Means, Heard]:
    means, heard = await means_of(world), Heard()
    means.engine.progress = heard
    return means, heard


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_one_damaged_chunk_takes_no_other_file_with_it(world: World) -> None:
    """One file is asked for; then a folder in which one file is damaged."""
    damage(world.repository(1), random.Random(7))
    means, there = await means_of(world), ("place-1",)
    only = await restore_to(world.root / "one", means, Wish(places=there, files=("MEMORY.md",)))
    assert (only.seq, only.damaged, only.passed, only.files) == (2, (), (), 1)
    assert (world.root / "one" / "MEMORY.md").read_bytes() == world.home.memory_file.read_bytes()
    some = await restore_to(world.root / "some", means, Wish(places=there, files=("memory",)))
    (lost,) = some.damaged
    assert "ntegrity" in lost.message
    was, came = contents(world.home.days), contents(world.root / "some" / "memory")
    name = lost.path.removeprefix("memory/")
    assert came == {path: raw for path, raw in was.items() if path != name}
    assert (some.seq, some.files, set(some.paths)) == (2, len(came), {f"memory/{n}" for n in came})
    with pytest.raises(RepositoryDamaged, match="these could not be used either") as caught:
        await restore_to(world.root / "whole", means, Wish(places=there))
    assert "--file PATH --to FOLDER" in caught.value.hint


async def test_repositories_that_were_exchanged_are_named(world: World) -> None:
    """Both are whole, and none is used: it is not the one that its place is known for. The person can put them back."""
    one, two = world.repository(1), world.repository(2)
    aside = world.root / "aside"
    for source, target in ((one, aside), (two, one), (aside, two)):
        source.rename(target)
    with pytest.raises(SnapshotNotFound) as caught:
        await restore_to(world.root / "all", await means_of(world), Wish())
    assert "the repository of place place-2 is at place place-1;" in caught.value.hint
    assert "move the folder `repository` back" in caught.value.hint


async def test_the_same_bytes_in_an_older_snapshot_elsewhere_are_as_good(world: World) -> None:
    """The second place has only the first snapshot, in which the damaged file was the same."""
    damage(world.repository(1), random.Random(7))
    report = await restore_to(world.root / "some", await means_of(world), Wish(files=("memory", "MEMORY.md")))
    assert (report.seq, report.damaged) == (2, ())
    assert contents(world.root / "some" / "memory") == contents(world.home.days)
    assert (world.root / "some" / "MEMORY.md").read_bytes() == world.home.memory_file.read_bytes()


async def test_where_nothing_of_it_is_whole_an_older_one_is_taken_and_told(world: World) -> None:
    """The newest state of a file is damaged in the only place that has it."""
    image = world.home.folder / "image.bin"
    image.write_bytes(b"older")
    backups = await world.backups()
    assert (await backups.now(["place-2"], check=False)).good
    image.write_bytes(os.urandom(16 * 4096))
    newest = await backups.now(["place-1"], check=False)
    assert damage_newest(world.repository(1), at_least=4_000) >= 16
    means = await means_of(world)
    report = await restore_to(world.root / "some", means, Wish(files=("image.bin",)))
    assert (report.seq, report.place) == (3, "place-2")
    assert report.behind is not None
    assert any(
        "all of the files that you asked for are damaged in this snapshot" in one.message for one in report.passed
    )
    assert (world.root / "some" / "image.bin").read_bytes() == b"older"
    alone = Wish(files=("image.bin",), archive=newest.snapshot.archive)
    with pytest.raises(BackupDamaged, match=r"image\.bin"):
        await restore_to(world.root / "more", means, alone)
    assert not (world.root / "more").exists()


async def test_a_newest_snapshot_that_is_damaged_in_one_place_comes_from_the_other(world: World) -> None:
    backups = await world.backups()
    assert (await backups.now(check=False)).good
    damage(world.repository(1), random.Random(7))
    means, heard = await listening(world)
    before = tree_of(world.home.folder)
    shutil.rmtree(world.home.folder)
    report = await restore_to(world.home.folder, means)
    assert (report.seq, report.place, report.behind) == (3, "place-2", None)
    assert [one.place for one in report.passed] == ["place-1"]
    assert [text[:20] for text in heard.said] == ["skipped snapshot 3 a"]
    assert tree_of(world.home.folder) == before
    wholes = [one for what, one in heard.amounts if what == "place place-2: fetching"]
    assert wholes[-1].bytes >= wholes[-1].bytes_all > 0


@pytest.fixture
async def both_damaged(world: World) -> World:
    """Each place has the newest snapshot, and in each another file of it is damaged."""
    assert (await (await world.backups()).now(check=False)).good
    for number, seed in ((1, 7), (2, 8)):
        damage(world.repository(number), random.Random(seed))
    return world


async def test_damage_of_two_places_is_joined(both_damaged: World) -> None:
    world = both_damaged
    means, heard = await listening(world)
    before = tree_of(world.home.folder)
    shutil.rmtree(world.home.folder)
    report = await restore_to(world.home.folder, means)
    assert (report.seq, report.behind) == (3, None)
    assert [one.place for one in report.passed] == ["place-1", "place-2"]
    assert report.passed[0].message != report.passed[1].message
    assert heard.said[-1] == "snapshot 3 was joined from undamaged files of several places or snapshots"
    assert tree_of(world.home.folder) == before


async def test_a_place_that_goes_away_while_files_are_joined_leads_to_no_older_snapshot(
    both_damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> None:
        raise PlaceUnreachable("no answer")

    monkeypatch.setattr(Gathering, "take", gone)
    with pytest.raises(PlaceUnreachable, match="no answer") as caught:
        await restore_to(both_damaged.root / "new", await means_of(both_damaged))
    assert "run the command again" in caught.value.hint
    assert not (both_damaged.root / "new").exists()


async def test_an_older_one_is_taken_only_with_a_warning_that_says_what_is_lost(world: World) -> None:
    (world.home.folder / "image.bin").write_bytes(os.urandom(16 * 4096))
    await world.work()
    assert (await (await world.backups()).now(["place-1"], check=False)).good
    assert damage_newest(world.repository(1), at_least=4_000) >= 16
    means, heard = await listening(world)
    report = await restore_to(world.root / "new", means)
    assert (report.seq, report.place) == (2, "place-1")
    (warning,) = [text for text in heard.said if text.startswith("WARNING")]
    assert re.search(r"snapshot 3 .* 2 of .* s and \d+ records of the journal are lost", warning)


async def test_two_lists_that_are_damaged_lead_to_the_repair_of_a_copy(world: World) -> None:
    for number in (1, 2):
        for path in (world.repository(number) / "data").rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes()[:-40] + bytes(40))
        for path in world.repository(number).glob("index.*"):
            path.unlink()
    with pytest.raises(SnapshotNotFound) as caught:
        await restore_to(world.root / "new", await means_of(world))
    assert "holdfast explain restore-with-borg" in caught.value.hint


def test_what_may_pass_by_itself_leads_to_no_older_snapshot(template: World) -> None:
    head = HeadFile(template.home.heads_file).read().heads[-1].record
    failures = Failures()
    failures.add(head, "nas", RepositoryDamaged("a chunk"))
    failures.check_older(head)
    failures.add(head, "host", PlaceUnreachable("no answer"))
    with pytest.raises(PlaceUnreachable, match="no answer") as caught:
        failures.check_older(head)
    assert "run the command again" in caught.value.hint
    with pytest.raises(DiskFull):
        failures.add(head, "nas", DiskFull("here"))
    assert [one.place for one in failures.passed] == ["nas", "host"]


async def test_what_is_not_there_is_said_with_what_is(world: World) -> None:
    means = await means_of(world)
    for wrong, near in (("MEMRY.md", "MEMORY.md"), ("00003.md", "00003.md"), ("qq", "HEARTBEAT.md")):
        with pytest.raises(SnapshotNotFound, match="has no") as caught:
            await restore_to(world.root / "some", means, Wish(files=(wrong,)))
        assert near in caught.value.hint
    oldest = HeadFile(world.home.heads_file).read().heads[0].record
    with pytest.raises(SnapshotNotFound, match="the oldest one is number 1") as old:
        await restore_to(world.root / "some", means, Wish(at=oldest.at - 60))
    assert "--at 20" in old.value.hint
    planned = await restore_to(world.root / "some", means, Wish(files=("memory",)), dry_run=True)
    assert (planned.done, len(planned.paths)) == (False, planned.files)
    assert not (world.root / "some").exists()
