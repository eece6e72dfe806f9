"""Two hosts, each with a journal file and an arbiter of its own: the agent goes over and comes back."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from holdfast.app.instances.standing import StandingKind
from holdfast.backup.backups import open_backups
from holdfast.errors import IsStandby
from holdfast.layout.agent_home import load_home
from holdfast_proofs.instance_kills.world import World


def made(root: Path, *, backup: bool) -> World:
    world = World(root / "world", arbiters=True)
    world.make(backup=backup)
    settings = world.home("a") / "holdfast.toml"
    settings.write_text(settings.read_text() + "lease_s = 1.0\n")  # of the [identity] table, which is the last one
    world.invite()
    world.join()
    return world


def go(world: World, host: str, to: str) -> None:
    world.give(host, {"a": "north", "b": "south"}[to])
    world.take(to)
    assert world.acts(to) == ""
    assert world.acts(host) == IsStandby.code
    (world.root / "ada.handoff.taken").unlink()


def back_up(world: World, host: str) -> None:
    async def run() -> None:
        await (await open_backups(load_home(world.home(host)))).now(check=False)

    asyncio.run(run())


def test_the_agent_goes_over_and_back_several_times(tmp_path: Path) -> None:
    """The arbiter of a host has heard of the grants on that host alone."""
    world = made(tmp_path, backup=False)
    for host, to in (("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")):
        go(world, host, to)


def test_a_lost_primary_that_was_invited_again_is_handed_the_agent(tmp_path: Path) -> None:
    """Its arbiter still has the grant of the folder that was lost, which nobody gave away."""
    world = made(tmp_path, backup=True)
    assert world.acts("a") == ""
    world.promote("b")
    for name in ("ada", "vault", "second"):
        (world.root / "a" / name).rename(world.root / "a" / f"{name}.old")
        if name != "ada":
            shutil.copytree(world.root / "b" / name, world.root / "a" / name)
    world.invite(by="b", name="north")
    world.join("a")
    go(world, "b", "a")


def test_the_host_that_handed_over_takes_over_when_the_new_primary_is_lost(tmp_path: Path) -> None:
    world = made(tmp_path, backup=True)
    go(world, "a", "b")
    (world.home("a") / "MEMORY.md").write_text("- of the primary\n- written where it waits\n")
    back_up(world, "b")
    (world.root / "b").rename(world.root / "lost")
    assert world.standing("a").kind is StandingKind.STANDBY
    world.promote("a")
    assert world.acts("a") == ""
    assert "written where it waits" in (world.home("a") / "MEMORY.md").read_text()
    (world.root / "lost").rename(world.root / "b")
    assert world.acts("b") == "keys-replaced"
