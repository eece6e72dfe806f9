"""A real Borg, a repository with one snapshot that each test gets a copy of, and a small agent."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from borg_bench import SECRET, Bench

from holdfast.backup.borg.verbs import Borg, find_program
from holdfast.backup.engine import Repository
from holdfast.backup.places.backup_places import BackupPlaces
from holdfast.core.clock import SystemEntropy
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.paper.phrase import Phrase, new_phrase
from holdfast.identity.records.secret_bytes import SecretBytes
from holdfast.identity.vault.keyset import create_vaults
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.testing.clocks import SeededEntropy


@pytest.fixture(scope="session")
def program() -> Path:
    return find_program()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Path:
    """Made once: init and create take most of the time of a test."""
    import asyncio

    folder = tmp_path_factory.mktemp("template")
    source = folder / "source"
    source.mkdir()
    (source / "MEMORY.md").write_text("# Memory\n" + "a line\n" * 2_000)
    (source / "journal.db").write_bytes(SeededEntropy(7).bytes(300_000))
    borg = Borg(program, base=folder / "base")
    repository = Repository(name="nas", address=str(folder / "repository"), passphrase=SecretBytes(SECRET))

    async def make() -> None:
        await borg.init(repository)
        await borg.create(repository, "first", source)

    asyncio.run(make())
    return folder


@pytest.fixture
def bench(template: Path, tmp_path: Path, program: Path) -> Bench:
    shutil.copytree(template / "repository", tmp_path / "repository")
    shutil.copytree(template / "source", tmp_path / "source")
    return Bench(
        borg=Borg(program, base=tmp_path / "base"),
        repository=Repository(name="nas", address=str(tmp_path / "repository"), passphrase=SecretBytes(SECRET)),
        path=tmp_path / "repository",
        source=tmp_path / "source",
        folder=tmp_path,
    )


@pytest.fixture
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.backup.borg.verbs.LOCK_WAIT_S", 1)


@pytest.fixture
def phrase() -> Phrase:
    return new_phrase(SeededEntropy(24))


@pytest.fixture
def make_home(tmp_path: Path, phrase: Phrase) -> Callable[[], AgentHome]:
    """An agent's folder with a vault that a file opens."""

    def make() -> AgentHome:
        home = tmp_path / "ada"
        home.mkdir(mode=0o700)
        unlock = tmp_path / "unlock"
        unlock.touch(0o600)
        unlock.write_bytes(new_unlock_text(SeededEntropy(1)))
        second = file_key(tmp_path / "second unlock", new_unlock_text(SeededEntropy(2)))
        vault, nexts = create_vaults(
            tmp_path / "vault",
            tmp_path / "second",
            escrow=PaperKeys(phrase).escrow().recipient,
            keys=[file_key(unlock, unlock.read_bytes())],
            second_keys=[second],
            entropy=SystemEntropy(),
        )
        vault.wipe()
        nexts.wipe()
        (home / "holdfast.toml").touch(0o600)
        (home / "holdfast.toml").write_text(
            f'agent = "ada"\n\n[identity]\nvault = "{tmp_path / "vault"}"\nsecond = "{tmp_path / "second"}"\n'
        )
        (home / "MEMORY.md").write_text("the canary sings\n")
        return load_home(home)

    return make


@pytest.fixture
async def places(make_home: Callable[[], AgentHome]) -> BackupPlaces:
    from holdfast.backup.places.backup_places import open_places

    return await open_places(make_home())
