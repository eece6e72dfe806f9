"""A private folder with the sample app in it, and commands that run there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast_proofs.support.command_line import Commands, Worker

SAMPLE = Path(__file__).parent / "sample_app.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "agent"
    place.mkdir(mode=0o700)
    shutil.copy(SAMPLE, place / "app.py")
    return place


@pytest.fixture
def hf(folder: Path) -> Commands:
    return Commands(folder, main)


@pytest.fixture
def start_worker(hf: Commands) -> Generator[Callable[..., Worker], None, None]:
    """Start workers that do not outlive the test."""
    workers: list[Worker] = []

    def start(*words: str, app: str = "app.py:tasks") -> Worker:
        workers.append(hf.worker(*words, app=app))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
