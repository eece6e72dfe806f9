"""`surface list`, `level show` and `target`: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.cli.surfaces import runbook
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
    assert f"next: holdfast place add NAME ADDRESS --home {folder}\n" in printed
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


@pytest.mark.parametrize("words", [("surface", "list"), ("level", "show"), ("runbook", "print")])
def test_a_folder_that_does_not_exist_is_no_agent(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*words, home=tmp_path / "nosuch", code=3)
    assert "there is no folder" in capsys.readouterr().err


def test_proven_says_which_level(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("level", "show", "--proven", home=folder, code=2)
    assert "--proven needs --min" in capsys.readouterr().err


def test_a_rescued_copy_gets_no_targets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "keys.json").write_text('{"format": 4}')
    (folder / "keys.json").chmod(0o600)
    assert main(["target", "set", "--rto", "60", "--home", str(folder)]) != 0
    assert "rescue" in capsys.readouterr().err
    assert not (folder / "targets.jsonl").exists()


@pytest.mark.parametrize(
    ("app", "said"), [("nosuch.py:tasks", "there is no file"), ("no.such:x", "cannot be found"), ("x", "not an app")]
)
def test_a_runbook_names_no_app_that_does_not_exist(
    folder: Path, app: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("runbook", "print", "--app", app, home=folder, code=2)
    assert said in capsys.readouterr().err


def test_a_runbook_names_the_app_by_its_whole_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "app.py").write_text("")
    monkeypatch.chdir(folder)
    assert runbook._app_of("app.py:tasks") == f"{folder}/app.py:tasks"
    assert runbook._app_of("holdfast.drills.probe:tasks") == "holdfast.drills.probe:tasks"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[surfaces]\nwatc = true\n", "[surfaces] watc is not a setting|did you mean watch?"),
        ("[surfaces.own.x]\nhold = 'a'\nwhere = 'b'\n", "[surfaces.own.NAME] hold is not|did you mean holds?"),
        ("[surfaces.own.x]\nholds = 'a'\n", "[surfaces.own.NAME] lacks where"),
        ("[watch]\nping = 3\n", "[watch] ping is a whole number; it must be text"),
    ],
)
def test_a_fault_in_the_settings_names_its_table(
    folder: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "holdfast.toml").write_text(f'agent = "ada"\n{text}')
    run("surface", "list", home=folder, code=2)
    err = capsys.readouterr().err
    assert all(one in err for one in said.split("|")), err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("host-los",), "did you mean host-loss?"),
        (("--due", "--all"), "--due and --all exclude each other"),
        (("--all", "--seed", "x"), "'x': it must be a whole number"),
    ],
)
def test_a_drill_that_cannot_be_meant_is_refused(
    folder: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["drill", "run", *words, "--home", str(folder)])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err


def test_the_worst_surface_comes_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "holdfast.toml").write_text('agent = "ada"\n[surfaces.own.wall]\nholds = "notes"\nwhere = "a wall"\n')
    run("surface", "list", home=folder)
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("folder")
    assert "uncovered" in out[1]
    assert f"fix: holdfast place add NAME ADDRESS --home {folder}" in " ".join(out)
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


@pytest.mark.parametrize("line", ["{", '{"by":"ada","at_ms":9999999999999999999}', '{"by":"ada","at_ms":-1}'])
def test_a_damaged_file_of_targets_is_not_guessed(folder: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    (folder / "targets.jsonl").write_text(f"{line}\n")
    (folder / "targets.jsonl").chmod(0o600)
    run("level", "show", home=folder, code=2)
    run("target", "show", home=folder, code=2)
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
