"""Backups that no person starts: whether the vault opens, what the timer's exit code says, how a way in is added."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.core.clock import SystemEntropy
from holdfast.identity.vault.slots import passphrase_key
from holdfast.identity.vault.vault import open_vault
from holdfast.layout.agent_home import AgentHome

PASSPHRASE = "a long enough passphrase"


@pytest.fixture
def home(make_home: Callable[[], AgentHome], tmp_path: Path) -> AgentHome:
    """One place, and a vault that only a passphrase opens, as `holdfast init` makes it at a terminal."""
    home = make_home()
    (tmp_path / "nas").mkdir()
    assert main(["place", "add", "nas", str(tmp_path / "nas"), "--home", str(home.folder)]) == 0
    assert home.vault is not None
    with open_vault(home.vault) as vault:
        vault.close_slots([passphrase_key(PASSPHRASE)], SystemEntropy())
    (tmp_path / "unlock").unlink()
    return home


def typed(text: str) -> str:
    reader, writer = os.pipe()
    os.write(writer, text.encode() + b"\n")
    os.close(writer)
    return str(reader)


def test_a_timer_that_cannot_open_the_vault_is_named_before_the_night(
    home: AgentHome, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert main(["backup", "schedule", "--home", str(home.folder)]) == 0
    shown = capfd.readouterr()
    assert "no scheduled backup will be made: the vault opens only with a passphrase" in shown.err
    assert "holdfast identity add-unlock --unlock-file FILE" in shown.err
    assert main(["backup", "schedule", "--home", str(home.folder), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["vault_opens"] is False


def test_due_fails_when_it_backed_up_nothing_that_was_due(
    home: AgentHome, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        capfd.readouterr()
        assert main(["backup", "due", "--home", str(home.folder)]) == 7
        said = capfd.readouterr()
        assert "due: nas" in said.out + said.err
        assert "nothing was backed up:" in said.err
        assert "holdfast identity add-unlock --unlock-file FILE" in said.err
        assert main(["backup", "due", "--home", str(home.folder)]) == 0, "tried a moment ago: nothing is due"


def test_an_unlock_file_is_added_and_the_passphrase_stays(
    home: AgentHome, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert home.vault is not None
    folder, file = str(home.folder), tmp_path / "stick" / "ada"
    words = ["identity", "add-unlock", "--home", folder, "--passphrase-fd"]
    assert main([*words, typed(PASSPHRASE)]) == 2, "it says what to add"
    assert main([*words, typed(PASSPHRASE), "--unlock-file", str(home.folder / "key")]) == 2
    assert not (home.folder / "key").exists(), "every backup would hold it"
    assert main([*words, typed("another passphrase"), "--unlock-file", str(file)]) != 0
    assert not file.exists()
    capfd.readouterr()
    assert main([*words, typed(PASSPHRASE), "--unlock-file", str(file), "--json"]) == 0
    (added,) = json.loads(capfd.readouterr().out)["added"]
    assert added == {"kind": "file", "source": str(file)}
    assert file.stat().st_mode & 0o777 == 0o600
    open_vault(home.vault).wipe()
    open_vault(home.vault, given=passphrase_key(PASSPHRASE)).wipe()
    assert main(["backup", "schedule", "--home", folder, "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["vault_opens"] is True
    assert "WARNING" not in said.err
