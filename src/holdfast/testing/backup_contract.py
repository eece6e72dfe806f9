"""The suite that every backup engine passes: each promise of `holdfast.backup.engine`, tried.

An engine joins by supplying one fixture, an `EngineWorld`:

    class TestMyEngine(BackupEngineContract):
        @pytest.fixture
        def world(self, tmp_path): ...

The world holds one repository with one archive, FIRST, made of the folder that `write_source` fills. Its hooks do what
happens to repositories: data rots, a key block is lost, a machine dies holding the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import stat
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.backup.archive.tar_stream import Readable, TarStream, read_through
from holdfast.backup.engine import Amount, BackupEngine, Repository
from holdfast.errors import (
    BackupFailed,
    BadInput,
    HoldfastError,
    PassphraseRefused,
    PlaceMissing,
    PlaceTaken,
    RepositoryDamaged,
    RepositoryKeyMissing,
    RepositoryLocked,
    RepositoryReplaced,
    SnapshotExists,
    SnapshotNotFound,
)
from holdfast.identity.records.secret_bytes import SecretBytes

FIRST = "ada-1-1-20261115T190000Z"
SECOND = "ada-1-2-20261115T200000Z"
OTHER = "bob-1-1-20261115T200000Z"
SECRET = b"5ec2e7c0ffee" * 5
CANARY = b"the canary sings in the mine\n"
NOISE = "state/noise.bin"
LONG = f"state/{'long-name-' * 12}/{'longer-name-' * 9}.md"

Tree = dict[str, tuple[int, str]]  # mode and SHA-256 by path; no digest for folders


class EngineWorld(ABC):
    """One engine with one repository, which holds FIRST."""

    engine: BackupEngine
    repository: Repository
    source: Path  # what FIRST was made of
    folder: Path  # empty otherwise: for more repositories and engines

    @abstractmethod
    def damage(self) -> None:
        """Spoil the stored content of NOISE, and of no other file."""

    @abstractmethod
    def lose_key(self) -> None:
        """Remove the key block from the repository."""

    @abstractmethod
    def hold_lock(self) -> None:
        """Leave the lock of another machine, as if it had died while it wrote."""

    def fresh(self) -> BackupEngine:
        return self.engine.fresh(self.folder / "another machine")


def write_source(folder: Path) -> None:
    """Files, folders, modes, an empty file, odd names, and enough noise to fill a repository."""
    for name in ("state/empty", os.path.dirname(LONG)):
        (folder / name).mkdir(parents=True)
    for name, content in (
        ("HEAD", b"a head\n"),
        ("state/MEMORY.md", CANARY * 40),
        ("state/nothing", b""),
        ("state/übung Ω.txt", b"two words\n"),
        (LONG, b"long\n"),
        (NOISE, random.Random(7).randbytes(300_000)),
    ):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    (folder / "state/nothing").chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o700)


def tree_of(folder: Path) -> Tree:
    return {
        path.relative_to(folder).as_posix(): (
            stat.S_IMODE(path.stat().st_mode),
            "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.rglob("*")
    }


async def exported(
    engine: BackupEngine,
    repository: Repository,
    archive: str = FIRST,
    *,
    paths: Sequence[str] = (),
    rescue: bool = True,
) -> Tree:
    """What comes out, by the same strict reader that restores use."""

    def read(stream: Readable) -> Tree:
        tar = TarStream(stream, bytes_max=1 << 30, entries_max=1000, depth_max=40)
        found: Tree = {}
        for member in tar.members():
            content = hashlib.sha256(b"".join(tar.content())).hexdigest()
            found[member.path] = (member.mode, "" if member.is_folder else content)
        found.pop("", None)
        return found

    async with engine.export_tar(repository, archive, paths=paths, rescue=rescue) as pieces:
        return await read_through(pieces, read)


async def names(engine: BackupEngine, repository: Repository, *, prefix: str = "", rescue: bool = False) -> list[str]:
    listing = await engine.list_archives(repository, prefix=prefix, rescue=rescue)
    return [one.name for one in listing.archives]


class BackupEngineContract:
    """Inherit, and supply the `world` fixture."""

    async def test_an_archive_comes_out_as_it_went_in(self, world: EngineWorld) -> None:
        wanted = tree_of(world.source)
        assert await exported(world.engine, world.repository, rescue=False) == wanted
        assert await exported(world.fresh(), world.repository) == wanted

    async def test_only_the_wanted_paths_come_out(self, world: EngineWorld) -> None:
        paths = ("state/MEMORY.md", LONG)
        found = await exported(world.engine, world.repository, paths=paths)
        assert found == {path: tree_of(world.source)[path] for path in paths}

    async def test_a_new_archive_is_listed_last_and_shares_its_data(self, world: EngineWorld) -> None:
        seen: list[Amount] = []
        made = await world.engine.create(world.repository, SECOND, world.source, on_progress=seen.append)
        await world.engine.create(world.repository, OTHER, world.source)
        listing = await world.engine.list_archives(world.repository)
        assert [one.name for one in listing.archives] == [FIRST, SECOND, OTHER]
        assert len({one.id for one in listing.archives}) == 3
        assert made.id == listing.archives[1].id
        assert made.archive == SECOND
        assert made.repository_id == listing.repository_id != ""
        content = [path for path in world.source.rglob("*") if path.is_file()]
        assert made.files == len(content)
        assert made.original_bytes >= sum(path.stat().st_size for path in content)
        assert made.stored_bytes < 100_000, "the noise is there already"
        assert seen, "progress was reported"
        assert await names(world.engine, world.repository, prefix="ada-") == [FIRST, SECOND]
        assert await exported(world.engine, world.repository, SECOND) == tree_of(world.source)

    async def test_an_archive_is_never_replaced_and_never_made_up(self, world: EngineWorld) -> None:
        with pytest.raises(SnapshotExists):
            await world.engine.create(world.repository, FIRST, world.source)
        with pytest.raises(SnapshotNotFound):
            await exported(world.engine, world.repository, SECOND)
        with pytest.raises(SnapshotNotFound):
            await world.engine.delete(world.repository, [SECOND])
        for odd in ("", "-x", "a/b", "{now}", "a::b", "x" * 300):
            with pytest.raises(BadInput):
                await world.engine.create(world.repository, odd, world.source)
        assert await names(world.engine, world.repository) == [FIRST]

    async def test_a_new_repository_is_empty_and_takes_nothing_over(self, world: EngineWorld) -> None:
        new = replace(world.repository, address=str(world.folder / "new"))
        with pytest.raises(PlaceMissing):
            await world.engine.list_archives(new)
        await world.engine.init(new)
        empty, full = await world.engine.list_archives(new), await world.engine.list_archives(world.repository)
        assert (len(empty.archives), len(full.archives)) == (0, 1)
        assert empty.repository_id != full.repository_id
        with pytest.raises(PlaceTaken):
            await world.engine.init(world.repository)
        assert await names(world.engine, world.repository) == [FIRST]
        with pytest.raises(PlaceMissing):
            await world.engine.init(replace(world.repository, address=str(world.folder / "not" / "mounted")))
        assert not (world.folder / "not").exists()

    async def test_a_wrong_passphrase_opens_nothing(self, world: EngineWorld) -> None:
        wrong = replace(world.repository, passphrase=SecretBytes(b"not this one"))
        with pytest.raises(PassphraseRefused) as caught:
            await world.engine.list_archives(wrong)
        assert "not this one" not in str(caught.value)
        with pytest.raises(PassphraseRefused):
            await world.fresh().list_archives(wrong, rescue=True)

    async def test_another_repository_at_the_address_is_rejected(self, world: EngineWorld) -> None:
        known = (await world.engine.list_archives(world.repository)).repository_id
        assert await names(world.engine, replace(world.repository, id=known)) == [FIRST]
        other = replace(world.repository, id="0" * len(known))
        with pytest.raises(RepositoryReplaced):
            await world.engine.list_archives(other)
        assert await names(world.fresh(), other, rescue=True) == [FIRST]

    async def test_what_is_deleted_leaves_the_rest_whole(self, world: EngineWorld) -> None:
        await world.engine.create(world.repository, SECOND, world.source)
        await world.engine.delete(world.repository, [])
        await world.engine.delete(world.repository, [FIRST])
        assert await names(world.engine, world.repository) == [SECOND]
        await world.engine.compact(world.repository)
        assert await exported(world.engine, world.repository, SECOND) == tree_of(world.source)

    async def test_damage_is_an_error_and_stops_no_other_file(self, world: EngineWorld) -> None:
        await world.engine.check(world.repository)
        world.damage()
        with pytest.raises(RepositoryDamaged):
            await exported(world.fresh(), world.repository)
        with pytest.raises(RepositoryDamaged):
            await world.engine.check(world.repository)
        paths = ("HEAD", "state/MEMORY.md")
        found = await exported(world.fresh(), world.repository, paths=paths)
        assert found == {path: tree_of(world.source)[path] for path in paths}

    async def test_a_lost_key_block_is_put_back_and_only_the_right_one(self, world: EngineWorld) -> None:
        other = replace(world.repository, address=str(world.folder / "other"))
        await world.engine.init(other)
        foreign, own = await world.engine.export_key(other), await world.engine.export_key(world.repository)
        assert SECRET.decode() not in own
        world.lose_key()
        with pytest.raises(RepositoryKeyMissing):
            await world.fresh().list_archives(world.repository)
        with pytest.raises(BackupFailed):
            await world.engine.import_key(world.repository, foreign)
        await world.engine.import_key(world.repository, own)
        assert await exported(world.fresh(), world.repository) == tree_of(world.source)

    async def test_a_held_lock_stops_routine_work_and_no_rescue(self, world: EngineWorld) -> None:
        world.hold_lock()
        with pytest.raises(RepositoryLocked):
            await world.engine.create(world.repository, SECOND, world.source)
        assert await names(world.fresh(), world.repository, rescue=True) == [FIRST]
        assert await exported(world.fresh(), world.repository) == tree_of(world.source)
        await world.engine.break_lock(world.repository)
        await world.engine.create(world.repository, SECOND, world.source)

    async def test_nothing_readable_is_stored(self, world: EngineWorld) -> None:
        await world.engine.create(world.repository, SECOND, world.source)
        for root in (Path(world.repository.address), world.engine.base):
            for path in root.rglob("*"):
                raw = path.read_bytes() if path.is_file() else b""
                assert SECRET not in raw, path
                assert CANARY not in raw, path
                assert b"MEMORY.md" not in raw, path

    async def test_a_stream_that_is_left_early_leaves_no_lock(self, world: EngineWorld) -> None:
        async with world.engine.export_tar(world.repository, FIRST) as pieces:
            assert await anext(pieces)
        await world.engine.create(world.repository, SECOND, world.source)

    async def test_a_cancelled_archive_is_whole_or_not_there(self, world: EngineWorld) -> None:
        for wait_s in (0.0, 0.3):
            making = asyncio.create_task(world.engine.create(world.repository, SECOND, world.source))
            await asyncio.sleep(wait_s)
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError, HoldfastError):
                await making
        if SECOND not in await names(world.engine, world.repository):
            await world.engine.create(world.repository, SECOND, world.source)
        assert await exported(world.engine, world.repository, SECOND) == tree_of(world.source)
