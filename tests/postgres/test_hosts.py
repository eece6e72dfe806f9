"""Real workers on one journal in PostgreSQL, as on two hosts: each has a folder of its own, and the same keys."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.journal.postgres.place import PostgresPlace
from holdfast_proofs.support.command_line import Commands, Worker
from holdfast_proofs.support.postgres import Server

SAMPLE = Path(__file__).parents[1] / "integration" / "cli" / "sample_app.py"

StartWorker = Callable[..., Worker]


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
