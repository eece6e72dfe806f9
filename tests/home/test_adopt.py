"""`holdfast adopt`: covered, listed, and not a byte or mode of the agent's own files changed."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from foreign_folders import MADE, openclaw, snapshot

from holdfast.cli.main import main
from holdfast.errors import AgentExists, BadInput, NotAnAgent, OpenParent, SymlinkRefused
from holdfast.identity.files.public_file import read_identity
from holdfast.layout.agent_home import home_folder, load_home
from holdfast.layout.covered import covered_files
from holdfast.recovery.adopt import prepare, survey_folder


@pytest.fixture
def clawd(tmp_path: Path) -> Path:
    folder = tmp_path / "Clawd"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    openclaw(folder)
    return folder


def adopt(folder: Path, *more: str, apart: Path | None = None) -> int:
    """The command without a person, its keys in a folder apart; the words go to a pipe."""
    apart = apart or folder.parent / f"keys of {folder.name}"
    apart.mkdir(mode=0o700, exist_ok=True)
    reads, writes = os.pipe()
    try:
        return main(
            [
                "adopt",
                str(folder),
                "--yes",
                "--vault",
                str(apart / "vault"),
                "--second",
                str(apart / "second"),
                "--witness",
                str(apart / "witness"),
                "--arbiter",
                str(apart / "arbiter"),
                "--unlock-file",
                str(apart / "unlock"),
                "--second-unlock-file",
                str(apart / "unlock2"),
                "--words-fd",
                str(writes),
                *more,
            ]
        )
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("kind", MADE)
def test_nothing_that_was_there_is_moved_written_or_given_another_mode(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / kind
    folder.mkdir()
    folder.chmod(0o755)
    MADE[kind](folder)
    before, mode = snapshot(folder), folder.stat().st_mode
    assert adopt(folder, "--json") == 0
    shape = json.loads(capsys.readouterr().out)
    assert main(["handoff", "--home", str(folder)]) == 0
    after = snapshot(folder)
    assert {path: one for path, one in after.items() if not path.startswith(".holdfast")} == before
    assert folder.stat().st_mode == mode
    home = load_home(home_folder(str(folder)))
    assert home.folder == folder / ".holdfast"
    assert home.state == folder
    assert read_identity(home.identity_file).id == shape["identity"]["id"]
    for path, (made, owner, _, _) in after.items():
        if path.startswith(".holdfast"):
            assert stat.S_IMODE(made) == (0o700 if stat.S_ISDIR(made) else 0o600), path
            assert owner == os.geteuid()


def test_the_listing_says_what_was_found_covered_and_left_out(clawd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(clawd)
    assert main(["adopt", str(clawd), "--dry-run", "--json"]) == 0
    shape: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert snapshot(clawd) == before
    assert shape["done"] is False
    assert shape["name"] == "clawd"
    assert {"path": "SOUL.md", "what": "who the agent is", "files": 1} in shape["found"]
    assert {"path": "memory/", "what": "daily log", "files": 3} in shape["found"]
    assert shape["covered"]["databases"] == ["memory/main.sqlite"]
    left = {one["path"]: one["reason"] for one in shape["left_out"]}
    assert left == {".env": "secret", "agents/main/agent/auth-profiles.json": "secret"}
    assert main(["adopt", str(clawd), "--dry-run"]) == 0
    shown = capsys.readouterr()
    for words in ("HEARTBEAT.md", "SQLite's own backup", "2 files with plain-text secrets", "mode 0755"):
        assert words in shown.out, words
    assert "nothing was changed" in shown.err


def test_the_hand_off_of_an_adopted_agent_is_what_its_own_files_say(
    clawd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(survey_folder(clawd))
    assert main(["handoff", "--home", str(clawd), "--json"]) == 0
    shape = json.loads(capsys.readouterr().out)
    assert shape["source"] == "files"
    assert any("sessions/a1.jsonl" in line for line in shape["where"])
    assert any('ends with "- 10:05 painting"' in line for line in shape["where"])
    assert shape["pending"] == ['HEARTBEAT.md: "water the plants"', 'memory/2026-11-14.md: "call the bank"']
    assert shape["decided"] == [
        'memory/2026-11-15.md: "10:00 agreed on blue"',
        'MEMORY.md: "We decided to use SQLite."',
    ]
    assert not any(".env" in line or ".holdfast" in line for line in shape["changed"])


def test_a_backup_covers_the_agents_folder_and_holdfasts_own_without_keys(clawd: Path) -> None:
    assert adopt(clawd) == 0
    home = load_home(home_folder(str(clawd)))
    covered = dict(covered_files(home.state, home.covering()))
    for path in ("SOUL.md", "memory/main.sqlite", ".holdfast/kel.jsonl", ".holdfast/holdfast.toml"):
        assert path in covered, path
    assert not any("instance" in path or path.endswith("keys.json") for path in covered)
    assert ".env" not in covered


def test_a_second_run_changes_nothing_and_one_that_was_cut_short_is_finished(clawd: Path) -> None:
    prepare(survey_folder(clawd))  # a run that ended before its keys
    assert adopt(clawd) == 0
    made = snapshot(clawd / ".holdfast")
    assert adopt(clawd) == 0
    again = snapshot(clawd / ".holdfast")
    del made["handoff.md"], again["handoff.md"]
    assert again == made


def test_a_folder_of_that_name_that_is_not_ours_is_respected(clawd: Path) -> None:
    (clawd / ".holdfast").mkdir(mode=0o700)
    (clawd / ".holdfast" / "mine").write_text("x")
    with pytest.raises(AgentExists):
        survey_folder(clawd)


def test_what_cannot_be_adopted_is_refused_before_anything_is_made(clawd: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAnAgent):
        survey_folder(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(clawd)
    with pytest.raises(SymlinkRefused):
        survey_folder(tmp_path / "link")
    with pytest.raises(BadInput):
        survey_folder(clawd, name="No Name")
    clawd.chmod(0o777)
    with pytest.raises(OpenParent):
        survey_folder(clawd)
    clawd.chmod(0o755)
    (clawd / "holdfast.toml").write_text('agent = "x"\n')
    with pytest.raises(AgentExists):
        survey_folder(clawd)
    assert not (clawd / ".holdfast").exists()


def test_keys_are_never_put_into_the_agents_folder(clawd: Path) -> None:
    assert adopt(clawd, apart=clawd / "keys") == 2
    assert not (clawd / ".holdfast").exists()


def test_a_hostile_folder_is_listed_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    os.mkfifo(folder / "HEARTBEAT.md")
    os.mkfifo(folder / "package.json")
    (folder / "MEMORY.md").symlink_to("/etc/passwd")
    (folder / "memory").symlink_to("/etc")
    (folder / "sessions").mkdir()
    (folder / "sessions" / "x.jsonl").write_bytes(b"\xff\xfe\n## What is decided\n\n- all\n" * 99)
    (folder / "deep").mkdir()
    at = folder / "deep"
    for _ in range(40):
        at = at / "d"
        at.mkdir()
    db: Any = apsw.Connection(str(folder / "state"))
    db.pragma("journal_mode", "wal")
    db.pragma("user_version", 1)
    for number in range(2_000):
        (folder / "sessions" / f"{number}.txt").touch()
    before = snapshot(folder)
    found = survey_folder(folder)
    home = prepare(found)
    from holdfast.app.handoff import write_foreign

    handoff = write_foreign(home)
    after = snapshot(folder)
    assert {path: one for path, one in after.items() if not path.startswith(".holdfast")} == before
    assert [one.path for one in found.databases] == ["state"]
    assert {one.path for one in found.remarks} == {"MEMORY.md", "memory"}
    assert {one.path for one in found.left_out} >= {"HEARTBEAT.md", "package.json"}
    assert handoff.decided == ()
    assert "root" not in (home.folder / "handoff.md").read_text()
    db.close()
