"""`holdfast place` as a person uses it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.place_state import tried, verified
from holdfast.cli.main import main
from holdfast.layout.agent_home import AgentHome

NOW_MS = round(time.time() * 1000)

SHAPE = {
    "name",
    "absent",
    "kind",
    "address",
    "repository",
    "repository_id",
    "domain",
    "append_only",
    "epoch",
    "added",
    "tried",
    "result",
    "message",
    "failures",
    "made",
    "made_snapshot",
    "verified",
    "verified_snapshot",
    "missing",
}
CHECKED = {"name", "deep", "snapshots", "missing", "beside", "result"}


def test_a_place_is_added_listed_checked_and_removed(
    make_home: Callable[[], AgentHome], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = str(make_home().folder)
    for name in ("nas", "usb"):
        (tmp_path / name).mkdir()
        assert main(["place", "add", name, str(tmp_path / name), "--home", home]) == 0
    said = capfd.readouterr().err
    assert f"added: nas at {tmp_path}/nas/ada/repository" in said
    assert "nas, usb share a failure domain: one failure can destroy all of them" in said

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
    assert main(["place", "check", "--home", home]) == 0  # every place
    assert "ok: nas, 0 snapshots" in capfd.readouterr().err
    (tmp_path / "usb" / "holdfast-place.json").unlink()
    assert main(["place", "check", "usb", "--home", home]) == 7
    said = capfd.readouterr().err
    assert "is the disk mounted?" in said
    assert "hint: mount the disk at" in said
    assert main(["place", "remove", "usb", "--home", home]) == 2
    assert main(["place", "remove", "usb", "--yes", "--home", home]) == 0
    assert (tmp_path / "usb" / "ada" / "repository").is_dir()
    assert main(["place", "check", "usb", "--home", home]) == 3
    assert "hint: `holdfast place list`" in capfd.readouterr().err


def test_programs_read_what_was_done(
    make_home: Callable[[], AgentHome], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every verb of places, and backups by a timer: one object, nothing else, as documented."""
    home = str(make_home().folder)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
    headings = " ".join(line for line in page.splitlines() if line.startswith("## "))

    def asked(*words: str, fields: set[str], code: int = 0) -> Any:  # Any: JSON
        assert main([*words, "--json", "--home", home]) == code
        said = capfd.readouterr()
        assert said.err == ""
        found = json.loads(said.out)
        assert set(found) == fields
        assert f"`holdfast {' '.join(words[:2])}`" in headings
        return found

    (tmp_path / "nas").mkdir()
    made = asked("place", "add", "nas", str(tmp_path / "nas"), fields=SHAPE)
    assert made["repository"] == f"{tmp_path}/nas/ada/repository"
    assert asked("place", "check", "nas", fields=CHECKED)["snapshots"] == []
    done = asked("backup", "due", fields={"due", "host", "places", "relays"}, code=7)
    assert done["due"] == ["nas"]
    # This home has no identity to sign with: what went wrong is in the answer.
    assert [(one["name"], one["result"]) for one in done["places"]] == [("nas", "log-missing")]
    assert asked("backup", "due", fields={"due", "host", "places", "relays"})["due"] == []
    found = asked("place", "check", "nas", "--deep", fields=CHECKED)
    assert found["deep"]
    assert found["snapshots"] == []
    shown = asked("backup", "schedule", fields={"unit", "service", "timer", "cron", "written", "vault_opens"})
    assert shown["vault_opens"]
    assert home in shown["cron"]
    assert shown["written"] == []
    (tmp_path / "nas").rename(tmp_path / "rack")
    moved = asked("place", "move", "nas", str(tmp_path / "rack"), fields=SHAPE)
    assert moved["address"] == str(tmp_path / "rack")
    assert moved["result"] == "log-missing"
    asked("place", "fix-key", "nas", fields={"name", "snapshots"})
    assert main(["place", "mend-key", "nas", "--json", "--home", home]) == 0  # its older name, on no page
    assert set(json.loads(capfd.readouterr().out)) == {"name", "snapshots"}
    asked("place", "break-lock", "nas", "--yes", fields={"name", "repository"})
    asked("place", "remove", "nas", "--yes", fields={"name", "repository"})


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


def test_doctor_names_engine_places_and_what_is_missing(
    make_home: Callable[[], AgentHome], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home = make_home()

    def findings() -> dict[str, list[tuple[str, str]]]:
        main(["doctor", "--json", "--journal", str(home.folder)])
        found: dict[str, list[tuple[str, str]]] = {}
        for one in json.loads(capfd.readouterr().out)["findings"]:
            found.setdefault(one["check"], []).append((one["level"], one["text"]))
        return found

    assert findings()["backups"] == [("warning", "this agent has no place for backups")]
    for name in ("nas", "usb"):
        (tmp_path / name).mkdir()
        assert main(["place", "add", name, str(tmp_path / name), "--home", str(home.folder)]) == 0
    capfd.readouterr()
    states_of(home).change("nas", lambda state: verified(state, now_ms=NOW_MS, snapshot="ada-1-1"))
    assert any("every place is on the disk that the agent's folder is on" in text for _, text in findings()["backups"])
    (tmp_path / "usb" / "holdfast-place.json").unlink()  # as if its disk was not mounted: then it is another one
    found = findings()
    assert found["borg"][0][0] == "ok"
    assert found["borg"][0][1].startswith("Borg 1.")
    levels = [level for level, _ in found["backups"]]
    assert levels == ["ok", "note", "note"]
    texts = [text for _, text in found["backups"]]
    assert texts[0].startswith("place nas: ada-1-1 verified 0.")
    assert texts[1] == "place usb: no verified backup yet; not reachable now (place-missing)"
    assert "share a failure domain" in texts[2]
    states_of(home).change(
        "usb", lambda state: tried(state, now_ms=1, result="repository-damaged", message="a bad chunk")
    )
    assert findings()["backups"][1] == ("warning", "backup to usb failed: a bad chunk")
