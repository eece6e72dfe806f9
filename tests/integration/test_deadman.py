"""The dead-man timer kills a process at its deadline, also one that cannot run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from holdfast.runtime.session.deadman import DeadMan

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="POSIX timers: macOS has none, DeadMan.create returns None"
)

PREPARE = """
import os, signal, sys, time
from holdfast.core.clock import SystemClock
from holdfast.runtime.session.deadman import DeadMan
man = DeadMan.create()
def say(line):
    print(line, flush=True)
"""


def _run(code: str) -> tuple[int, str, float]:
    """Exit status, output and seconds that it lived."""
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", PREPARE + code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        status = process.wait()
    return status, output, time.monotonic() - began


def test_a_stopped_process_dies_at_its_deadline_without_running_again(measured: Callable[[str], None]) -> None:
    status, output, seconds = _run(
        "man.arm(0.5); say('armed'); os.kill(os.getpid(), signal.SIGSTOP); say('zombie ran')"
    )
    assert (status, output) == (-signal.SIGKILL, "armed\n")
    assert seconds > 0.5
    measured(f"dead-man timer of 0.5 s: a process stopped at once lived {seconds:.2f} s in all")


def test_a_continued_process_is_dead_already(tmp_path: object) -> None:
    """SIGCONT after the deadline wakes nobody."""
    code = "man.arm(0.2); say(os.getpid()); os.kill(os.getpid(), signal.SIGSTOP); say('zombie ran')"
    with subprocess.Popen([sys.executable, "-c", PREPARE + code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        # Wait for the death without reaping, so that the signal goes to this very process.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == ""
        assert process.wait() == -signal.SIGKILL


def test_each_renewal_moves_the_deadline() -> None:
    status, output, seconds = _run(
        "man.arm(0.8); say('armed')\nfor _ in range(3): time.sleep(0.3); man.arm(0.8)\nsay('renewed'); time.sleep(60)"
    )
    assert (status, output) == (-signal.SIGKILL, "armed\nrenewed\n")
    assert seconds > 1.7


def test_the_deadline_is_absolute_on_the_boot_clock() -> None:
    """A pause before arming is not added on top: a deadline that has passed kills at once."""
    status, output, _ = _run(
        "at = SystemClock().boot_ms() + 200; say('x'); time.sleep(0.5); man.arm_at(at); say('ran')"
    )
    assert (status, output) == (-signal.SIGKILL, "x\n")


@pytest.mark.parametrize("act", ["man.arm(0.0)", "man.arm(-1)", "man.arm_at(0)", "man.arm_at(-5)"])
def test_a_time_that_is_over_kills_and_never_disarms(act: str) -> None:
    status, output, _ = _run(f"say('x'); {act}; time.sleep(60)")
    assert (status, output) == (-signal.SIGKILL, "x\n")


def test_a_disarmed_timer_kills_nobody() -> None:
    status, output, _ = _run("man.arm(0.2); man.disarm(); say('x'); time.sleep(0.5); say('alive')")
    assert (status, output) == (0, "x\nalive\n")


def test_children_do_not_inherit_the_timer() -> None:
    """That is what PR_SET_PDEATHSIG is for: see test_child_pool."""
    status, output, _ = _run(
        "say('x'); man.arm(0.5)\n"
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(1.0); say('child lives'); os._exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    assert status == -signal.SIGKILL
    assert output == "x\nchild lives\n"


def test_rearming_is_cheap(measured: Callable[[str], None]) -> None:
    man = DeadMan.create()
    assert man is not None
    began = time.perf_counter()
    for _ in range(10_000):
        man.arm(3_600)
    man.disarm()
    measured(f"dead-man timer: {(time.perf_counter() - began) * 100:.1f} us per renewal")
