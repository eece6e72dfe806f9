"""A tiny backup engine, to show that the seam is real: sealed files in a folder, each content once.

config.json      the repository's id and its key block: the data key, sealed by the passphrase
archives/NUMBER  one archive each: a sealed list of paths, modes and contents
data/DIGEST      one sealed content each, named by a keyed digest

No verb waits in the middle, so none takes the lock; a lock of another machine is respected.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from holdfast import errors
from holdfast.backup.engine import SILENT, Amount, Archive, Created, Listing, OnAmount, Progress
from holdfast.backup.engine import Repository as Repo
from holdfast.host.private_files import write_atomically

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class FolderEngine:
    label = "folder 1"
    key_command = "cp"

    def __init__(self, base: Path, progress: Progress = SILENT) -> None:
        self.base = base
        self.progress = progress

    def fresh(self, base: Path) -> FolderEngine:
        return FolderEngine(base, self.progress)

    async def init(self, repository: Repo) -> None:
        root, key, id_ = Path(repository.address), os.urandom(32), os.urandom(16).hex()
        if root.exists():
            raise errors.PlaceTaken(f"{repository.name}: {root} already exists")
        if not root.parent.is_dir():
            raise errors.PlaceMissing(f"{repository.name}: {root.parent} does not exist")
        for folder in (root, root / "data", root / "archives"):
            folder.mkdir(mode=0o700)
        _write_config(root, id_, f"FOLDER_KEY {id_} {_sealed_by(repository).encrypt(key).hex()}")

    async def create(
        self, repository: Repo, archive: str, folder: Path, *, on_progress: OnAmount | None = None, timeout_s: float = 0
    ) -> Created:
        began, opened = time.monotonic(), _Opened(repository)
        if not _NAME.fullmatch(archive):
            raise errors.BadInput(f"{archive!r} is not a valid snapshot name")
        if archive in opened.archives():
            raise errors.SnapshotExists(f"{repository.name}: {archive} exists")
        entries: list[list[Any]] = []
        files = size = stored = 0
        for path in sorted(folder.rglob("*")):
            blob = None
            if path.is_file():
                blob, new = opened.store(path.read_bytes())
                files, size, stored = files + 1, size + path.stat().st_size, stored + new
            mode, mtime = path.stat().st_mode & 0o777, int(path.stat().st_mtime)
            entries.append([path.relative_to(folder).as_posix(), mode, mtime, blob])
        if on_progress is not None:
            on_progress(Amount(files=files, bytes=size))
        id_ = opened.add(archive, entries)
        sums: dict[str, Any] = {"files": files, "original_bytes": size, "stored_bytes": stored}
        return Created(archive=archive, id=id_, repository_id=opened.id, seconds=time.monotonic() - began, **sums)

    async def list_archives(self, repository: Repo, *, prefix: str = "", rescue: bool = False) -> Listing:
        opened = _Opened(repository, rescue=rescue)
        if not rescue:
            repository.check_id(opened.id)
        found = [one for name, one in opened.archives().items() if name.startswith(prefix)]
        archives = [Archive(name=one["name"], id=one["id"], at=datetime.fromtimestamp(one["at"], UTC)) for one in found]
        return Listing(repository_id=opened.id, encryption="xsalsa20", archives=tuple(archives))

    @asynccontextmanager
    async def export_tar(
        self, repository: Repo, archive: str, *, paths: Sequence[str] = (), rescue: bool = False, timeout_s: float = 0
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        opened = _Opened(repository, rescue=rescue)
        entries = opened.get(archive)["entries"]

        async def pieces() -> AsyncGenerator[bytes, None]:
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
                for path, mode, mtime, blob in entries:
                    if not paths or path in paths:
                        content = b"" if blob is None else opened.load(opened.root / "data" / blob)
                        member = tarfile.TarInfo(path)
                        member.type = tarfile.DIRTYPE if blob is None else tarfile.REGTYPE
                        member.mode, member.mtime, member.size = mode, mtime, len(content)
                        tar.addfile(member, io.BytesIO(content))
            yield out.getvalue()

        yield pieces()

    async def check(self, repository: Repo) -> None:
        opened = _Opened(repository)
        for blob in opened.used():
            opened.load(opened.root / "data" / blob)

    async def delete(self, repository: Repo, archives: Sequence[str]) -> None:
        opened = _Opened(repository)
        for path in [opened.get(name)["path"] for name in archives]:
            path.unlink()

    async def compact(self, repository: Repo) -> None:
        opened = _Opened(repository)
        for name in {path.name for path in (opened.root / "data").iterdir()} - opened.used():
            (opened.root / "data" / name).unlink()

    async def export_key(self, repository: Repo) -> str:
        return _config(repository)["key"]

    async def import_key(self, repository: Repo, key: str) -> None:
        id_ = _config(repository)["id"]
        if key.split()[1] != id_:
            raise errors.BackupFailed(f"{repository.name}: a key block of another repository")
        _write_config(Path(repository.address), id_, key)

    async def break_lock(self, repository: Repo) -> None:
        (Path(repository.address) / "lock").unlink(missing_ok=True)


class _Opened:
    """A repository whose passphrase is right."""

    def __init__(self, repository: Repo, *, rescue: bool = False) -> None:
        config = _config(repository)
        self.name, self.root, self.id = repository.name, Path(repository.address), config["id"]
        if (self.root / "lock").exists() and not rescue:
            raise errors.RepositoryLocked(f"{self.name}: the lock is held")
        if not config["key"]:
            raise errors.RepositoryKeyMissing(f"{self.name}: the repository has no key block")
        try:
            self._key = _sealed_by(repository).decrypt(bytes.fromhex(config["key"].split()[2]))
        except CryptoError:
            raise errors.PassphraseRefused(f"{self.name}: the passphrase is wrong") from None
        self._box = SecretBox(self._key)

    def archives(self) -> dict[str, dict[str, Any]]:
        paths = sorted((self.root / "archives").iterdir())
        found: list[dict[str, Any]] = [{**json.loads(self.load(path)), "path": path} for path in paths]
        return {one["name"]: one for one in found}

    def used(self) -> set[str]:
        return {blob for one in self.archives().values() for *_, blob in one["entries"] if blob is not None}

    def get(self, archive: str) -> dict[str, Any]:
        if archive not in self.archives():
            raise errors.SnapshotNotFound(f"{self.name}: there is no {archive}")
        return self.archives()[archive]

    def add(self, name: str, entries: list[list[Any]]) -> str:
        about: dict[str, Any] = {"name": name, "id": os.urandom(16).hex(), "at": time.time(), "entries": entries}
        path = self.root / "archives" / f"{time.time_ns():020}"
        write_atomically(path, self._box.encrypt(json.dumps(about).encode()))
        return about["id"]

    def store(self, content: bytes) -> tuple[str, int]:
        name = hashlib.blake2b(content, key=self._key, digest_size=32).hexdigest()
        new = not (self.root / "data" / name).exists()
        if new:
            write_atomically(self.root / "data" / name, self._box.encrypt(content))
        return name, len(content) if new else 0

    def load(self, path: Path) -> bytes:
        try:
            return self._box.decrypt(path.read_bytes())
        except (CryptoError, FileNotFoundError) as error:
            raise errors.RepositoryDamaged(f"{self.name}: {path.name}: {error}") from None


def _config(repository: Repo) -> dict[str, str]:
    path = Path(repository.address) / "config.json"
    if not path.exists():
        raise errors.PlaceMissing(f"{repository.name}: {repository.address} does not exist")
    return json.loads(path.read_bytes())


def _write_config(root: Path, id_: str, key: str) -> None:
    write_atomically(root / "config.json", json.dumps({"id": id_, "key": key}).encode())


def _sealed_by(repository: Repo) -> SecretBox:
    return SecretBox(hashlib.sha256(repository.passphrase.reveal()).digest())
