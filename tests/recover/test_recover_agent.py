"""Paper and one surviving backup are the agent again: on a bare machine, by one command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from lost import APP, CARD, COMMAND, FACT, BareMachine, Lost, live_and_die

from holdfast.downstream.process import BlockingFarEnd, start_blocking
from holdfast.identity.paper.phrase import english


@pytest.fixture(scope="module")
def far_end() -> Generator[BlockingFarEnd]:
    with start_blocking("payment") as service:
        yield service


@pytest.fixture(scope="module")
def remains(far_end: BlockingFarEnd, tmp_path_factory: pytest.TempPathFactory) -> Lost:
    lost = live_and_die(tmp_path_factory.mktemp("lost"), far_end)
    kept = lost.root / "kept"  # away from the address that the agent knows: each test has a place of its own
    kept.mkdir()
    shutil.move(lost.place, kept)
    return replace(lost, root=kept)


@pytest.fixture
def lost(remains: Lost, tmp_path: Path) -> Lost:
    return remains.copy(tmp_path)


@pytest.fixture
def machine(tmp_path: Path) -> BareMachine:
    return BareMachine(tmp_path / "bare")


def test_words_and_one_place_bring_the_agent_back_and_it_finishes_its_task(
    lost: Lost, machine: BareMachine, far_end: BlockingFarEnd, measured: Callable[[str], None]
) -> None:
    """Same id, memory, tool secrets; the task is finished with a real call, and charged once."""
    done = machine.recover(lost, "--place", str(lost.place))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["id"], seen["done"], seen["evicted"]) == (lost.id, True, True)
    assert (seen["suspect_tasks"], seen["secrets_to_rotate"]) == (1, ["billing"])
    assert seen["position"] == [1, 1]
    assert seen["published_at"] == ["place-2"]
    assert [one["place"] for one in seen["backup"]["places"] if one["verified"]] == ["place-2"]
    assert (machine.home / "MEMORY.md").read_text() == FACT
    measured(f"bare machine: recovered in {seen['seconds']:.1f} s, of it {seen['restore_s']:.1f} s restore")
    rows = cast("list[dict[str, str]]", machine.json("surface", "list", "--home", str(machine.home))["surfaces"])
    secret = next(one for one in rows if one["id"] == "secret/billing")
    assert (secret["verdict"], secret["fix"]) == ("at risk", "holdfast secret rotate billing")
    before = far_end.ledger()
    view = _finished(machine, lost.task_id, far_end)
    after = far_end.ledger()
    assert view["state"] == "succeeded"
    assert after.count == 1, "charged again"
    assert len(after.requests) > len(before.requests), "the far end was not asked"
    assert CARD in json.dumps([effect.body for effect in after.effects], default=str)


def _finished(machine: BareMachine, task_id: str, far_end: BlockingFarEnd) -> dict[str, object]:
    worker = subprocess.Popen(
        [*COMMAND, "worker", APP, "--journal", str(machine.home / "journal.db")],
        env=machine.environment(SHOP=far_end.url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 90
        while time.monotonic() < end:
            journal = str(machine.home / "journal.db")
            view = machine.json("task", "show", task_id, "--journal", journal)
            if view["state"] in ("succeeded", "failed", "parked"):
                return view
            assert worker.poll() is None, worker.communicate()[1]
            time.sleep(0.5)
        raise AssertionError("the task did not end")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)


def test_the_recovered_keys_know_the_ids_of_a_journal_that_is_lost_too(lost: Lost, machine: BareMachine) -> None:
    """Its salt is in the escrow: begun anew, the same request is the same task with the same effect keys."""
    done = machine.recover(lost, "--place", str(lost.place))
    assert done.returncode == 0, done.stderr
    journal = machine.home / "journal.db"
    for path in machine.home.glob("journal.db*"):
        path.unlink()
    words = ("submit", APP, '{"cents": 700}', "--task", "buy", "--request-id", "order-1", "--no-follow")
    anew = machine.json("recover", "--journal", str(journal), "--begin-anew", "--yes")
    assert anew["done"]
    assert machine.json(*words, "--journal", str(journal))["task_id"] == lost.task_id


def test_a_look_changes_nothing_and_tells_what_is_there(lost: Lost, machine: BareMachine) -> None:
    done = machine.recover(lost, "--place", str(lost.place), "--dry-run", keys=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["id"], seen["newest"], seen["done"]) == (lost.id, 1, False)
    assert [one["name"] for one in seen["places"]] == ["place-2"]
    would = seen["would"]
    snapshot = would["snapshot"]
    assert (snapshot["seq"], snapshot["places"]) == (1, ["place-2"])
    assert snapshot["time"].startswith("20")
    assert min(snapshot["files"], snapshot["bytes"], snapshot["at"]) > 0
    assert (would["target"], would["target_kept"]) == (str(machine.home), False)
    identity = would["identity"]
    assert (identity["act"], identity["evicts"], identity["position"]) == ("recover", True, [0, 0])
    assert identity["vault"].startswith(str(machine.root))
    assert not machine.home.exists()
    assert sorted(os.listdir(machine.root)) == []


def test_a_place_without_its_file_of_heads_is_recovered_from(lost: Lost, machine: BareMachine) -> None:
    """The head inside the archive is signed too."""
    (heads,) = lost.place.glob("*/heads.jsonl")
    heads.unlink()
    done = machine.recover(lost, "--place", str(lost.place), "--dry-run", keys=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["newest"], seen["would"]["snapshot"]["seq"]) == (1, 1)
    (place,) = seen["places"]
    assert place["findings"][0] == "heads.jsonl is missing from the companion files"
    assert "read from the archives" in place["findings"][1]


def test_a_look_that_finds_nothing_to_restore_does_not_end_well(lost: Lost, machine: BareMachine) -> None:
    """A repository that cannot be read; a moment before all snapshots; a file that is not there."""
    place = ("--place", str(lost.place), "--dry-run")
    early = machine.recover(lost, *place, "--at", "2020-02-02", keys=False)
    assert early.returncode == 3, early.stderr
    error = json.loads(early.stderr.splitlines()[-1])["error"]
    assert "the oldest one is number 1 of 20" in error["message"]
    assert "--at 20" in error["hint"]
    assert json.loads(early.stdout)["would"] is None
    wrong = machine.recover(lost, *place, "--file", "MEMROY.md", "--to", str(machine.root / "x"), keys=False)
    assert wrong.returncode == 3, wrong.stderr
    assert "MEMORY.md" in json.loads(wrong.stderr.splitlines()[-1])["error"]["hint"]
    (lost.place / "ada" / "repository" / "config").unlink()
    unread = machine.recover(lost, *place, keys=False)
    assert unread.returncode == 3, unread.stderr
    seen = json.loads(unread.stdout)
    assert seen["would"] is None
    assert seen["places"][0]["code"] == "repository-damaged"
    assert seen["places"][0]["hint"]
    assert sorted(os.listdir(machine.root)) == []


def test_words_of_another_agent_are_refused_and_nothing_is_made(lost: Lost, machine: BareMachine) -> None:
    other = lost.words.split()
    other[0], other[3] = other[3], other[0]
    other[1] = next(word for word in english().words if word != other[1])
    done = machine.recover(lost, "--place", str(lost.place), words=" ".join(other))
    assert done.returncode != 0
    assert not machine.home.exists()
    words = lost.words.split()  # single ones are found in any message
    pairs = [f"{one} {other}" for one, other in pairwise(words)]
    assert not any(pair in done.stderr for pair in pairs)


def test_one_wrong_word_is_found(lost: Lost, machine: BareMachine) -> None:
    words = lost.words.split()
    words[5] = next(word for word in english().words if word != words[5])
    done = machine.recover(lost, "--place", str(lost.place), "--dry-run", words=" ".join(words), keys=False)
    assert done.returncode == 0, done.stderr
    assert "6" in json.loads(done.stdout)["words_repaired"]


def test_cut_short_after_the_restore_it_goes_on_with_the_identity(lost: Lost, machine: BareMachine) -> None:
    """A new witness cannot be made: the state is there, no worker can run it, then all is."""
    machine.root.mkdir(mode=0o700)
    blocker = machine.root / ".config" / "holdfast" / "witness" / "ada"
    for folder in (machine.root / ".config", blocker.parent.parent, blocker.parent):
        folder.mkdir(mode=0o700)
    blocker.write_text("in the way")
    done = machine.recover(lost, "--place", str(lost.place))
    assert done.returncode != 0
    assert machine.home.is_dir()
    assert not (machine.home / "keys.json").exists()
    refused = machine.run("task", "list", "--journal", str(machine.home / "journal.db"))
    assert refused.returncode != 0
    blocker.unlink()
    done = machine.recover(lost, "--place", str(lost.place))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["id"], seen["restored"]) == (lost.id, None)
    again = machine.recover(lost, "--place", str(lost.place))
    assert again.returncode != 0
    assert json.loads(again.stderr.splitlines()[-1])["error"]["code"] == "too-early"


def test_single_files_and_whole_folders_can_be_looked_at(lost: Lost, machine: BareMachine) -> None:
    to = machine.root / "looked-at"
    done = machine.recover(lost, "--place", str(lost.place), "--file", "MEMORY.md", "--to", str(to), keys=False)
    assert done.returncode == 0, done.stderr
    assert (to / "MEMORY.md").read_text() == FACT
    assert os.listdir(to) == ["MEMORY.md"]
    whole = machine.root / "whole"
    done = machine.recover(lost, "--place", str(lost.place), "--to", str(whole), keys=False)
    assert done.returncode == 0, done.stderr
    assert (whole / "journal.db").is_file()
    assert not (whole / "keys.json").exists()


def test_an_agent_folder_without_its_root_is_enough(lost: Lost, machine: BareMachine) -> None:
    """Somebody copied PLACE/AGENT from the disk: no sentinel, another path."""
    machine.root.mkdir(mode=0o700)
    copied = machine.root / "copied"
    shutil.copytree(lost.place / "ada", copied)
    done = machine.recover(lost, "--place", str(copied), "--dry-run", keys=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["newest"] == 1


def test_a_place_that_is_not_there_is_told(lost: Lost, machine: BareMachine) -> None:
    done = machine.recover(lost, "--place", str(machine.root / "nowhere"), "--dry-run", keys=False)
    assert done.returncode != 0
    assert "place-missing" in done.stderr + done.stdout


def test_a_second_loss_gives_back_what_was_backed_up_since_the_first(
    lost: Lost, machine: BareMachine, tmp_path: Path
) -> None:
    """The first recovery named a new witness, which is lost too: its receipts lie at the place."""
    done = machine.recover(lost, "--place", str(lost.place))
    assert done.returncode == 0, done.stderr
    (machine.home / "MEMORY.md").write_text(FACT + "- and on Mondays\n")
    made = machine.run("backup", "now", "--home", str(machine.home), "--json")
    assert made.returncode != 0, "the first place is gone"
    places = {one["place"]: one for one in json.loads(made.stdout)["places"]}
    assert places["place-2"]["verified"], made.stdout
    shutil.rmtree(machine.root)
    third = BareMachine(tmp_path / "third")
    refused = third.recover(lost, "--place", str(lost.place))
    assert "was already recovered" in refused.stderr
    assert not third.home.exists()
    done = third.recover(lost, "--place", str(lost.place), answers="again\nrecover\n")
    assert "was already recovered" in done.stderr, "the person knows what is asked"
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["id"], seen["position"]) == (lost.id, [2, 1])
    assert "and on Mondays" in (third.home / "MEMORY.md").read_text()


def test_a_vault_in_the_way_that_does_not_open_is_told_before_anything_is_moved(
    lost: Lost, machine: BareMachine
) -> None:
    assert machine.recover(lost, "--place", str(lost.place)).returncode == 0
    (machine.root / "unlock").unlink()
    before = sorted(path.name for path in machine.home.parent.iterdir())
    again = machine.recover(lost, "--place", str(lost.place), "--again")
    assert again.returncode != 0
    assert "--vault and --second" in again.stderr
    assert sorted(path.name for path in machine.home.parent.iterdir()) == before
    moved = machine.recover(
        lost, "--place", str(lost.place), "--again", "--vault", str(machine.root / "new-vault"), second="new-second"
    )
    assert moved.returncode == 0, moved.stderr
    assert json.loads(moved.stdout)["id"] == lost.id
