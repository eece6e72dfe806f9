"""`holdfast place` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.app.agent_home import AgentHome
from holdfast.cli.main import main

SHAPE = {
    "name", "kind", "address", "repository", "repository_id", "domain", "append_only", "epoch",
    "added", "tried", "result", "message", "failures", "made", "made_snapshot", "verified",
    "verified_snapshot",
}  # fmt: skip


def test_a_place_is_added_listed_checked_and_removed(
    make_home: Callable[[], AgentHome], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = str(make_home().folder)
    for name in ("nas", "usb"):
        (tmp_path / name).mkdir()
        assert main(["place", "add", name, str(tmp_path / name), "--home", home]) == 0
    said = capfd.readouterr().err
    assert f"added: nas at {tmp_path}/nas/ada/repository" in said
    assert "nas and usb share a failure domain: they can be lost together" in said

    assert main(["place", "list", "--json", "--home", home]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [set(one) for one in found["places"]] == [SHAPE, SHAPE]
    assert found["shared_domains"] == [["nas", "usb"]]
    assert {one["verified"] for one in found["places"]} == {""}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
    section = page.split("## `holdfast place list`")[1].split("\n## ")[0]
    assert all(f"`{field}`" in section for field in SHAPE)

    assert main(["place", "list", "--home", home]) == 0
    assert "never" in capfd.readouterr().out
    assert main(["place", "check", "nas", "--home", home]) == 0
    assert "well: nas, 0 snapshots" in capfd.readouterr().err
    (tmp_path / "usb" / "holdfast-place.json").unlink()
    assert main(["place", "check", "usb", "--home", home]) == 7
    said = capfd.readouterr().err
    assert "is the disk not mounted?" in said
    assert "hint: mount the disk at" in said
    assert main(["place", "remove", "usb", "--home", home]) == 2
    assert main(["place", "remove", "usb", "--yes", "--home", home]) == 0
    assert (tmp_path / "usb" / "ada" / "repository").is_dir()
    assert main(["place", "check", "usb", "--home", home]) == 3
    assert "hint: `holdfast place list`" in capfd.readouterr().err


def test_borg_that_is_missing_is_one_line(
    make_home: Callable[[], AgentHome], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = make_home()
    toml = home.settings_file
    toml.write_text(toml.read_text() + '\n[backup]\nborg = "/nowhere/borg"\n')
    (tmp_path / "nas").mkdir()
    assert main(["place", "add", "nas", str(tmp_path / "nas"), "--home", str(home.folder)]) == 7
    said = capfd.readouterr().err
    assert "error: `borg` under [backup] names /nowhere/borg" in said
    assert "apt-get install borgbackup" in said
    assert list((tmp_path / "nas").iterdir()) == []
