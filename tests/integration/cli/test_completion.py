"""Completion as a real shell does it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.main import main

BASH = """\
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_holdfast
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ta",), {"task", "target"}),
        (("backup", "ver"), {"verify"}),
        (("task", "list", "--st"), {"--state"}),
        (("task", "list", "--state", "pa"), {"parked"}),
        (("task", "list", "--json", "--st"), {"--state"}),
        (("task", "--js"), set[str]()),
        (("task", "list", "--journal", "jour"), set[str]()),  # then the shell completes files
        (("--ver",), {"--version"}),
        (("completion", "z"), {"zsh"}),
    ],
)
def test_bash_completes(scripts: Path, words: tuple[str, ...], offered: set[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", scripts / "bash", "holdfast", *words], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_its_shell_reads(scripts: Path, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-n", scripts / shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
