"""What a person at a terminal sees and types."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.cli.main import main
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


def test_screens_of_80_columns_break_no_word_and_no_time(hf: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word and time that a pipe gets whole is whole on a narrow screen too."""
    hf("submit", "app.py:tasks", "{}", "--task", "parks", "--run", code=5)
    hf("submit", "app.py:tasks", "ada", "--task", "asks", "--run", "--timeout", "5", code=8)
    task = hf.look("task", "list", "--state", "parked", "--json").json["tasks"][0]["task_id"]
    place = hf.look("effect", "list", "--json").json["effects"][0]["effect"]
    screens = {
        ("task", "list"): 0,
        ("task", "show", task): 0,
        ("task", "show", task, "--all"): 0,
        ("effect", "list"): 0,
        ("effect", "show", place): 0,
        ("approval", "list"): 0,
        ("todo",): 0,
        ("doctor",): 1,
    }
    for words, code in screens.items():
        whole = hf.look(*words, code=code)
        narrow = _COLOUR.sub("", _shown_here([*words, "--journal", str(hf.folder)], monkeypatch))
        # A path may be longer than the screen: it is one word.
        assert [line for line in narrow.splitlines() if len(line) > 80 and len(line.split()) > 1] == []
        broken = _words(narrow) - _words(whole.out + whole.err)
        assert not broken, f"{words}: {broken}\n{narrow}"


_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _words(text: str) -> set[str]:
    """The words, with every number as 0: times and process ids differ from run to run."""
    return (
        {re.sub(r"[0-9]+", "0", word) for word in text.split()} - {"ms", "s", "min", "0"} - {"─" * n for n in range(99)}
    )


def test_one_list_of_what_waits_for_a_person(hf: Commands) -> None:
    hf("submit", "app.py:tasks", "{}", "--task", "parks", "--run", code=5)
    hf("submit", "app.py:tasks", "ada", "--task", "asks", "--run", "--timeout", "5", code=8)
    hf("submit", "app.py:tasks", "eva", "--task", "hello", "--no-follow")
    place = hf.look("effect", "list", "--json").json["effects"][0]["effect"]
    question = hf.look("approval", "list", "--json").json["approvals"][0]["approval"]
    todo = hf.look("todo", "--json").json["todo"]
    commands = {(one["kind"], one["about"]): one["command"] for one in todo}
    same = f" --journal {hf.folder}"  # as `todo` was asked
    assert commands["effect", place] == f"holdfast effect show {place}{same}"
    assert commands["approval", question] == f"holdfast approval grant {question}{same}"
    assert commands["alarm", "queue"] == f"`holdfast worker APP{same}`", "no worker serves the task submitted last"
    said = hf.look("todo").out
    assert all(command in said for command in commands.values())
    hf("effect", "settle", place, "--skip", "--yes")
    hf("approval", "refuse", question)
    left = {one["kind"] for one in hf.look("todo", "--json").json["todo"]}
    assert "approval" not in left


def _shown_here(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command of this process writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            while part := os.read(ours, 65_536):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as screen:
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        main(words)
    reader.join(WAIT_S)
    os.close(ours)
    return b"".join(shown).decode()


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
