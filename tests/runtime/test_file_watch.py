"""`[surfaces] watch`: which files the Python code of tools writes elsewhere is noted by tool; off, nothing is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.layout.agent_home import load_home
from holdfast.runtime.tool import file_watch
from holdfast.runtime.tool.file_watch import WrittenFile, compact, read_written, written_path
from holdfast.surfaces.tool_files import found_tool_files

SCRIPT = Path(__file__).with_name("programs") / "watched_tools.py"


def run(tmp_path: Path, settings: str) -> tuple[Path, Path, str]:
    folder, outside = tmp_path / "agent", tmp_path / "outside"
    folder.mkdir(mode=0o700)
    outside.mkdir()
    (folder / "holdfast.toml").touch(0o600)
    (folder / "holdfast.toml").write_text(f'agent = "ada"\n{settings}')
    done = subprocess.run(
        (sys.executable, "-P", str(SCRIPT), str(folder), str(outside)), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder, outside, done.stdout


def test_each_path_is_noted_with_its_tool(tmp_path: Path) -> None:
    folder, outside, said = run(tmp_path, "[surfaces]\nwatch = true\n")
    assert said.strip() == "True"
    found = {(one.tool, one.path.removeprefix(f"{outside}/")) for one in read_written(folder / "written.jsonl")}
    by_scatter = ("direct", "renamed", "gone", "folder/", "thread", "to-thread", "pool", "child")
    assert found == {
        *(("scatter", name) for name in by_scatter),
        ("other", "other"),
        ("in_thread", "in-thread"),
        ("in_child", "in-child"),
        ("in_child", "in-child-thread"),
    }
    assert (folder / "written.jsonl").stat().st_mode & 0o077 == 0
    rows = {one.id: one for one in found_tool_files(load_home(folder)).surfaces}
    still = ("renamed", "folder/", "thread", "to-thread", "pool", "child")
    assert rows["files/scatter"].where == ", ".join(f"{outside}/{name}" for name in still)
    assert rows["files/scatter"].verdict == "uncovered"
    assert "other programs are not watched" in rows["files/scatter"].evidence
    assert set(rows) == {"files/scatter", "files/other", "files/in_thread", "files/in_child"}


def test_off_there_is_no_hook_and_no_file(tmp_path: Path) -> None:
    folder, outside, said = run(tmp_path, "")
    assert said.strip() == "False"
    assert not (folder / "written.jsonl").exists()
    assert (outside / "pool").exists()


def test_what_writes_nothing_is_not_noted(tmp_path: Path) -> None:
    create = os.O_WRONLY | os.O_CREAT
    assert written_path("open", ("a", "r", os.O_RDONLY | os.O_CLOEXEC)) == ""
    assert written_path("open", (7, "w", create)) == ""
    assert written_path("open", ("/tmp", None, os.O_TMPFILE | os.O_RDWR)) == ""
    assert written_path("sqlite3.connect", (":memory:",)) == ""
    assert written_path("open", (b"/tmp/a", "w", create)) == "/tmp/a"
    assert written_path("open", (Path("/tmp/a"), "a", create)) == "/tmp/a"
    assert written_path("os.rename", ("/tmp/a", "/tmp/b", -1, -1)) == "/tmp/b"
    assert written_path("sqlite3.connect", ("/tmp/a.db",)) == "/tmp/a.db"


def test_a_long_file_keeps_what_still_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, here = tmp_path / "written.jsonl", os.uname().nodename
    (tmp_path / "there").touch()
    lines = [
        WrittenFile(path=str(tmp_path / "there"), tool="a", at_ms=1, host=here),
        WrittenFile(path=str(tmp_path / "gone"), tool="a", at_ms=2, host=here),
        WrittenFile(path="/srv/x", tool="b", at_ms=3, host="lost-machine"),
        WrittenFile(path=str(tmp_path / "there"), tool="a", at_ms=4, host=here),
    ]
    file.touch(0o600)
    file.write_text("".join(json.dumps({n: getattr(one, n) for n in one.__struct_fields__}) + "\n" for one in lines))
    with file.open("a") as more:
        more.write('{"path": "/cut')
    compact(file)
    assert len(file.read_bytes().splitlines()) == 5
    monkeypatch.setattr(file_watch, "COMPACT_BYTES", 10)
    compact(file)
    assert [(one.path, one.at_ms) for one in read_written(file)] == [("/srv/x", 3), (str(tmp_path / "there"), 4)]
