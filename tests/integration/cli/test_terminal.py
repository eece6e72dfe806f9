"""What a person at a terminal sees and types."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from pathlib import Path

from holdfast_proofs.support.command_line import WAIT_S, Commands, command_line, environment


def test_a_typed_word_settles(hf: Commands) -> None:
    """A wrong word changes nothing, the right one does."""
    hf("submit", "app.py:tasks", "{}", "--task", "parks", "--run", code=5)
    place = hf.look("effect", "list", "--json").json["effects"][0]["effect"]
    words = command_line("effect", "settle", place, "--skip")
    assert _answered(words, hf.folder, "yes\n") == 2
    assert hf.look("effect", "show", place, "--json").json["facts"] == []
    assert _answered(words, hf.folder, "skip\n") == 0
    assert len(hf.look("effect", "show", place, "--json").json["facts"]) == 1


def test_tables_say_in_words_what_they_say_in_colours(hf: Commands) -> None:
    hf("submit", "app.py:only", "ada", "--no-follow")
    shown = _shown(command_line("task", "list"), hf.folder)
    assert "queued" in shown
    assert "\x1b[" in shown
    plain = _shown(command_line("task", "list"), hf.folder, NO_COLOR="1")
    assert "queued" in plain
    assert not any(f"\x1b[{code}" in plain for code in ("3", "9", "4")), "a colour"


def test_progress_moves(hf: Commands) -> None:
    shown = _shown(command_line("submit", "app.py:only", "ada", "--run"), hf.folder)
    assert "task succeeded" in shown
    assert '"hits": 3' in shown


def _answered(words: list[str], folder: Path, answer: str) -> int:
    """The exit code of a command that is answered at a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words, cwd=folder, env=environment(folder), stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    code = process.wait(WAIT_S)
    os.close(ours)
    return code


def _shown(words: list[str], folder: Path, **more: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**environment(folder), "TERM": "xterm-256color", **more},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], WAIT_S)[0]:
        try:
            got = os.read(ours, 65_536)
        except OSError:  # the last user of the terminal has gone
            break
        shown += got
    process.wait(WAIT_S)
    os.close(ours)
    return shown.decode()
