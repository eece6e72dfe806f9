"""The engine in a folder passes the suite that Borg passes, so the suite asks for nothing of Borg's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from folder_engine import FolderEngine

from holdfast.backup.engine import BackupEngine, Repository
from holdfast.identity.records.secret_bytes import SecretBytes
from holdfast.testing.backup_contract import FIRST, SECRET, BackupEngineContract, EngineWorld, write_source


class FolderWorld(EngineWorld):
    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder / "more", folder / "source"
        for path in (self.folder, self.source, folder / "base"):
            path.mkdir()
        write_source(self.source)
        self.engine: BackupEngine = FolderEngine(folder / "base")
        self.path = folder / "repository"
        self.repository = Repository(name="nas", address=str(self.path), passphrase=SecretBytes(SECRET))

    def damage(self) -> None:
        largest = max((self.path / "data").iterdir(), key=lambda path: path.stat().st_size)
        raw = bytearray(largest.read_bytes())
        raw[len(raw) // 2] ^= 1
        largest.write_bytes(raw)

    def lose_key(self) -> None:
        config = self.path / "config.json"
        config.write_text(config.read_text().split(', "key"')[0] + ', "key": ""}')

    def hold_lock(self) -> None:
        (self.path / "lock").touch()


class TestFolderEngine(BackupEngineContract):
    @pytest.fixture
    async def world(self, tmp_path: Path) -> FolderWorld:
        world = FolderWorld(tmp_path)
        await world.engine.init(world.repository)
        await world.engine.create(world.repository, FIRST, world.source)
        return world
