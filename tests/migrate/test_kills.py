"""A sample of moves killed before one of their calls: never can both copies run, one always can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast_proofs.moves.trials import Figures
from holdfast_proofs.shim import preloaded

WEAK = """
import sys
import holdfast.app.binder as binder
binder.check_not_moved = lambda _: None
from holdfast_proofs.moves.trials import main
main(sys.argv[1:])
"""


def swept(tmp_path: Path, *words: str, program: tuple[str, ...]) -> Figures:
    report = tmp_path / "report.json"
    line = [sys.executable, *program, *words, "--report", str(report)]
    subprocess.run(line, env=os.environ, stdout=subprocess.DEVNULL, timeout=300, check=False)
    return msgspec.json.decode(report.read_bytes(), type=Figures)


@pytest.mark.parametrize("words", [(), ("--no-arbiter",)])
def test_killed_anywhere_at_most_one_copy_can_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    program = ("-m", "holdfast_proofs.moves")
    figures = swept(tmp_path, "--points", "3", *words, program=program)
    assert figures.findings == []
    assert figures.kills >= 9
    assert figures.green


def test_without_the_mark_both_run_and_the_suite_says_so(shim: Path, tmp_path: Path) -> None:
    """Inside one process: the sweep is not started anew, so what is replaced stays replaced."""
    folder = tmp_path / "world"
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", WEAK, str(folder), "1", "alone"],
        env=os.environ | preloaded(shim),
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    assert not msgspec.json.decode(done.stdout, type=Figures).green
