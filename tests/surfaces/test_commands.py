"""`surface list`, `level show` and `target`: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.surfaces import register


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "agent"
    made.mkdir(mode=0o700)
    (made / "holdfast.toml").write_text('agent = "ada"\n')
    (made / "MEMORY.md").write_text("- tea\n")

    def on_disk(_: Path) -> bool:
        return False

    monkeypatch.setattr(register, "is_in_memory", on_disk)
    return made


def run(*words: str, home: Path, code: int = 0) -> None:
    assert main([*words, "--home", str(home)]) == code


def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_level_show_fails_below_the_wanted_level(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("level", "show", home=folder)
    printed = capsys.readouterr().out
    assert printed.startswith("level 1\nfile-backed: ")
    assert "next: holdfast place add NAME ADDRESS\n" in printed
    run("level", "show", "--min", "1", "--proven", home=folder)
    run("level", "show", "--min", "2", home=folder, code=1)
    assert "below level 2" in capsys.readouterr().err
    run("level", "show", "--min", "2", "--json", home=folder, code=1)
    found = shown(capsys)
    assert (found["level"], found["next"]["command"]) == (1, "holdfast place add NAME ADDRESS")
    assert [one["level"] for one in found["history"]] == [1], "the same level is one line"


def test_level_show_of_a_folder_without_an_agent_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("level", "show", "--json", home=tmp_path)
    assert shown(capsys)["next"]["command"] == "holdfast init NAME --home FOLDER"
    assert list(tmp_path.iterdir()) == []


def test_the_worst_surface_comes_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "holdfast.toml").write_text('agent = "ada"\n[surfaces.own.wall]\nholds = "notes"\nwhere = "a wall"\n')
    run("surface", "list", home=folder)
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("folder")
    assert "uncovered" in out[1]
    assert "fix: holdfast place add NAME ADDRESS" in out[1]
    run("surface", "list", "--json", home=folder)
    found = shown(capsys)
    assert found["counts"] == {"uncovered": 3, "at risk": 0, "covered": 0}
    assert {one["id"] for one in found["surfaces"]} == {"folder", "memory", "own/wall"}


def test_targets_say_who_set_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("target", "show", "--json", home=folder)
    assert shown(capsys) == {
        "rto_s": 300,
        "rpo_s": 86_400,
        "mtd_s": None,
        "restart_s": None,
        "by": "",
        "at": "",
        "default": True,
    }
    run("target", "set", "--rto", "15m", "--rpo", "1h", "--by", "Mira Lund", home=folder)
    run("target", "set", "--mtd", "1d", "--by", "Ole", home=folder)
    capsys.readouterr()
    run("target", "show", "--json", home=folder)
    found = shown(capsys)
    assert (found["rto_s"], found["rpo_s"], found["mtd_s"], found["by"]) == (900, 3_600, 86_400, "Ole")
    assert found["at"].startswith("20")
    assert len((folder / "targets.jsonl").read_text().splitlines()) == 2
    run("target", "show", home=folder)
    assert "Ole" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--rto", "0"),
        ("--restart", "0"),
        ("--rto", "-1"),
        ("--rto", "soon"),
        ("--rpo", "9999999999"),
        ("--rto", "1h", "--mtd", "1m"),
    ],
)
def test_targets_that_make_no_sense_are_refused(folder: Path, words: tuple[str, ...]) -> None:
    run("target", "set", *words, home=folder, code=2)
    assert not (folder / "targets.jsonl").exists()


def test_a_damaged_file_of_targets_is_not_guessed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "targets.jsonl").write_text("{\n")
    (folder / "targets.jsonl").chmod(0o600)
    run("level", "show", home=folder, code=2)
    assert "targets.jsonl" in capsys.readouterr().err


def test_a_line_that_was_cut_off_never_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("target", "set", "--rto", "60", home=folder)
    path = folder / "targets.jsonl"
    first = path.read_bytes()
    path.write_bytes(first + b'{"rto_s":1,' + b" " * 1_000)
    capsys.readouterr()
    run("target", "show", "--json", home=folder)
    assert shown(capsys)["rto_s"] == 60
    run("target", "set", "--rpo", "60", home=folder)
    assert path.read_bytes().startswith(first)
    lines = path.read_bytes().removeprefix(first).splitlines()
    assert [json.loads(one)["rpo_s"] for one in lines] == [60]
