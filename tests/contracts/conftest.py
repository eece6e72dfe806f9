"""What the tests of the contracts share: a journal with secrets in it, and a worker to kill."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.testing.lab import Lab, Program, program

WORKER = Path(__file__).parent / "worker.py"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "agent")


@pytest.fixture
def keep(lab: Lab) -> Callable[[str, str], None]:
    """Set a secret of the lab's journal."""

    def set_one(name: str, value: str) -> None:
        entropy = SystemEntropy()
        keys = load_or_create(lab.folder / "keys.json", journal_exists=lab.journal.exists(), entropy=entropy)
        SecretFile(lab.folder, keys=keys, clock=SystemClock(), entropy=entropy).set(name, value)

    return set_one


@contextlib.asynccontextmanager
async def worker(lab: Lab, contract: str, **options: Any) -> AsyncGenerator[Program]:
    """A process of its own that serves `work` over this journal and submits it once."""
    async with program(WORKER, lab.journal, contract, json.dumps(options)) as running:
        yield running


@pytest.fixture
def start_worker(lab: Lab) -> Callable[..., contextlib.AbstractAsyncContextManager[Program]]:
    def start(contract: str, **options: Any) -> contextlib.AbstractAsyncContextManager[Program]:
        return worker(lab, contract, **options)

    return start
