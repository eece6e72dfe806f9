"""The real Borg, under the suite of every backup engine."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from holdfast.backup.borg.verbs import Borg
from holdfast.backup.engine import BackupEngine, Repository
from holdfast.identity.records.secret_bytes import SecretBytes
from holdfast.testing.backup_contract import FIRST, SECRET, BackupEngineContract, EngineWorld, write_source


class BorgWorld(EngineWorld):
    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.source = folder / "more", folder / "source"
        self.engine: BackupEngine = Borg(program, base=folder / "base", version=(1, 4, 0))
        self.path = folder / "repository"
        self.repository = Repository(name="nas", address=str(self.path), passphrase=SecretBytes(SECRET))

    def damage(self) -> None:
        segment = max((self.path / "data").rglob("[0-9]*"), key=lambda path: path.stat().st_size)
        raw = bytearray(segment.read_bytes())
        raw[len(raw) // 2] ^= 0xFF  # nearly all of it is noise
        segment.write_bytes(raw)

    def lose_key(self) -> None:
        config = self.path / "config"
        config.write_text(config.read_text().split("key =")[0])

    def hold_lock(self) -> None:
        (self.path / "lock.exclusive").mkdir()
        (self.path / "lock.exclusive" / "elsewhere@90520730010101.4242-0").touch()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Path:
    """The repository with its first archive, made once: each test gets a copy."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "source").mkdir()
    write_source(folder / "source")
    world = BorgWorld(folder, program)

    async def make() -> None:
        await world.engine.init(world.repository)
        await world.engine.create(world.repository, FIRST, world.source)

    asyncio.run(make())
    return folder


class TestBorg(BackupEngineContract):
    @pytest.fixture
    def world(self, made: Path, tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> BorgWorld:
        monkeypatch.setattr("holdfast.backup.borg.verbs.LOCK_WAIT_S", 1)
        for name in ("repository", "source"):
            shutil.copytree(made / name, tmp_path / name)
        (tmp_path / "more").mkdir()
        return BorgWorld(tmp_path, program)
