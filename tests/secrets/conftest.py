"""A private folder, commands that run in it, and a store over its keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.testing.lab import Lab
from holdfast_proofs.support.command_line import Commands


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "agent")


@pytest.fixture
def hf(lab: Lab) -> Commands:
    return Commands(lab.folder, main)


@pytest.fixture
def open_store(lab: Lab) -> Callable[[], SecretFile]:
    """The secrets of the lab's journal, as another process would open them."""

    def opened() -> SecretFile:
        entropy = SystemEntropy()
        keys = load_or_create(lab.folder / "keys.json", journal_exists=lab.journal.exists(), entropy=entropy)
        return SecretFile(lab.folder, keys=keys, clock=SystemClock(), entropy=entropy)

    return opened
