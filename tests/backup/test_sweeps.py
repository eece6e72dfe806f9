"""A small sample of the sweeps: kills of backups and restores, and single wrong bits.

All of it: `make backup-kills`, `make backup-flips`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from holdfast_proofs.backup_flips import flip_all


def test_killed_anywhere_nothing_half_counts(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast_proofs.backup_kills",
            "--points",
            "6",
            "--moments",
            "1",
            "--act",
            "backup",
            "--act",
            "recover",
            "--act",
            "revoke",
            "--report",
            str(tmp_path / "report"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "report").read_text())
    assert found["wrong"] == []
    assert found["kills"] >= 6


def test_no_wrong_bit_gives_a_wrong_file_in_silence() -> None:
    figures = flip_all(30, seed=3)
    assert {name: one.silent for name, one in figures.items()} == {
        "repository": [],
        "staging": [],
        "stream": [],
        "heads": [],
    }
    assert sum(one.flips for one in figures.values()) >= 30


def test_a_reader_that_does_not_compare_is_caught() -> None:
    figures = flip_all(20, seed=4, weak=True, repositories=False)
    assert figures["staging"].silent
