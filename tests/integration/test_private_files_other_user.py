"""Refusals as an ordinary user meets them: root may do everything, so root proves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65534

# Imports first: an ordinary user may not be able to read where this interpreter is installed.
PREPARE = f"""
import errno, json, os, sys
from pathlib import Path
from holdfast.host.private_files import *
from holdfast.host.private_files import check_private_folder, open_private
from holdfast.errors import HoldfastError
from holdfast.journal.sqlite.host.page import SessionPage
import shlex
place = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
def tried(act):
    try:
        act()
        return "ok"
    except HoldfastError as error:
        return error.code
"""


def _as_user(place: Path, code: str) -> object:
    done = subprocess.run([sys.executable, "-c", PREPARE + code, str(place)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the ordinary user, under folders that it may pass through."""
    path = tmp_path_factory.mktemp("user")
    if os.geteuid() == 0:
        for folder in (path, *path.parents):
            if folder.stat().st_uid == 0 and folder.stat().st_mode & 0o777 == 0o700:
                folder.chmod(0o711)
        os.chown(path, NOBODY, NOBODY)
    return path


def test_a_folder_without_rights_is_read_only(place: Path) -> None:
    result = _as_user(
        place,
        """
closed = place / "closed"; closed.mkdir(); closed.chmod(0o500)
print(json.dumps([
    tried(lambda: ensure_private_folder(closed / "instance")),
    tried(lambda: write_atomically(closed / "note", b"x")),
    tried(lambda: SessionPage.create(closed, "s", boot_id="b", incarnation=1)),
    tried(lambda: check_place(closed / "journal.db")),
    os.listdir(closed),
]))
closed.chmod(0o700)
""",
    )
    assert result == ["read-only", "read-only", "read-only", "ok", []]


def test_links_of_the_user_are_refused_and_those_of_the_system_are_not(place: Path) -> None:
    result = _as_user(
        place,
        """
real = place / "real"; real.mkdir(mode=0o700)
(place / "link").symlink_to(real)
print(json.dumps([
    tried(lambda: check_place(real / "journal.db")),
    tried(lambda: check_place(place / "link" / "journal.db")),
    tried(lambda: check_place(place / "link")),
    tried(lambda: check_place(Path("/proc/1/../sys"))),
]))
""",
    )
    assert result == ["ok", "symlink-refused", "symlink-refused", "ok"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_what_belongs_to_somebody_else_is_refused(place: Path) -> None:
    foreign, folder = place / "foreign", place / "folder"
    foreign.write_bytes(b"{}")
    folder.mkdir()
    foreign.chmod(0o600)
    folder.chmod(0o700)
    result = _as_user(
        place,
        """
print(json.dumps([
    tried(lambda: check_private_file(place / "foreign")),
    tried(lambda: check_private_folder(place / "folder")),
    tried(lambda: ensure_private_folder(place / "folder")),
    tried(lambda: open_private(place / "foreign", os.O_RDONLY)),
]))
""",
    )
    assert result == ["wrong-owner", "wrong-owner", "wrong-owner", "read-only"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of the system")
def test_a_link_that_only_the_administrator_can_have_made_is_followed(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    system = tmp_path_factory.mktemp("system")
    system.chmod(0o755)
    for folder in system.parents:
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o711)
    (system / "home").symlink_to(place)
    os.chmod(place, 0o700)
    ask = 'print(json.dumps(tried(lambda: check_place(place / "home" / "journal.db"))))'
    assert _as_user(system, ask) == "ok"
    system.chmod(0o1777)  # now any user could have made the link
    assert _as_user(system, ask) == "symlink-refused"
    system.chmod(0o755)
    os.chown(system / "home", NOBODY, NOBODY, follow_symlinks=False)
    assert _as_user(system, ask) == "symlink-refused"
