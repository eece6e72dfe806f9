"""An agent whose journal is in PostgreSQL comes back from words and one place: without any database, or into one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from lost import APP, COMMAND, FACT, BareMachine, Lost, live_and_die

from holdfast.downstream.process import BlockingFarEnd, start_blocking
from holdfast.host.sqlite import open_existing
from holdfast_proofs.support.postgres import NEWEST, Server, started


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with started(NEWEST) as server:
        yield server


@pytest.fixture
def far_end() -> Generator[BlockingFarEnd]:
    with start_blocking("payment") as service:
        yield service


@pytest.fixture
def machine(tmp_path: Path) -> BareMachine:
    return BareMachine(tmp_path / "bare")


def lose(root: Path, far_end: BlockingFarEnd, url: str, *, table: str = "") -> Lost:
    lost = live_and_die(root / "lost", far_end, url=url, table=table)
    (root / "kept").mkdir()
    shutil.move(lost.place, root / "kept")  # away from the address that the agent knows
    return replace(lost, root=root / "kept")


def finished(machine: BareMachine, task_id: str, far_end: BlockingFarEnd) -> object:
    words = [*COMMAND, "worker", APP, "--home", str(machine.home)]
    worker = subprocess.Popen(
        words, env=machine.environment(SHOP=far_end.url), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 90
        while time.monotonic() < end and worker.poll() is None:
            state = machine.json("task", "show", task_id, "--home", str(machine.home))["state"]
            if state in ("succeeded", "failed", "parked"):
                return state
            time.sleep(0.5)
        raise AssertionError("the task did not end")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)


def test_it_comes_back_without_a_database(
    tmp_path: Path, server: Server, machine: BareMachine, far_end: BlockingFarEnd
) -> None:
    """The snapshot names the tables that it does not hold, and so does the recovery."""
    url = f"{server.url()}&schema=lost1"
    server.execute("CREATE SCHEMA lost1_tools; CREATE TABLE lost1_tools.ledger (id int)")
    lost = lose(tmp_path, far_end, url)
    server.execute("DROP SCHEMA lost1 CASCADE")
    done = machine.recover(lost, "--place", str(lost.place))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["id"], seen["suspect_tasks"], seen["journal_was"]) == (lost.id, 1, url)
    assert seen["journal"] == str(machine.home / "journal.db")
    assert any("lost1_tools.ledger" in note["text"] for note in seen["restored"]["notes"])
    assert (machine.home / "MEMORY.md").read_text() == FACT
    assert finished(machine, lost.task_id, far_end) == "succeeded"
    assert far_end.ledger().count == 1, "charged again"


def test_it_comes_back_into_an_empty_database(
    tmp_path: Path, server: Server, machine: BareMachine, far_end: BlockingFarEnd
) -> None:
    """Its ids and salt are the same, its open task is suspect, and what is there again is backed up again.
    The database that it had was loaded from an old dump: the snapshot has more, so that journal is left alone."""
    lost = lose(tmp_path, far_end, f"{server.url()}&schema=lost2")
    server.execute("DELETE FROM lost2.tally; UPDATE lost2.incarnation SET number = 1")
    done = machine.recover(lost, "--place", str(lost.place), "--journal", f"{server.url()}&schema=lost2")
    refused = json.loads(done.stderr.splitlines()[-1])["error"]
    assert ("older than the snapshot" in refused["message"], "rename" in refused["hint"]) == (True, True)
    assert not machine.home.exists()

    url = f"{server.url()}&schema=new2"
    done = machine.recover(lost, "--place", str(lost.place), "--journal", url)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["id"], seen["suspect_tasks"], seen["journal"]) == (lost.id, 1, url)
    assert [one["place"] for one in seen["backup"]["places"] if one["verified"]] == ["place-2"]
    assert not (machine.home / "journal.db").exists()
    shown = machine.json("journal", "show", "--home", str(machine.home))
    assert (shown["journal"], shown["incarnation"]) == (url, seen["incarnation"])
    again = json.loads(machine.run("backup", "now", "--home", str(machine.home), "--json").stdout)
    assert [one["place"] for one in again["places"] if one["verified"]] == ["place-2"], again
    assert finished(machine, lost.task_id, far_end) == "succeeded"
    assert far_end.ledger().count == 1, "charged again"


def test_it_continues_with_its_own_journal_where_the_database_survived(
    tmp_path: Path, server: Server, machine: BareMachine, far_end: BlockingFarEnd
) -> None:
    """Only the host is lost. What the database has committed after the snapshot is not lost with it."""
    url = f"{server.url()}&schema=lost3"
    lost = lose(tmp_path, far_end, url)
    done = machine.recover(lost, "--place", str(lost.place), "--journal", url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["suspect_tasks"] == 0
    shown = machine.json("task", "show", lost.task_id, "--home", str(machine.home))
    assert shown["state"] == "succeeded"
    assert not (machine.home / "journal.db").exists()


def test_an_agent_with_a_file_comes_back_into_a_database_and_tables_that_do_not_are_named(
    tmp_path: Path, server: Server, machine: BareMachine, far_end: BlockingFarEnd
) -> None:
    """The file with the table is kept: the person moves it."""
    lost = lose(tmp_path, far_end, "", table="ledger")
    done = machine.recover(lost, "--place", str(lost.place), "--journal", f"{server.url()}&schema=new5")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tables_left"] == ["ledger"]
    with closing(open_existing(machine.home / "journal.db.moved-1")) as db:
        assert db.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
