"""A small agent's folder, and a whole agent with places."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from holdfast_proofs.backup_lab.world import World, make_world


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "ada"
    folder.mkdir(mode=0o700)
    (folder / "MEMORY.md").write_text("# Memory\n- the flight is on Tuesday\n")
    (folder / "MEMORY.md").chmod(0o600)
    (folder / "memory").mkdir(mode=0o700)
    (folder / "memory" / "2026-11-15.md").write_text("an entry\n")
    (folder / "empty").mkdir(mode=0o750)
    tool = folder / "tool.sh"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A whole agent, made once: its first snapshot is in both places, its second in the first."""
    root = tmp_path_factory.mktemp("backups") / "world"

    async def made() -> World:
        world = await make_world(root, places=2, bytes_each=3_300)
        backups = await world.backups()
        first = await backups.now(check=False)
        await world.work(4)
        await asyncio.sleep(1)  # heads have whole seconds, and tests tell the two apart by them
        second = await backups.now(["place-1"])
        assert first.good, first
        assert second.good, second
        return world

    world = asyncio.run(made())
    shutil.copytree(root, root.with_name("template"), symlinks=True)
    return world


@pytest.fixture
def world(template: World) -> World:
    """The same, as it was made, at the same path: its places are known by their addresses."""
    for path in template.root.parent.iterdir():
        if path.name != "template":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(template.root.with_name("template"), template.root, symlinks=True)
    return template
