"""`holdfast backup now` is a light process: it loads nothing of what runs tasks."""

from __future__ import annotations

import json
import subprocess
import sys

from holdfast_proofs.backup_lab.world import World

HEAVY = ("holdfast.runtime.engine", "holdfast.runtime.step", "holdfast.runtime.task")
PROGRAM = """
import json, sys
{first}
from holdfast.cli.main import main
code = main({words!r})
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def heavy_modules(*words: str, first: str = "") -> list[str]:
    """What this command loaded of the runtime's engine, in a process of its own."""
    program = PROGRAM.format(words=list(words), first=first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return [name for name in modules if name.startswith(HEAVY)]


def test_a_backup_loads_nothing_that_runs_tasks(world: World) -> None:
    assert heavy_modules("backup", "now", "place-1", "--home", str(world.home.folder)) == []


def test_the_check_above_sees_what_is_loaded() -> None:
    assert "holdfast.runtime.engine.engine" in heavy_modules("--version", first="import holdfast.runtime.engine.engine")
