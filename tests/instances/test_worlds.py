"""Some worlds of instances; the rest is in `make instances`."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from holdfast_proofs.instance_worlds.campaign import FAULTS
from holdfast_proofs.instance_worlds.world import drop_template, find_breach

SEEDS = (0, 1, 2, 5, 6, 17)  # 5, 17, 6: a line is removed, one is added, in a folder that is not enrolled


@pytest.fixture(scope="module", autouse=True)
def template() -> Generator[None]:
    yield
    drop_template()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_holds(seed: int) -> None:
    assert find_breach(seed) == ""


@pytest.mark.parametrize("fault", ["role-ignored", "key-used-twice"])
def test_a_planted_fault_is_noticed(fault: str) -> None:
    with FAULTS[fault]():
        assert any(find_breach(seed) for seed in SEEDS)
