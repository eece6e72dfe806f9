"""A vault that does not open: every command says which file was missing, and how to open it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.errors import EXIT_JOURNAL, EXIT_PLACE
from holdfast_proofs.support.command_line import Worker, environment


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An agent as `holdfast init` makes it, opened by a file."""
    tmp_path.chmod(0o700)
    reads, writes = os.pipe()
    assert (
        main(
            [
                "init",
                "ada",
                "--home",
                str(tmp_path / "ada"),
                "--vault",
                str(tmp_path / "vault"),
                "--second",
                str(tmp_path / "second"),
                "--witness",
                str(tmp_path / "witness"),
                "--arbiter",
                str(tmp_path / "arbiter"),
                "--unlock-file",
                str(tmp_path / "unlock"),
                "--second-unlock-file",
                str(tmp_path / "unlock2"),
                "--words-fd",
                str(writes),
            ]
        )
        == 0
    )
    os.close(reads)
    os.close(writes)
    return tmp_path / "ada"


COMMANDS = (
    ("backup", "now"),
    ("place", "check", "nas"),
    ("identity", "rotate", "--yes"),
    ("identity", "answer", "--challenge", "a" * 22),
    ("migrate", "cancel"),
)


def test_it_names_what_was_tried_and_how_to_open_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unlock = home.parent / "unlock"
    unlock.unlink()
    capsys.readouterr()
    for words in COMMANDS:
        assert main([*words, "--home", str(home)]) == EXIT_JOURNAL, words
        said = capsys.readouterr().err
        assert str(home.parent / "vault") in said, words
        assert f"the file {unlock} is missing" in said, words
        assert f"mount or restore {unlock}; if that is lost, the recovery sheet" in said, words
    assert main(["identity", "show", "--home", str(home)]) == 0, "what is public needs no vault"
    capsys.readouterr()
    assert main(["doctor", "--json", "--home", str(home)]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["vault"]["level"] == "warning"
    assert str(unlock) in found["vault"]["mend"]
    unlock.touch(mode=0o600)
    unlock.write_text("00" * 32)
    assert main(["backup", "now", "--home", str(home)]) == EXIT_JOURNAL
    assert f"the file {unlock} has another key" in capsys.readouterr().err


def test_a_worker_says_it_while_it_waits(home: Path) -> None:
    (home.parent / "unlock").unlink()
    app = home.parent / "app.py"
    app.write_text("import holdfast\n@holdfast.task\nasync def idle(run: holdfast.Run) -> None: ...\ntasks = [idle]\n")
    worker = Worker(home, ("worker", f"{app}:tasks"), environment(home))
    try:
        text = worker.wait_event("agent-waits")["text"]
        assert f"the file {home.parent / 'unlock'} is missing" in text
    finally:
        worker.close()


def test_a_linked_vault_is_refused_with_the_real_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vault, real = home.parent / "vault", home.parent / "real"
    vault.rename(real)
    vault.symlink_to(real)
    for words in COMMANDS:
        capsys.readouterr()
        assert main([*words, "--home", str(home)]) == EXIT_PLACE, words
        said = capsys.readouterr().err
        assert f"{vault} is a symbolic link" in said, words
        assert str(real) in said, words
    assert main(["doctor", "--json", "--home", str(home)]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "symbolic link" in found["vault"]["text"]
