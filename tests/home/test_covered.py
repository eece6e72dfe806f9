"""What a backup of an agent's folder covers, and what it leaves out and says so."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.errors import TooLarge
from holdfast.layout.covered import CoveredKind, CoveringRules, FolderEntry, Reason, covered_files, look
from holdfast.layout.covering import judge_name


def covered(folder: Path, rules: CoveringRules | None = None) -> dict[str, CoveredKind]:
    return dict(covered_files(folder, rules))


def left_out(folder: Path, rules: CoveringRules | None = None) -> dict[str, Reason]:
    return {e.path: e.left_out.reason for e in look(folder, rules) if e.left_out is not None}


def test_every_ordinary_file_and_folder_is_covered_parents_first(tmp_path: Path) -> None:
    (tmp_path / "memory" / "deep").mkdir(parents=True)
    (tmp_path / "memory" / "deep" / "a.md").write_text("a")
    (tmp_path / "SOUL.md").write_text("soul")
    (tmp_path / "empty").mkdir()
    found = list(covered_files(tmp_path))
    assert found == [
        ("SOUL.md", CoveredKind.FILE),
        ("empty", CoveredKind.FOLDER),
        ("memory", CoveredKind.FOLDER),
        ("memory/deep", CoveredKind.FOLDER),
        ("memory/deep/a.md", CoveredKind.FILE),
    ]


def test_what_is_the_hosts_or_made_again_is_left_out(tmp_path: Path) -> None:
    for name in ("instance", "scratch", "node_modules", "target", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "target" / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    (tmp_path / "keys.json").write_text("{}")
    (tmp_path / ".handoff.md.0011223344556677.new").write_text("half")
    (tmp_path / "notes" / "instance").write_text("a file of that name elsewhere")
    assert left_out(tmp_path) == {
        "instance": Reason.HOST,
        "scratch": Reason.MADE_AGAIN,
        "node_modules": Reason.CACHE,
        "target": Reason.CACHE,
        "keys.json": Reason.SECRET,
        ".handoff.md.0011223344556677.new": Reason.MADE_AGAIN,
    }
    assert set(covered(tmp_path)) == {"notes", "notes/file", "notes/instance"}


@pytest.mark.parametrize(
    "name", [".env", ".env.local", "prod.env", "server.pem", "id_ed25519", ".netrc", "x/credentials.json"]
)
def test_secrets_in_the_clear_are_left_out_by_name(name: str) -> None:
    judged = judge_name(name, folder=False)
    assert judged is not None
    assert judged.reason is Reason.SECRET


@pytest.mark.parametrize("name", [".env.example", "id_ed25519.pub", "environment.md", "keys.md", "sub/keys.json"])
def test_what_only_looks_like_a_secret_is_covered(name: str) -> None:
    assert judge_name(name, folder=False) is None


def test_a_private_key_under_a_harmless_name_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA")
    (tmp_path / "cert.txt").write_text("-----BEGIN CERTIFICATE-----\nAAAA")
    assert left_out(tmp_path) == {"notes.txt": Reason.SECRET}


def test_a_vault_and_places_inside_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "slots.json").write_text("{}")
    (tmp_path / "repository").mkdir()
    rules = CoveringRules(apart=(str(tmp_path / "repository"),))
    assert left_out(tmp_path, rules) == {"v": Reason.SECRET, "repository": Reason.SECRET}


def test_a_database_is_named_as_one_and_its_side_files_go_with_it(tmp_path: Path) -> None:
    db: Any = apsw.Connection(str(tmp_path / "agent.state"))
    db.pragma("journal_mode", "wal")
    db.pragma("user_version", 7)
    (tmp_path / "notes-wal").write_text("not a database's")
    assert covered(tmp_path) == {"agent.state": CoveredKind.DATABASE, "notes-wal": CoveredKind.FILE}
    assert left_out(tmp_path)["agent.state-wal"] is Reason.MADE_AGAIN
    db.close()


def test_looking_drops_no_lock_of_a_database_that_this_process_has_open(tmp_path: Path) -> None:
    """The close of any descriptor of a file drops this process's POSIX locks on it."""
    path = tmp_path / "agent.db"
    db: Any = apsw.Connection(str(path))
    db.pragma("user_version", 1)
    locked = "import sys, apsw; c = apsw.Connection(sys.argv[1]); c.pragma('user_version', 2)"
    db.execute("begin immediate")
    assert covered(tmp_path) == {"agent.db": CoveredKind.DATABASE}
    other = subprocess.run([sys.executable, "-c", locked, str(path)], capture_output=True, timeout=30)
    db.execute("commit")
    assert b"BusyError" in other.stderr
    assert db.pragma("user_version") == 1
    db.close()


def test_links_are_kept_as_links_and_those_that_lead_outside_are_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "a.md").write_text("a")
    (home / "inside").symlink_to("a.md")
    (home / "outside").symlink_to("../secret")
    (home / "etc").symlink_to("/etc")
    (home / "loop").symlink_to("loop")
    found = {entry.path: entry for entry in look(home)}
    assert found["inside"] == FolderEntry("inside", CoveredKind.LINK)
    assert "not covered" in found["outside"].remark
    assert "/etc" in found["etc"].remark
    assert found["loop"].kind is CoveredKind.LINK
    assert not any(path.startswith("etc/") for path in found)


def test_pipes_and_sockets_are_left_out_without_waiting_for_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "CACHEDIR.TAG")
    with socket.socket(socket.AF_UNIX) as listener:
        at = os.getcwd()
        os.chdir(tmp_path)  # the path of a socket is short
        try:
            listener.bind("s")
        finally:
            os.chdir(at)
    begun = time.monotonic()
    assert set(left_out(tmp_path)) == {"pipe", "CACHEDIR.TAG", "s"}
    assert time.monotonic() - begun < 5


def test_large_files_and_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 11)
    (tmp_path / "small").write_bytes(b"x" * 10)
    with open(os.fsencode(tmp_path) + b"/\xff", "wb"):
        pass
    assert left_out(tmp_path, CoveringRules(file_bytes_max=10)) == {"large": Reason.LARGE, "\\udcff": Reason.UNKEEPABLE}


def test_ten_thousand_files_are_listed_once_each_and_a_limit_holds(tmp_path: Path) -> None:
    for number in range(100):
        folder = tmp_path / f"{number:02}"
        folder.mkdir()
        for inner in range(100):
            (folder / f"{inner:02}").touch()
    found = list(covered_files(tmp_path))
    assert len(found) == len(set(found)) == 10_100
    with pytest.raises(TooLarge):
        list(covered_files(tmp_path, CoveringRules(entries_max=10_000)))
