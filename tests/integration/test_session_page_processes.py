"""The session page between real processes: what survives SIGKILL, and what its lock proves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.clock import SystemClock
from holdfast.journal.sqlite.host.high_water import HighWater, fold_marks, high_water, stored_mark
from holdfast.journal.sqlite.host.page_reader import (
    Begun,
    DeadPage,
    NotBegun,
    Unreadable,
    is_alive,
    page_ids,
    read_dead_page,
)

BOOT = SystemClock().boot_id

PREPARE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from holdfast.core.clock import SystemClock
from holdfast.journal.sqlite.host import high_water
from holdfast.journal.sqlite.host.page import SessionPage
folder = Path(sys.argv[1])
def page(name):
    return SessionPage.create(folder, name, boot_id=SystemClock().boot_id, incarnation=1)
def say(*words):
    print(*words, flush=True)
"""


class Script:
    """A Python process that is told what to do and says how far it is."""

    def __init__(self, folder: Path, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREPARE + code, str(folder)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdout, self.process.stdin):
            if stream is not None:
                stream.close()


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    made: list[Script] = []
    yield made
    for script in made:
        script.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "instance" / "journal"


def test_slots_and_mark_survive_a_kill(folder: Path, scripts: list[Script]) -> None:
    script = Script(
        folder,
        "p = page('s'); a = p.take_slot(b'attempt1'); b = p.take_slot(b'attempt2')\n"
        "p.mark_begun(b); p.raise_mark(41); say(a, b); time.sleep(600)",
    )
    scripts.append(script)
    clear, begun = map(int, script.line().split())
    assert is_alive(folder, "s")
    assert isinstance(read_dead_page(folder, "s", boot_id=BOOT), Unreadable)
    script.kill()
    assert not is_alive(folder, "s")
    dead = read_dead_page(folder, "s", boot_id=BOOT)
    assert isinstance(dead, DeadPage)
    assert dead.slot(clear, b"attempt1") == NotBegun()
    assert dead.slot(begun, b"attempt2") == Begun()
    assert high_water(folder) == HighWater(1, 41)


def test_a_stopped_session_is_alive_until_it_is_dead(folder: Path, scripts: list[Script]) -> None:
    script = Script(folder, "p = page('s'); say('up'); time.sleep(600)")
    scripts.append(script)
    assert script.line() == "up"
    script.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, script.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert is_alive(folder, "s")
    script.kill()
    assert not is_alive(folder, "s")


def test_a_child_that_shares_the_lock_keeps_the_session_alive(folder: Path, scripts: list[Script]) -> None:
    """The worker is dead, its tool still runs: nothing is proven until both are gone."""
    script = Script(
        folder,
        "p = page('s')\n"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " pass_fds=(p.lock_fd,))\n"
        "say(c.pid); time.sleep(600)",
    )
    scripts.append(script)
    child = int(script.line())
    watch = os.pidfd_open(child)
    try:
        script.kill()
        assert is_alive(folder, "s")
        assert fold_marks(folder, set(), at_ms=0) == []
    finally:
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        _wait_ended(watch)
    assert not is_alive(folder, "s")
    assert fold_marks(folder, set(), at_ms=0) == ["s"]


def test_a_child_that_was_not_given_the_lock_does_not_hold_it(folder: Path, scripts: list[Script]) -> None:
    script = Script(
        folder,
        "p = page('s')\n"
        "c = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'],"
        " stdin=subprocess.PIPE)\n"
        "say(c.pid); time.sleep(600)",
    )
    scripts.append(script)
    assert int(script.line())
    script.kill()
    assert not is_alive(folder, "s")


@pytest.mark.parametrize(
    ("point", "stored", "pages"),
    [
        ("high_water.write_atomically", HighWater(0, 0), ["dead"]),
        ("Path.unlink", HighWater(1, 41), ["dead"]),
        ("high_water.sync_folder", HighWater(1, 41), []),
    ],
)
def test_a_kill_inside_the_folding_loses_no_mark(
    folder: Path, scripts: list[Script], point: str, stored: HighWater, pages: list[str]
) -> None:
    """Killed before the file is written, before the page is deleted, and after."""
    first = Script(folder, "p = page('dead'); p.raise_mark(41); say('up'); time.sleep(600)")
    scripts.append(first)
    assert first.line() == "up"
    first.kill()
    second = Script(
        folder,
        f"{point} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "high_water.fold_marks(folder, set(), at_ms=0)",
    )
    scripts.append(second)
    assert second.process.wait() == -signal.SIGKILL
    assert list(page_ids(folder)) == pages
    assert stored_mark(folder) == stored
    assert high_water(folder) == HighWater(1, 41)
    assert fold_marks(folder, set(), at_ms=0) == pages  # the turn was given back
    assert high_water(folder) == HighWater(1, 41)


def test_sessions_that_fold_at_once_lose_no_mark(folder: Path, scripts: list[Script]) -> None:
    """Eight processes make, raise and close sessions; every mark they reached counts."""
    code = (
        "me = int(sys.stdin.readline())\n"
        "for i in range(20):\n"
        "    p = page(f's{me}-{i}'); p.raise_mark(i * 8 + me + 1)\n"
        "    before = high_water.high_water(folder).sequence\n"
        "    assert before >= i * 8 + me + 1, before\n"
        "    p.close(delete=True)\n"
        "    assert high_water.high_water(folder).sequence >= before\n"
        "say('done')\n"
    )
    crowd = [Script(folder, code) for _ in range(8)]
    scripts.extend(crowd)
    for number, script in enumerate(crowd):
        assert script.process.stdin is not None
        script.process.stdin.write(f"{number}\n")
        script.process.stdin.flush()
    assert [script.line() for script in crowd] == ["done"] * 8
    assert high_water(folder) == HighWater(1, 19 * 8 + 8)
    fold_marks(folder, set(), at_ms=0)
    assert list(page_ids(folder)) == []
    assert stored_mark(folder) == HighWater(1, 160)


def _wait_ended(pidfd: int) -> None:
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(30_000)
    os.close(pidfd)
