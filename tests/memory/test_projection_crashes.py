"""Killed at every durable call, and full disks: files stay whole, no entry is lost or doubled."""

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

PROGRAM = Path(__file__).parent / "programs" / "projection_lives.py"
FAST = Path("/dev/shm")  # a sync there costs nothing; what is tried is the order of calls


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=FAST if FAST.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.mark.slow
def test_no_entry_is_lost_or_doubled_wherever_it_dies(
    folder: Path, shim: Path, measured: Callable[[str], None]
) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), "1"],
        env=os.environ | preloaded(shim),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["made"]["rename"] >= 4  # exchanges too
    assert found["trials"]["KILL_BEFORE"] == found["ours"]
    measured(f"projection: {found['ours']} calls on its files, trials {found['trials']}")
