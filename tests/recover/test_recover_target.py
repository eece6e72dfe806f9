"""Where `holdfast recover` puts an agent, and which addresses of a place it takes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from lost import BareMachine, Lost, live_and_die

from holdfast.downstream.process import start_blocking
from holdfast_proofs.support.warm_start import run_command


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> Generator[Lost]:
    with start_blocking("payment") as service:
        lost = live_and_die(tmp_path_factory.mktemp("lost"), service)
        kept = lost.root / "kept"  # away from the address that the agent knows: each test has a place of its own
        kept.mkdir()
        shutil.move(lost.place, kept)
        yield replace(lost, root=kept)


@pytest.fixture
def lost(remains: Lost, tmp_path: Path) -> Lost:
    return remains.copy(tmp_path)


@pytest.fixture
def machine(tmp_path: Path) -> BareMachine:
    """Its home is a person's: with files that are no agent's."""
    made = BareMachine(tmp_path / "bare")
    made.root.mkdir(mode=0o700)
    (made.root / "thesis.tex").write_text("my life\n")
    return made


def recover(machine: BareMachine, lost: Lost, *options: str, cwd: Path | None = None, words: bool = True):
    """The command as the sheet says it: without --home."""
    typed, writer = os.pipe()
    os.write(writer, lost.words.encode() + b"\n")
    os.close(writer)
    unlock = [f"--{name}={machine.root / name}" for name in ("unlock-file", "second-unlock-file")]
    given = ("--words-fd", str(typed)) if words else ()
    try:
        return run_command(
            ("recover", "--json", "--yes", "--second", str(machine.root / "stick"), *unlock, *given, *options),
            env=machine.environment(),
            cwd=cwd or machine.root,
            timeout=900,
            pass_fds=(typed,),
        )
    finally:
        os.close(typed)


def test_in_a_persons_home_the_agent_gets_a_folder_of_its_own(lost: Lost, machine: BareMachine) -> None:
    done = recover(machine, lost, "--place", str(lost.place))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["home"] == str(machine.root / "ada")
    assert (machine.root / "thesis.tex").read_text() == "my life\n"
    assert (machine.root / "ada" / "journal.db").is_file()
    # Named after the agent, not after the folder in which the command ran.
    assert (machine.root / ".config/holdfast/vault/ada/op.age").is_file()
    assert not list((machine.root / "ada").rglob("op.age"))


def test_the_agents_own_folder_is_the_one_that_we_are_in(lost: Lost, machine: BareMachine) -> None:
    """As before: what is left of the agent is kept, and its place is taken."""
    left = machine.root / "agents" / "remains"
    left.mkdir(parents=True, mode=0o700)
    (left / "places.json").touch(0o600)
    (left / "places.json").write_text('{"format": 1, "places": []}\n')
    done = recover(machine, lost, "--place", str(lost.place), cwd=left)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["home"] == str(left)


@pytest.mark.parametrize("where", ["~", "/", "above", "foreign"])
def test_a_folder_that_is_not_an_agents_is_refused_before_any_word_is_asked_for(
    lost: Lost, machine: BareMachine, where: str
) -> None:
    (machine.root / "work").mkdir()
    (machine.root / "work" / "report.txt").write_text("mine")
    folder = {"~": machine.root, "/": Path("/"), "above": machine.root.parent, "foreign": machine.root / "work"}[where]
    if where in ("~", "above"):  # not even if an agent's journal is there
        (folder / "journal.db").touch()
    done = recover(machine, lost, "--place", str(lost.place), "--home", str(folder), words=False)
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (2, "bad-input")
    assert "would take its place" in error["message"]
    assert error["hint"].endswith("`--home ./ada`")
    assert (machine.root / "work" / "report.txt").read_text() == "mine"


@pytest.mark.parametrize("form", ["", "ada", "ada/repository", "ada/repository/"])
def test_an_address_is_taken_in_every_form_that_paper_and_screens_show(
    lost: Lost, machine: BareMachine, form: str
) -> None:
    done = recover(machine, lost, "--place", f"{lost.place}/{form}", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["would"]["target"] == str(machine.root / "ada")


def test_a_copied_folder_still_knows_the_agents_name(lost: Lost, machine: BareMachine) -> None:
    shutil.move(lost.place / "ada", lost.place / "from-the-old-disk")
    done = recover(machine, lost, "--place", str(lost.place), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["would"]["target"] == str(machine.root / "ada")


def test_a_place_without_backups_is_reported_before_any_word_is_asked_for(lost: Lost, machine: BareMachine) -> None:
    done = recover(machine, lost, "--place", str(machine.root), words=False)
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (7, "place-missing")
    assert "recovery sheet or the public card" in error["hint"]


def test_several_agents_at_a_place_are_told_apart_by_name(lost: Lost, machine: BareMachine) -> None:
    shutil.copytree(lost.place / "ada", lost.place / "bob")
    about = json.loads((lost.place / "bob" / "place.json").read_text()) | {"agent": "bob"}
    (lost.place / "bob" / "place.json").write_text(json.dumps(about))
    done = recover(machine, lost, "--place", str(lost.place), "--dry-run", words=False)
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (error["message"], error["hint"]) == (
        "the places have backups of several agents: ada, bob",
        "give --agent NAME",
    )
    done = recover(machine, lost, "--place", str(lost.place), "--dry-run", "--agent", "bob")
    assert json.loads(done.stdout)["would"]["target"] == str(machine.root / "bob")


def test_another_agents_folder_is_refused(lost: Lost, machine: BareMachine) -> None:
    assert recover(machine, lost, "--place", str(lost.place)).returncode == 0
    identity = machine.root / "ada" / "identity.json"
    other = "hf1k2u45dw5undaz2pxn2zfqcrywn54vpsq5av5wjvrjkl8ajkn3v4qa96y0u"
    identity.write_text(identity.read_text().replace(lost.id, other))
    done = recover(machine, lost, "--place", str(lost.place), "--again")
    assert done.returncode == 2, done.stderr
    assert f"is the folder of another agent ({other})" in done.stderr


@pytest.mark.parametrize("option", ["--vault", "--second", "--new-witness", "--unlock-file"])
def test_keys_are_never_put_into_the_agents_folder(lost: Lost, machine: BareMachine, option: str) -> None:
    done = recover(machine, lost, "--place", str(lost.place), option, str(machine.root / "ada" / "keys"))
    assert done.returncode == 2, done.stderr
    assert "is in the agent's folder" in done.stderr
    assert not (machine.root / "ada").exists()
