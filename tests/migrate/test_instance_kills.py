"""A sample of the commands of `holdfast instance`, killed before one of their calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec

from holdfast.host import folder_swap
from holdfast_proofs.instance_kills.trials import Figures
from holdfast_proofs.instance_kills.world import World
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


def test_a_promotion_killed_inside_its_swap_keeps_the_lines_of_the_standby(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.make(backup=True)
    world.invite()
    world.join()
    (world.home("b") / "MEMORY.md").write_text("- of the standby\n")
    if (child := os.fork()) == 0:
        # The name leads to the restored folder, and the old one has not got its own yet.
        setattr(folder_swap, "os", SimpleNamespace(**vars(os) | {"rename": _dies}))  # noqa: B010 - a module's name
        world.promote()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    world.promote()
    assert sorted((world.home("b") / "MEMORY.md").read_text().splitlines()) == ["- of the primary", "- of the standby"]
    assert world.acts("b") == ""


def _dies(*_: object) -> None:
    os._exit(9)
