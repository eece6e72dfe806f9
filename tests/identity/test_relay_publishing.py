"""The suite of test_publishing.py, over relay processes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import test_publishing

from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.witness.open_witnesses import OpenWitnesses, open_witnesses
from holdfast_proofs.support.relays import RelayProcess, relays

NAMES = ("a", "b", "c", "d")

for _name, _test in vars(test_publishing).items():
    if _name.startswith("test_") and "places" in inspect.signature(_test).parameters:
        globals()[_name] = _test


class RelayPlaces(test_publishing.Places):
    """The same over relays that several tests share: each test has an agent of its own."""

    def __init__(self, folder: Path, running: list[RelayProcess], owner: str) -> None:
        super().__init__(folder)
        self.owner = owner
        self._by_name: dict[str, RelayProcess] = dict(zip(NAMES, running, strict=True))

    def reached(self, *names: str, make: bool = False) -> OpenWitnesses:
        return open_witnesses([self._by_name[name].at for name in names], port=Sodium(), make=make)

    def lose(self, name: str) -> str:
        self._by_name[name].kill()
        return self._by_name[name].at.url


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[RelayProcess]]:
    with relays(tmp_path_factory.mktemp("relays"), *NAMES) as started:
        yield started


@pytest.fixture
def places(tmp_path: Path, running: list[RelayProcess], request: pytest.FixtureRequest) -> RelayPlaces:
    for one in running:
        if one.process is None:
            one.start()
    return RelayPlaces(tmp_path, running, request.node.name)
