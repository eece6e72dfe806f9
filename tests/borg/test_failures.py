"""Every way in which Borg fails, with the real Borg: what a person reads, and what mends it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest
from borg_bench import SECRET, Bench, read_tar

from holdfast.backup.borg.process import environment
from holdfast.backup.borg.verbs import Borg
from holdfast.backup.engine import Amount
from holdfast.backup.open_engine import open_engine
from holdfast.errors import (
    BackupInterrupted,
    BadInput,
    EngineMissing,
    EngineTooOld,
    PassphraseRefused,
    PlaceMissing,
    PlaceTaken,
    RepositoryDamaged,
    RepositoryKeyMissing,
    RepositoryLocked,
    RepositoryMoved,
    RepositoryRolledBack,
    SnapshotExists,
    SnapshotNotFound,
)
from holdfast.layout.settings import BackupSettings

ACCEPTS_OLD = BackupSettings(accept_old_borg=True)
FOREIGN = "elsewhere@90520730010101.4242-0"


async def test_a_snapshot_goes_in_and_comes_out_whole(bench: Bench) -> None:
    seen: list[Amount] = []
    made = await bench.borg.create(bench.repository, "second", bench.source, on_progress=seen.append)
    assert made.archive == "second"
    assert made.files == 2
    assert seen, "progress is shown"
    listing = await bench.borg.list_archives(bench.repository)
    assert [one.name for one in listing.archives] == ["first", "second"]
    assert listing.repository_id == made.repository_id
    assert listing.encryption == "repokey-blake2"
    size = await read_tar(bench.borg, bench.repository, "second", rescue=False)
    assert size >= sum(path.stat().st_size for path in bench.source.iterdir())


async def test_a_changed_page_of_a_database_stores_little(bench: Bench) -> None:
    """4 KiB pieces: ten pages changed in a file of 300 kB are not 300 kB again."""
    with (bench.source / "journal.db").open("r+b") as file:
        for page in range(0, 70, 7):
            file.seek(page * 4096)
            file.write(os.urandom(64))
    made = await bench.borg.create(bench.repository, "second", bench.source)
    assert 10 * 4096 < made.stored_bytes < 70_000


async def test_a_repository_that_is_not_there(bench: Bench) -> None:
    with pytest.raises(PlaceMissing, match="does not exist") as caught:
        await bench.borg.list_archives(bench.with_(address=str(bench.folder / "nowhere")))
    assert "mount or plug in the disk" in caught.value.hint
    with pytest.raises(PlaceMissing, match="does not exist"):
        await bench.borg.init(bench.with_(address=str(bench.folder / "not" / "mounted")))
    assert not (bench.folder / "not").exists()


async def test_a_repository_that_is_there_already(bench: Bench) -> None:
    with pytest.raises(PlaceTaken, match="already exists") as caught:
        await bench.borg.init(bench.repository)
    assert "nothing there was changed" in caught.value.hint


async def test_names_taken_and_absent(bench: Bench) -> None:
    with pytest.raises(SnapshotExists, match="first already exists"):
        await bench.borg.create(bench.repository, "first", bench.source)
    with pytest.raises(SnapshotNotFound, match="nothing") as caught:
        await read_tar(bench.borg, bench.repository, "nothing", rescue=False)
    assert "holdfast backup list" in caught.value.hint
    with pytest.raises(SnapshotNotFound):
        await bench.borg.delete(bench.repository, ["nothing"])
    for odd in ("a::b", "{now}", "--last", "a b", ""):
        with pytest.raises(BadInput):
            await bench.borg.create(bench.repository, odd, bench.source)


async def test_a_wrong_passphrase(bench: Bench) -> None:
    with pytest.raises(PassphraseRefused, match="incorrect") as caught:
        await bench.borg.list_archives(bench.with_(passphrase=b"not this one"))
    assert "another agent or vault" in caught.value.hint
    assert "not this one" not in str(caught.value)


async def test_a_lock_of_a_machine_that_is_gone(bench: Bench, short_locks: None) -> None:
    """Routine runs wait and refuse; a restore passes by; a person may remove it."""
    lock = bench.path / "lock.exclusive"
    lock.mkdir()
    (lock / FOREIGN).touch()
    with pytest.raises(RepositoryLocked, match="lock") as caught:
        await bench.borg.create(bench.repository, "second", bench.source)
    assert "a restore needs no lock" in caught.value.hint
    assert "holdfast place break-lock NAME" in caught.value.hint
    rescuer = bench.fresh()
    listing = await rescuer.list_archives(bench.repository, rescue=True)
    assert [one.name for one in listing.archives] == ["first"]
    assert await read_tar(rescuer, bench.repository, "first", rescue=True)
    assert lock.exists()
    await bench.borg.break_lock(bench.repository)
    await bench.borg.create(bench.repository, "second", bench.source)


async def test_an_older_copy_put_in_its_place(bench: Bench) -> None:
    """Seen by the machine that made the newer one; a fresh machine cannot, heads must."""
    shutil.copytree(bench.path, bench.folder / "older")
    await bench.borg.create(bench.repository, "second", bench.source)
    shutil.rmtree(bench.path)
    (bench.folder / "older").rename(bench.path)
    with pytest.raises(RepositoryRolledBack, match="newer than repository") as caught:
        await bench.borg.create(bench.repository, "third", bench.source)
    assert "older copy" in caught.value.hint
    listing = await bench.fresh().list_archives(bench.repository)
    assert [one.name for one in listing.archives] == ["first"]


async def test_a_key_block_that_is_gone_is_put_back(bench: Bench) -> None:
    key = await bench.borg.export_key(bench.repository)
    config = bench.path / "config"
    lines = config.read_text().splitlines(keepends=True)
    start = next(at for at, line in enumerate(lines) if line.startswith("key ="))
    config.write_text("".join(lines[:start]))
    with pytest.raises(RepositoryKeyMissing, match="key") as caught:
        await bench.borg.list_archives(bench.repository)
    assert "holdfast place fix-key" in caught.value.hint
    await bench.borg.import_key(bench.repository, key)
    assert not list(bench.borg.base.glob("*.key")), "the block is not left behind"
    assert (await bench.borg.list_archives(bench.repository)).archives


async def test_a_repository_that_was_moved(bench: Bench) -> None:
    await bench.borg.list_archives(bench.repository)
    moved = bench.path.rename(bench.folder / "elsewhere")
    repository = bench.with_(address=str(moved))
    with pytest.raises(RepositoryMoved) as caught:
        await bench.borg.create(repository, "second", bench.source)
    assert "holdfast place move" in caught.value.hint
    assert (await bench.borg.list_archives(repository, rescue=True)).archives
    await bench.borg.create(repository, "second", bench.source)  # accepted once is accepted


async def test_a_segment_that_is_gone_is_damage(bench: Bench) -> None:
    segments = sorted((bench.path / "data" / "0").iterdir(), key=lambda one: one.stat().st_size)
    segments[-1].unlink()
    with pytest.raises(RepositoryDamaged):
        await read_tar(bench.borg, bench.repository, "first", rescue=False)


async def test_a_flipped_byte_is_found_by_reading_only(bench: Bench) -> None:
    """The trap: a new backup over damaged data returns well. Only reading shows it."""
    segment = max((bench.path / "data").rglob("[0-9]*"), key=lambda path: path.stat().st_size)
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    segment.write_bytes(raw)
    await bench.borg.create(bench.repository, "second", bench.source)
    with pytest.raises(RepositoryDamaged) as caught:
        await read_tar(bench.borg, bench.repository, "second", rescue=True)
    assert "restore from another place" in caught.value.hint
    with pytest.raises(RepositoryDamaged, match="exit code 1"):
        await bench.borg.check(bench.repository)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_backup_that_is_killed_leaves_nothing_half_made(
    bench: Bench, number: signal.Signals, short_locks: None
) -> None:
    (bench.source / "large").write_bytes(os.urandom(24_000_000))
    began = asyncio.Event()
    making = asyncio.create_task(
        bench.borg.create(bench.repository, "second", bench.source, on_progress=lambda _: began.set())
    )
    await began.wait()
    (pid,) = _running(bench)
    os.kill(pid, number)
    with pytest.raises(BackupInterrupted, match="exit code") as caught:
        await making
    assert "an unfinished snapshot does not count; the next run tries again" in caught.value.hint
    assert [one.name for one in (await bench.borg.list_archives(bench.repository)).archives] == ["first"]
    await bench.borg.create(bench.repository, "second", bench.source)


async def test_a_cancelled_or_slow_run_leaves_no_process_and_no_lock(bench: Bench) -> None:
    (bench.source / "large").write_bytes(os.urandom(24_000_000))
    began = asyncio.Event()
    making = asyncio.create_task(
        bench.borg.create(bench.repository, "second", bench.source, on_progress=lambda _: began.set())
    )
    await began.wait()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert _running(bench) == []
    assert not (bench.path / "lock.exclusive").exists()
    with pytest.raises(BackupInterrupted, match=r"took longer than 0\.05 s"):
        await bench.borg.create(bench.repository, "second", bench.source, timeout_s=0.05)
    assert _running(bench) == []


async def test_the_passphrase_is_in_no_argument_environment_or_file(bench: Bench) -> None:
    (bench.source / "large").write_bytes(os.urandom(24_000_000))
    began = asyncio.Event()
    making = asyncio.create_task(
        bench.borg.create(bench.repository, "second", bench.source, on_progress=lambda _: began.set())
    )
    await began.wait()
    (pid,) = _running(bench)
    process = Path(f"/proc/{pid}")
    seen = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert b"BORG_PASSPHRASE_FD=" in seen, "the process that was looked at is the right one"
    assert SECRET not in seen
    assert b"BORG_PASSPHRASE=" not in seen
    await making
    for path in (bench.folder / "base").rglob("*"):
        assert not path.is_file() or SECRET not in path.read_bytes()


async def test_only_what_is_written_down_reaches_borg(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.backup.borg.verbs.environment", environment)  # not what the tests spare
    for name in ("BORG_PASSPHRASE", "BORG_REPO", "PYTHONPATH", "LD_PRELOAD_X", "HOLDFAST_HOME"):
        monkeypatch.setenv(name, "of the caller")
    spy = bench.folder / "spy"
    spy.write_text(f'#!/bin/sh\nenv > "{bench.folder}/env"\nexec "{bench.borg.program}" "$@"\n')
    spy.chmod(0o700)
    await Borg(spy, base=bench.borg.base).list_archives(bench.repository)
    names = {line.split("=")[0] for line in (bench.folder / "env").read_text().splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} <= {
        "PATH",
        "HOME",
        "TMPDIR",
        "SSH_AUTH_SOCK",
        "LC_ALL",
        "TZ",
        "BORG_BASE_DIR",
        "BORG_EXIT_CODES",
        "BORG_RELOCATED_REPO_ACCESS_IS_OK",
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK",
        "BORG_CHECK_I_KNOW_WHAT_I_AM_DOING",
        "BORG_DELETE_I_KNOW_WHAT_I_AM_DOING",
        "BORG_PASSPHRASE_FD",
    }


async def test_an_engine_that_is_missing_or_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="not installed") as caught:
        await open_engine(base=tmp_path / "base")
    assert "apt-get install borgbackup" in caught.value.hint
    old = tmp_path / "borg"
    old.write_text("#!/bin/sh\necho borg 1.2.4\n")
    old.chmod(0o700)
    with pytest.raises(EngineTooOld, match=r"Borg 1\.2\.4 is too old") as caught:
        await open_engine(base=tmp_path / "base")
    assert "CVE-2023-36811" in caught.value.hint
    assert (await open_engine(ACCEPTS_OLD, base=tmp_path / "base")).label == "borg 1.2.4"
    old.write_text("#!/bin/sh\necho borg 2.0.0b25\n")
    with pytest.raises(EngineTooOld, match="a repository format that Holdfast does not support"):
        await open_engine(ACCEPTS_OLD, base=tmp_path / "base")
    old.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(EngineMissing, match="does not name a version of Borg"):
        await open_engine(base=tmp_path / "base")


async def test_the_version_that_set_up_builds(program: Path, tmp_path: Path) -> None:
    found = await open_engine(BackupSettings(borg=str(program)), base=tmp_path)
    assert isinstance(found, Borg)
    assert found.version >= (1, 4, 0)


def _running(bench: Bench) -> list[int]:
    """Processes of Borg that have this test's base folder in their environment."""
    found: list[int] = []
    mark = f"BORG_BASE_DIR={bench.borg.base}\0".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                environ = (process / "environ").read_bytes()
            except OSError:
                continue
            if mark in environ + b"\0":
                found.append(int(process.name))
    return found
