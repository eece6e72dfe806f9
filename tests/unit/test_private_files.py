"""Files of ours are 0600, whole, and where they say they are; everything else is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import ModeTooWide, NetworkFileSystem, OpenParent, SymlinkRefused, Terminal, WrongKind, WrongOwner
from holdfast.host import private_files
from holdfast.host.private_files import (
    check_place,
    check_private_file,
    check_private_folder,
    ensure_private_folder,
    open_private,
    write_atomically,
)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(b"{}")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o440])
def test_a_file_keeps_its_mode_where_that_is_asked_for(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "handoff.md"
    write_atomically(path, b"one", keep_mode=True)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(mode)
    write_atomically(path, b"two", keep_mode=True)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", mode)
    write_atomically(path, b"three")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_private_file_passes(secret: Path) -> None:
    check_private_file(secret)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_wider_mode_is_refused_with_the_command_that_mends_it(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    with pytest.raises(ModeTooWide) as refused:
        check_private_file(secret)
    assert f"chmod 600 {secret}" in refused.value.hint
    with pytest.raises(ModeTooWide):
        open_private(secret, os.O_RDONLY)


def test_the_hint_quotes_a_path_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my agent"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(ModeTooWide) as refused:
        check_private_folder(folder)
    assert f"chmod 700 '{folder}'" in refused.value.hint


def test_a_link_is_refused_wherever_it_leads(secret: Path) -> None:
    link = secret.with_name("link")
    link.symlink_to(secret)
    with pytest.raises(SymlinkRefused):
        check_private_file(link)
    with pytest.raises(SymlinkRefused):
        open_private(link, os.O_RDWR)
    with pytest.raises(SymlinkRefused):
        check_place(link)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_folder_in_the_place_of_a_file_is_refused_without_waiting(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "odd"
    make(path)
    with pytest.raises(WrongKind):
        check_private_file(path)
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with pytest.raises(WrongKind):
            open_private(path, flags)


def test_a_file_in_the_place_of_a_folder_is_refused(secret: Path) -> None:
    with pytest.raises(WrongKind):
        ensure_private_folder(secret)
    with pytest.raises(WrongKind):
        ensure_private_folder(secret / "below")


def test_a_foreign_owner_is_refused(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(WrongOwner):
        check_private_file(secret)


def test_missing_files_are_said_to_be_missing(tmp_path: Path) -> None:
    for check in (check_private_file, check_private_folder):
        with pytest.raises(FileNotFoundError):
            check(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        open_private(tmp_path / "none", os.O_RDONLY)


def test_folders_are_made_0700_all_the_way_and_files_0600(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ensure_private_folder(tmp_path / "a" / "b")
        ensure_private_folder(tmp_path / "a" / "b")
        os.close(open_private(tmp_path / "a" / "b" / "f", os.O_RDWR | os.O_CREAT))
        write_atomically(tmp_path / "a" / "b" / "g", b"x")
    finally:
        os.umask(before)
    assert [_mode(tmp_path / "a"), _mode(tmp_path / "a" / "b")] == [0o700, 0o700]
    assert [_mode(tmp_path / "a" / "b" / name) for name in "fg"] == [0o600, 0o600]


def test_a_wide_or_linked_folder_is_not_taken_over(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o750)
    with pytest.raises(ModeTooWide):
        ensure_private_folder(wide)
    (tmp_path / "link").symlink_to(wide)
    with pytest.raises(SymlinkRefused):
        ensure_private_folder(tmp_path / "link")


def test_a_parent_that_everybody_may_write_is_refused_unless_sticky(tmp_path: Path) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(OpenParent) as refused:
        check_place(parent / "journal.db")
    assert f"chmod o-w {parent}" in refused.value.hint
    with pytest.raises(OpenParent):
        check_place(parent)
    with pytest.raises(OpenParent):
        check_place(parent / "not" / "yet" / "there")
    parent.chmod(0o1777)
    check_place(parent / "journal.db")


def test_a_network_file_system_is_refused_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "mountinfo"
    listed.write_text(f"30 22 0:40 / {os.path.realpath(tmp_path)} rw - nfs4 host:/ rw\n")
    monkeypatch.setattr(private_files, "MOUNTINFO", listed)
    with pytest.raises(NetworkFileSystem, match="nfs4"):
        check_place(tmp_path / "journal.db")
    check_place(tmp_path / "journal.db", allow_network_fs=True)


def test_a_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_atomically(path, b"one")
    write_atomically(path, b"two" * 100_000)
    assert path.read_bytes() == b"two" * 100_000
    assert os.listdir(tmp_path) == ["note"]


@pytest.mark.parametrize("call", ["write_all", "sync"])
def test_a_failed_write_keeps_the_old_bytes_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "note"
    write_atomically(path, b"old")

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(private_files, call, fails)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["note"]


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(secret: Path) -> None:
    link = secret.with_name("note")
    link.symlink_to(secret)
    write_atomically(link, b"new")
    assert secret.read_bytes() == b"{}"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


def test_each_refusal_has_its_own_code() -> None:
    kinds: list[type[Terminal]] = [ModeTooWide, WrongOwner, WrongKind, SymlinkRefused, OpenParent, NetworkFileSystem]
    assert len({kind.code for kind in kinds}) == len(kinds)
