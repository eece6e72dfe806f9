"""The file of heads beside a repository is torn, lost or behind: the archives speak themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.backup.backups import archive_name, ring_of
from holdfast.backup.chain import sources
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.chain.sources import newest_first
from holdfast.backup.restore.restore_home import Means, restore_to
from holdfast.errors import SnapshotNotFound
from holdfast.identity.vault.ring import read_escrow
from holdfast_proofs.backup_lab.world import World


def beside(world: World, number: int = 1) -> Path:
    return world.repository(number).parent / "heads.jsonl"


async def bare(world: World) -> Means:
    """A machine with escrow and log, and the first place alone: both snapshots are there."""
    backups = await world.backups()
    escrow = read_escrow(backups.places.vault)
    return Means(
        engine=backups.places.engine,
        places=backups.places.read()[:1],
        escrow=escrow,
        log=backups._speaker.log(),
        keys=ring_of(escrow),
    )


async def test_a_torn_file_of_heads_hides_no_newer_snapshot(world: World) -> None:
    raw = beside(world).read_bytes()
    beside(world).write_bytes(raw[:-40])
    report = await restore_to(world.root / "new", await bare(world))
    assert (report.seq, report.newest_known, report.behind) == (2, 2, None)
    said = "; ".join(report.findings)
    assert "was cut off" in said
    assert "the heads of snapshots 2 were read from the archives" in said
    kept = HeadFile(world.root / "new" / "heads.jsonl").read()
    assert [one.record.seq for one in kept.heads] == [1, 2]


async def test_a_lost_file_of_heads_loses_no_snapshot(world: World) -> None:
    beside(world).unlink()
    report = await restore_to(world.root / "new", await bare(world), dry_run=True)
    assert report.seq == 2
    said = "; ".join(report.findings)
    assert "heads.jsonl is missing from the companion files" in said
    assert "snapshots 2, 1 were read" in said


async def test_the_owner_sees_it_too_and_the_next_backup_mends_it(world: World) -> None:
    """Nobody has the heads any more but the archives; the chain goes on with the next number."""
    for path in (beside(world, 1), beside(world, 2), world.home.heads_file):
        path.unlink()
    backups = await world.backups()
    found = await backups.look()
    assert [one.record.seq for one in found.chain.heads] == [1, 2]
    assert [len(one.held) for one in found.places] == [2, 1]
    report = await backups.now(["place-1"], check=False)
    assert report.snapshot.seq == 3
    assert (await backups.look()).chain.forks == ()
    there = HeadFile(beside(world)).read()
    assert [one.record.seq for one in there.heads] == [1, 2, 3]
    assert there.findings == ()


async def test_a_torn_line_is_not_kept_as_a_bad_one(world: World) -> None:
    beside(world).write_bytes(beside(world).read_bytes()[:-40])
    backups = await world.backups()
    await backups.places.refresh_companions()
    held = HeadFile(beside(world)).read()
    assert ([one.record.seq for one in held.heads], held.findings) == ([1, 2], ())


async def test_an_archive_without_a_valid_head_is_named_and_never_chosen(world: World, tmp_path: Path) -> None:
    """One with nothing in it, one with the head of another snapshot, one named by nobody's rule."""
    backups = await world.backups()
    repository = backups.places.repository(backups.places.read()[0])
    empty, copied = tmp_path / "empty", tmp_path / "copied"
    for folder in (empty, copied):
        folder.mkdir()
        (folder / "x").write_text("x")
    heads = HeadFile(world.home.heads_file).read().heads
    (copied / "HEAD").write_bytes(heads[1].line() + b"\n")
    names = [archive_name("ada", 9, seq, 1_800_000_000) for seq in (8, 9)]
    await backups.places.engine.create(repository, names[0], empty)
    await backups.places.engine.create(repository, names[1], copied)
    await backups.places.engine.create(repository, "holiday", empty)
    report = await restore_to(world.root / "new", await bare(world), dry_run=True)
    assert report.seq == 2
    said = "; ".join(report.findings)
    assert f"never chosen: {names[1]}, holiday" in said
    assert f"archive {names[0]}: no head could be read" in said
    assert (await backups.look()).places[0].unnamed == 3


async def test_how_many_archives_are_read_is_bounded_and_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    beside(world).unlink()
    monkeypatch.setattr(sources, "READ_MAX", 1)
    means = await bare(world)
    report = await restore_to(world.root / "new", means, dry_run=True)
    assert report.seq == 2, "the newest first"
    assert any("1 older archives were not read: ada-1-1-" in text for text in report.findings)
    monkeypatch.setattr(sources, "READ_MAX", 0)
    with pytest.raises(SnapshotNotFound):
        await restore_to(world.root / "new", replace(means), dry_run=True)


def test_the_order_is_that_of_numbers() -> None:
    made = [archive_name("ada", e, seq, 0) for e, seq in ((1, 2), (1, 10), (2, 3))]
    assert newest_first([*made, "other", "ada-1-x-19700101T000000Z"]) == [made[2], made[1], made[0]]
