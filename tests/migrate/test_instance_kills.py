"""A sample of the commands of `holdfast instance`, killed before one of their calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast_proofs.instance_kills.trials import Figures
from holdfast_proofs.shim import preloaded

WEAK = """
import sys
import holdfast.app.binder as binder
import holdfast.app.instances.standing as standing
async def unasked(*_, **__): pass
binder.check_not_moved = lambda _: None
standing.wait_enrolled = unasked
from holdfast_proofs.instance_kills.trials import main
main(sys.argv[1:])
"""


def test_killed_anywhere_one_folder_acts_and_the_same_command_finishes_it(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    acts = [word for act in ("invite", "join", "yield", "take", "remove") for word in ("--act", act)]
    line = [sys.executable, "-m", "holdfast_proofs.instance_kills", "--points", "1", *acts, "--report", str(report)]
    subprocess.run(line, env=os.environ, stdout=subprocess.DEVNULL, timeout=300, check=False)
    figures = msgspec.json.decode(report.read_bytes(), type=Figures)
    assert figures.findings == []
    assert figures.kills >= 5
    assert figures.green


def test_where_nobody_asks_the_roster_two_folders_act_and_the_proof_says_so(shim: Path, tmp_path: Path) -> None:
    folder = tmp_path / "world"
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", WEAK, str(folder), "1", "0", "", "take"],
        env=os.environ | preloaded(shim),
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    figures = msgspec.json.decode(done.stdout, type=Figures)
    assert figures.both
    assert not figures.green
