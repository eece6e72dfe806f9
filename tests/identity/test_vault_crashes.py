"""Killed at every durable call, full disks, failed writes: exactly one usable key set is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_proofs.shim import preloaded

PROGRAM = Path(__file__).parent / "programs" / "vault_lives.py"
FAST = Path("/dev/shm")  # a sync there costs nothing; what is tried is the order of calls


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=FAST if FAST.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(
    ("life", "every"), [("init", 4), ("rotate", 3), ("add-key", 1), ("change-slot", 1), ("adopt", 1)]
)
def test_one_usable_key_set_is_left_wherever_it_dies(
    life: str, every: int, folder: Path, shim: Path, measured: Callable[[str], None]
) -> None:
    """The short acts at every call; of the two long ones, which `make identity-kills` has whole, some."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), life, str(folder), str(every)],
        env=os.environ | preloaded(shim),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    trials = found["trials"]
    assert found["calls"] >= 6
    assert trials["KILL_BEFORE"] == trials["FULL_ANY"] == -(-found["calls"] // every)
    assert trials["KILL_AFTER"] == 1
    assert trials["EIO"] >= 5
    assert trials["SYNC_ERROR"] >= 2
    measured(f"vault, {life}: {found['calls']} calls, trials {trials}")


def test_a_lease_is_had_again_wherever_its_keeper_or_its_arbiter_dies(
    folder: Path, shim: Path, measured: Callable[[str], None]
) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("lease_lives.py")), str(folder), "6"],
        env=os.environ | preloaded(shim),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["trials"]["KILL_BEFORE"] >= found["calls"] // 6 >= 10
    measured(f"lease: {found['calls']} calls, trials {found['trials']}")
