"""A far host that hangs: the other places go on, and a command that is ended ends all it began."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest

from holdfast.backup.borg import verbs as borg_module
from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import read_places, write_places
from holdfast.backup.upkeep.prune import prune
from holdfast_proofs.backup_lab.hanging import end_it, hanging_rsh, left_of
from holdfast_proofs.backup_lab.world import World


@pytest.fixture
def hanging(world: World, tmp_path: Path) -> Path:
    """The second place is on a host that hangs now."""
    rsh = hanging_rsh(tmp_path)
    first, second = read_places(world.home.places_file)
    host = msgspec.structs.replace(
        second, kind=PlaceKind.SSH, address="ssh://a@far.example/ada", place_id="", rsh=str(rsh)
    )
    write_places(world.home.places_file, [first, host])
    return rsh


async def test_the_other_places_go_on(world: World, hanging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borg_module, "ANSWER_S", 2.0)
    monkeypatch.setattr(borg_module, "SLOW_S", 1.0)
    monkeypatch.setattr(borg_module, "LOCK_WAIT_S", 1)
    monkeypatch.setattr("holdfast.backup.borg.process.TERM_GRACE_S", 0.3)
    backups = await world.backups()
    made = await backups.now()
    assert [(one.verified, one.error) for one in made.places] == [(True, ""), (False, "place-unreachable")]
    tested = await backups.verify()
    assert [one.verified for one in tested.places] == [True, False]
    pruned = await prune(backups.places, dry_run=True)
    assert [one.error is None for one in pruned] == [True, False]
    assert left_of(hanging) == []


@pytest.mark.parametrize("verb", ["now", "verify", "prune"])
async def test_backups_that_are_ended_leave_neither_borg_nor_ssh(world: World, hanging: Path, verb: str) -> None:
    words = ["backup", verb, "place-2", "--home", str(world.home.folder)]
    code, said = await asyncio.to_thread(end_it, words, hanging, signal.SIGTERM)
    assert (code, left_of(hanging)) == (143, []), said
    left = [path.name for path in (world.home.instance / "backup").iterdir()]
    assert not [name for name in left if name.startswith("scratch")]
