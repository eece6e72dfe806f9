"""A repository with one snapshot, for the tests of Borg."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.backup.borg.verbs import Borg
from holdfast.backup.engine import Repository
from holdfast.identity.records.secret_bytes import SecretBytes

SECRET = b"5ec2e7c0ffee" * 5


@dataclass
class Bench:
    """A repository `first` was created in, its base folder, and what it was made from."""

    borg: Borg
    repository: Repository
    path: Path
    source: Path
    folder: Path

    def fresh(self) -> Borg:
        """The same Borg on a machine that has never seen the repository."""
        return Borg(self.borg.program, base=self.folder / "another machine")

    def with_(self, *, passphrase: bytes = SECRET, address: str = "") -> Repository:
        return Repository(name="nas", address=address or str(self.path), passphrase=SecretBytes(passphrase))


async def read_tar(borg: Borg, repository: Repository, archive: str, *, rescue: bool) -> int:
    size = 0
    async with borg.export_tar(repository, archive, rescue=rescue) as pieces:
        async for piece in pieces:
            size += len(piece)
    return size
