"""Random schedules of five instances hold, and notice the traps."""

from __future__ import annotations

import pytest

from holdfast_proofs.merges.campaign import find_breach, find_first

SCHEDULES = 100  # `make merges` runs 100,000


def test_schedules_hold() -> None:
    assert [(seed, why) for seed in range(SCHEDULES) if (why := find_breach(seed))] == []


@pytest.mark.parametrize("fault", ["whole-file-update", "diff-at-wrong-version", "no-normaliser"])
def test_a_trap_that_is_opened_again_is_noticed(fault: str) -> None:
    assert find_first(fault, 30) is not None
