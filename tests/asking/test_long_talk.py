"""The measurement itself, small: what must hold at every size holds; times are for people."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "model_steps.py"


def test_a_talk_is_kept_once_and_measured(tmp_path: Path) -> None:
    words = ["--turns", "120", "--calls", "3", "--json", "--folder", str(tmp_path)]
    done = subprocess.run([sys.executable, str(BENCH), *words], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    talk, calls = found["talk"], found["calls"]
    assert talk["asks"] == talk["turns"] == 120
    assert talk["of_messages"] <= 1.5
    assert len(talk["record_ms_by_block"]) == 10
    assert calls["overhead_ms"] == calls["recorded_ms"] - calls["plain_ms"]
