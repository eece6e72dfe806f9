"""Long work says how far it is, on standard error, and never disturbs what a program reads."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from holdfast.backup.engine import Amount
from holdfast.cli.screen.progress import Progress, amount_text
from holdfast_proofs.backup_lab.world import World
from holdfast_proofs.support.warm_start import run_command


class Screen(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_in_a_log_there_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = Screen(terminal=False), [0.0]
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress(clock=lambda: now[0]) as news:
        for second in range(25):
            now[0] = float(second)
            news.reached("staging", Amount(files=second, bytes=second * 1_000_000))
        news.say("staged")
    assert screen.getvalue().splitlines() == ["staging: 10 files, 10.0 MB", "staging: 20 files, 20.0 MB", "staged"]


def test_on_a_terminal_one_line_is_written_over_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = Screen(terminal=True), [10.0]
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress(clock=lambda: now[0]) as news:
        for _ in range(100):
            now[0] += 0.01
            news.reached("place nas: sending", Amount(files=1, files_all=4, bytes=5, bytes_all=10))
    drawn = screen.getvalue().split("\r\x1b[K")[1:]
    assert 3 <= len(drawn) <= 8, "not for every piece"
    assert drawn[-1] == ""
    assert set(drawn[:-1]) == {"place nas: sending: 1 of 4 files, 0.0 of 0.0 MB (50 %)"}


def test_amounts_are_short() -> None:
    whole = Amount(files=12, files_all=340, bytes=1_250_000, bytes_all=30_400_000)
    assert amount_text(whole) == "12 of 340 files, 1.2 of 30.4 MB (4 %)"
    assert amount_text(Amount(bytes=2_000_000)) == "2.0 MB"


def test_a_program_reads_whole_json_while_a_person_sees_how_far_it_is(world: World) -> None:
    """Standard error is a terminal, standard output a pipe. A place that is away gets its hint."""
    world.place(2).rename(world.root / "away")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    words = ["backup", "now", "--json", "--home", str(world.home.folder)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    process.stdout.close()
    process.wait()
    os.close(ours)
    assert [one["made"] for one in report["places"]] == [True, False]
    for what in (b"staging: ", b"place place-1: sending: ", b"place place-1: restoring for a test"):
        assert what in seen, seen
    plain = run_command(("backup", "verify", "place-2", "--home", str(world.home.folder)))
    assert plain.returncode == 7
    assert "hint: place-2: mount the disk" in plain.stderr
