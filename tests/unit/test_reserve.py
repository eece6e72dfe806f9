"""The reserve is real space, given back at once and taken again only when there is room."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import SymlinkRefused
from holdfast.journal.sqlite.host.disk_trouble import RESERVE_BYTES, Reserve

MIB = 1024 * 1024


def _free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    room = SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: room)  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]


def test_the_reserve_has_real_blocks_and_is_private(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    assert not reserve.held
    assert reserve.try_restore()
    assert reserve.try_restore()
    found = (tmp_path / "reserve").stat()
    assert (found.st_size, found.st_mode & 0o777) == (RESERVE_BYTES, 0o600)
    assert found.st_blocks * 512 >= RESERVE_BYTES
    assert Reserve(tmp_path).held  # shared by all sessions


def test_release_gives_the_blocks_back_once(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    assert not reserve.release()
    reserve.try_restore()
    assert reserve.release()
    assert not reserve.held
    assert (tmp_path / "reserve").stat().st_blocks == 0
    assert not reserve.release()
    assert reserve.try_restore()


def test_a_small_disk_gives_an_eighth_and_a_full_one_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(tmp_path)
    _free(monkeypatch, 1 * MIB)
    assert not reserve.try_restore()
    _free(monkeypatch, 8 * MIB)
    assert reserve.try_restore()
    assert (tmp_path / "reserve").stat().st_size == 1 * MIB


def test_space_that_vanishes_meanwhile_leaves_nothing_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        os.ftruncate(fd, length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    reserve = Reserve(tmp_path)
    assert not reserve.try_restore()
    assert not reserve.held
    assert (tmp_path / "reserve").stat().st_size == 0


def test_a_file_system_without_allocation_is_written_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unknown, raising=False)
    _free(monkeypatch, 9 * MIB)
    assert Reserve(tmp_path).try_restore()
    found = (tmp_path / "reserve").stat()
    assert found.st_blocks * 512 >= found.st_size == 9 * MIB // 8 // 512 * 512


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"x" * MIB)
    (tmp_path / "reserve").symlink_to(tmp_path / "victim")
    with pytest.raises(SymlinkRefused):
        Reserve(tmp_path).try_restore()
    assert (tmp_path / "victim").stat().st_size == MIB


def test_space_that_was_given_back_does_not_count_as_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps must not begin again inside the reserve that was released for their results."""
    reserve = Reserve(tmp_path)
    _free(monkeypatch, 40 * MIB)
    assert reserve.try_restore()
    size = (tmp_path / "reserve").stat().st_size
    assert reserve.release()
    _free(monkeypatch, 2 * size - 4096)
    assert not reserve.try_restore()
    _free(monkeypatch, 100 * MIB)
    assert reserve.try_restore()
