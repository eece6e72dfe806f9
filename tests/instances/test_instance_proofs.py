"""The proofs of memory that instances share hold at a small size, and notice planted faults."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast_proofs.instance_worlds.folders import FAULTS, find_breach
from holdfast_proofs.memory_edits.instances import group
from holdfast_proofs.merges.kills import Outcome
from holdfast_proofs.runner import run_with_shim

RUNS = 4  # `make instance-folders` runs 10,000


def test_a_bad_folder_loses_nothing() -> None:
    assert [(seed, why) for seed in range(RUNS) if (why := find_breach(seed))] == []


@pytest.mark.parametrize("fault", ["lost-files-stay-lost", "confirmed-too-early", "other-agents-taken"])
def test_a_planted_fault_is_noticed(fault: str) -> None:
    with FAULTS[fault]():
        assert any(find_breach(seed) for seed in range(2))


async def test_people_and_instances_write_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found = await group(tmp_path, "rename", edits=40, seed=1, instances=3)
    assert found.well, found


@pytest.mark.slow
def test_a_merge_that_is_killed_is_finished_by_the_next(shim: Path) -> None:
    found = msgspec.json.decode(run_with_shim("merges.kills", "--inside", "--step", "16", library=shim), type=Outcome)
    assert found.wrong == []
    assert found.trials["KILL_BEFORE"] > 3
