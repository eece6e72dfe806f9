"""Rows of the attack table that need real processes: copies, snapshots, pauses, deaths."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lives import LEASE_S, alone, copied, embedded, lease_of, settings, submit, wait_for, worker
from quick_agent import Agent, make_agent

from holdfast.core.journal_address import file_at
from holdfast.downstream.faults import Fault, FaultKind
from holdfast.downstream.process import BlockingFarEnd, start_blocking
from holdfast.identity.records.records import RotationReason
from holdfast.recovery.recover_journal import begin_anew, recover_journal


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return make_agent(tmp_path, settings=settings(tmp_path))


@pytest.fixture
def far_end() -> Generator[BlockingFarEnd]:
    with start_blocking("unrepeatable") as found:
        yield found


@pytest.fixture
def other_end() -> Generator[BlockingFarEnd]:
    with start_blocking("unrepeatable") as found:
        yield found


def test_row_11_a_copy_started_beside_the_live_agent_does_nothing_and_is_noticed(
    agent: Agent, far_end: BlockingFarEnd, other_end: BlockingFarEnd, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    submit(agent.folder, count=1_000)
    with worker(agent.folder, url=far_end.url, name="live") as live:
        wait_for(lambda: far_end.ledger().count >= 3)
        copy = copied(agent, tmp_path / "copy")
        with worker(copy, url=other_end.url, name="copy") as twin:
            wait_for(lambda: twin.told("quarantined"))
            wait_for(lambda: live.told("second-instance"))
            assert lease_of(copy)["state"] == "copy"
            live.process.kill()
            live.process.wait()
            time.sleep(1.3 * LEASE_S)  # its lease is over: a copy waits all the same
            assert twin.process.poll() is None
            assert twin.events("serving") == []
    assert other_end.ledger().requests == ()
    assert far_end.ledger().duplicates == 0
    noticed = leases_between(twin.events("agent-waits")[0], live.events("agent-contender")[0])
    measured(f"a copy waits; the live agent hears of it after {noticed:.2f} leases")
    assert noticed < 1


def test_row_12_a_snapshot_resumed_twice_is_frozen_until_the_keys_change(agent: Agent, far_end: BlockingFarEnd) -> None:
    key_file = agent.folder / "instance" / "key.json"
    submit(agent.folder, count=1_000)
    with worker(agent.folder, url=far_end.url, name="first") as first:
        wait_for(lambda: far_end.ledger().count >= 2)
        snapshot = key_file.read_bytes()
        wait_for(lambda: counter(key_file) >= counter_in(snapshot) + 2)
        first.process.kill()
        first.process.wait()
    before = far_end.ledger().requests
    key_file.write_bytes(snapshot)  # the machine as it was: same boot, same folder, live key
    with worker(agent.folder, url=far_end.url, name="second") as second:
        wait_for(lambda: lease_of(agent.folder)["state"] == "frozen")
        wait_for(lambda: second.told("quarantined"))
        time.sleep(LEASE_S)
        assert lease_of(agent.folder)["state"] == "frozen"
        assert far_end.ledger().requests == before
        agent.rotate(RotationReason.STOLEN)
        wait_for(lambda: lease_of(agent.folder)["state"] == "copy")  # a person says who goes on
        assert far_end.ledger().requests == before
    restored = asyncio.run(recover_journal(file_at(agent.folder / "journal.db")))
    assert restored.incarnation == 2
    with worker(agent.folder, url=far_end.url, name="third"):
        wait_for(lambda: lease_of(agent.folder)["state"] == "held")
        assert lease_of(agent.folder)["e"] == 2
    assert far_end.ledger().duplicates == 0


@pytest.mark.parametrize("program", ["worker", "embedded"])
def test_row_13_a_paused_primary_wakes_up_fenced(
    program: str, agent: Agent, far_end: BlockingFarEnd, other_end: BlockingFarEnd, tmp_path: Path
) -> None:
    start = alone if program == "worker" else embedded
    submit(agent.folder, count=1_000)
    with start(agent.folder, url=far_end.url, name="paused") as paused:
        wait_for(lambda: far_end.ledger().count >= 2)
        heir = copied(agent, tmp_path / "heir")
        restored = asyncio.run(recover_journal(file_at(heir / "journal.db")))
        assert restored.incarnation == 2
        pid = lease_of(agent.folder)["pid"]
        os.kill(pid, signal.SIGSTOP)
        with worker(heir, url=other_end.url, name="heir") as taking:
            wait_for(lambda: taking.events("serving"))
            assert lease_of(heir)["e"] == 2
            asked, records = far_end.ledger().requests, newest_record(agent.folder)
            os.kill(pid, signal.SIGCONT)
            if program == "worker":  # killed by its own timer, stopped as it was
                wait_for(lambda: paused.process.poll() == -signal.SIGKILL)
                assert newest_record(agent.folder) == records
            else:
                wait_for(lambda: lease_of(agent.folder)["state"] == "behind")
                wait_for(lambda: paused.events("session-lost"))
            time.sleep(LEASE_S / 2)
            assert far_end.ledger().requests == asked
        with worker(agent.folder, url=far_end.url, name="again") as again:
            wait_for(lambda: again.told("quarantined"))
            assert far_end.ledger().requests == asked


def test_the_next_process_keeps_the_lease_when_its_keeper_dies(agent: Agent) -> None:
    """Also when the keeper dies inside a call: one with a key is sent again, so the task goes on."""
    submit(agent.folder, count=1_000, keyed=True)
    with (
        start_blocking("keyed") as far_end,
        worker(agent.folder, url=far_end.url, name="one") as one,
        worker(agent.folder, url=far_end.url, name="two") as two,
    ):
        wait_for(lambda: one.events("serving") and two.events("serving"))
        far_end.faults(Fault(kind=FaultKind.HOLD))
        far_end.wait_inside()
        keeper = lease_of(agent.folder)["pid"]
        os.kill(keeper, signal.SIGKILL)
        wait_for(lambda: lease_of(agent.folder)["pid"] != keeper)
        far_end.release()
        count = far_end.ledger().count
        wait_for(lambda: far_end.ledger().count > count + 3)
        assert lease_of(agent.folder)["e"] == 1
        assert far_end.ledger().duplicates == 0


def counter(path: Path) -> int:
    return counter_in(path.read_bytes())


def counter_in(raw: bytes) -> int:
    return json.loads(raw)["counter"]


def newest_record(home: Path) -> int:
    db = apsw.Connection(str(home / "journal.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        return int(str(db.execute("SELECT max(n) FROM record").get))  # pyright: ignore[reportUnknownMemberType]
    finally:
        db.close()


def leases_between(one: dict[str, Any], other: dict[str, Any]) -> float:
    first, second = (datetime.fromisoformat(event["at"]) for event in (one, other))
    return (second - first).total_seconds() / LEASE_S


@pytest.mark.parametrize("left", ["an older copy", "nothing"])
def test_a_journal_restored_in_its_own_folder_is_served_again(left: str, agent: Agent, far_end: BlockingFarEnd) -> None:
    """The instance's key is the same, its lease is of the lost timeline: it asks for a new one.

    The same request, also where no copy was left: it may have been served, so a person is asked.
    """
    journal = agent.folder / "journal.db"
    submit(agent.folder, count=3)
    copy = journal.read_bytes()
    with worker(agent.folder, url=far_end.url, name="first"):
        wait_for(lambda: far_end.ledger().count >= 3)
    for path in agent.folder.glob("journal.db*"):
        path.unlink()
    if left == "nothing":
        restored = asyncio.run(begin_anew(file_at(journal)))
    else:
        journal.touch(mode=0o600)
        journal.write_bytes(copy)
        restored = asyncio.run(recover_journal(file_at(journal)))
    assert restored.incarnation == 2
    submit(agent.folder, count=3)
    with worker(agent.folder, url=far_end.url, name="second") as second:
        wait_for(lambda: second.events("serving"))
        assert lease_of(agent.folder)["e"] == 2
        wait_for(lambda: second.told("parked"))
    assert far_end.ledger().count == 3
