"""A far host that takes everything and answers nothing, and commands that are ended over it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

COMMAND = (sys.executable, "-P", "-m", "holdfast")
GONE_S = 3.0
WORDS = "abandon " * 23 + "art\n"


def hanging_rsh(folder: Path, *, stubborn: bool = False) -> Path:
    """In place of ssh; a stubborn one does not end when it is asked to, either."""
    script = folder / "hanging"
    trap = 'trap "" TERM INT HUP\n' if stubborn else ""
    script.write_text(f"#!/bin/sh\n{trap}while :; do sleep 1000; done\n")
    script.chmod(0o700)
    return script


def end_it(words: Sequence[str], hanging: Path, number: signal.Signals) -> tuple[int, str]:
    """Run the command until it waits for the far host, send the signal: how it ended, and what it
    said. Words of a sheet are on its standard input."""
    folder = hanging.parent / "temporary"
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
        preexec_fn=_heard,  # noqa: PLW1509 - it only sets signals
    )
    assert process.stdin is not None
    process.stdin.write(WORDS)
    process.stdin.close()
    process.stdin = None
    end = time.monotonic() + 60
    while not alive(hanging):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(f"it never asked the far host: {process.communicate()}")
        time.sleep(0.05)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    if list(folder.iterdir()):
        raise AssertionError(f"left in the folder for temporary files: {os.listdir(folder)}")
    return process.returncode, said


def _heard() -> None:
    """Whoever runs the tests may ignore signals (`nohup`), and that is passed on."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def left_of(hanging: Path) -> list[int]:
    """Processes that live over this rsh: itself, what it runs, and the Borg that started it.

    One that was killed has a moment to be gone.
    """
    mark = b"BORG_RSH=" + str(hanging).encode()
    end = time.monotonic() + GONE_S
    while True:
        found = [int(one.name) for one in _others() if mark in _read(one / "environ")]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def alive(hanging: Path) -> list[int]:
    """The rsh itself, where somebody has started it."""
    start = b"/bin/sh\0" + str(hanging).encode()
    return [int(one.name) for one in _others() if _read(one / "cmdline").startswith(start)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _others() -> Iterator[Path]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            yield process
