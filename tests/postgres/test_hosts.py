"""Real workers on one journal in PostgreSQL, as on two hosts: each has a folder of its own, and the same keys."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast_proofs.support.command_line import Commands, Worker
from holdfast_proofs.support.postgres import Server

SAMPLE = Path(__file__).parents[1] / "integration" / "cli" / "sample_app.py"

StartWorker = Callable[..., Worker]
OpenJournal = Callable[..., Awaitable[PostgresJournal]]


@pytest.fixture
def url(server: Server, place: PostgresPlace) -> str:
    return f"{server.url()}&schema={place.schema}"


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders; the app notes what it sends in the first."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
    shutil.copy(SAMPLE, tmp_path / "one" / "app.py")
    return tmp_path / "one", tmp_path / "two"


@pytest.fixture
def start(hosts: tuple[Path, Path], url: str) -> Generator[StartWorker]:
    workers: list[Worker] = []

    def begin(home: Path, *words: str) -> Worker:
        order = ("worker", str(hosts[0] / "app.py:tasks"), "--journal", url, "--home", str(home), *words)
        workers.append(Worker(home, order))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.close()


def wait_ended(worker: Worker, task_id: str) -> str:
    while True:
        event = worker.wait_event("run-ended")
        if event["task_id"] == task_id:
            return str(event["state"])


def test_a_task_survives_its_process_and_its_host(hosts: tuple[Path, Path], url: str, start: StartWorker) -> None:
    """Killed inside the payment: first the process, which is started again; then all of the host."""
    one, two = hosts
    hf, at = Commands(one, main), ("--journal", url, "--home", str(one))
    task_id = hf("submit", "app.py:tasks", '{"cents": 700}', "--task", "pay", "--no-follow", *at).out.strip()
    first = start(one, "--lease-ttl", "2")
    pid = first.wait_event("serving")["pid"]
    first.wait_said("CHARGING")
    os.kill(pid, signal.SIGKILL)
    assert first.wait_event("serving")["pid"] != pid
    first.wait_said("CHARGING")
    shutil.copy(one / "keys.json", two / "keys.json")
    first.close()

    second = start(two, "--lease-ttl", "2")
    second.wait_said("CHARGING")
    (one / "go").touch()
    assert wait_ended(second, task_id) == "succeeded"
    assert second.stop() == 0
    shown = hf("task", "show", task_id, "--json", *at).json
    (key,) = set((one / "charged").read_text().split())
    assert (shown["state"], shown["steps"][1]["effect_key"], shown["steps"][1]["attempts"]) == ("succeeded", key, 3)
    assert len(shown["claims"]) == 3
    deep = hf("doctor", "--deep", "--json", *at).json
    assert "damaged" not in str(deep)
    assert "no synchronous standby" in str(deep)


LOADED = """
import sys
from holdfast.app import worker
NAMES = "postgres.journal", "postgres.check", "postgres.loading", "sqlite.admin", "sqlite.journal"
worker.supervise = lambda *_, **__: print(*(one for one in NAMES if f"holdfast.journal.{one}" in sys.modules))
worker.run_worker(worker.Order(app="none", journal=sys.argv[1], home=sys.argv[2]))
"""


def test_a_killed_worker_does_not_load_the_driver_again(url: str, hosts: tuple[Path, Path]) -> None:
    """Its parent has it loaded: loading it takes longer than all the rest of a start. It has no more loaded than that:
    an idle standby has all of it in its memory."""
    said = subprocess.run([sys.executable, "-c", LOADED, url, hosts[0]], capture_output=True, text=True, check=True)
    assert said.stdout == "postgres.journal\n"


async def test_a_worker_that_died_makes_nobody_read_the_whole_journal(open_it: OpenJournal) -> None:
    """Its death says nothing about the server's disk; a claim checks what it hands out."""
    died: PostgresJournal = await open_it()
    await died.end_session(await died.open_session(worker="died", ttl_ms=60_000), orderly=False)
    journal: PostgresJournal = await open_it()
    assert [one.alive for one in await journal.list_sessions()] == [False]
    assert not journal.unclean
