"""What workers and children do to themselves first, seen from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")


def _run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)


def test_a_hardened_process_makes_private_files_and_no_core_dump(tmp_path: Path) -> None:
    done = _run(
        "import json, os, resource, sys\n"
        "from holdfast.host.hardening import harden\n"
        "os.umask(0); missing = harden()\n"
        "open(sys.argv[1], 'w').close()\n"
        "print(json.dumps([missing, resource.getrlimit(resource.RLIMIT_CORE)]))",
        str(tmp_path / "file"),
    )
    missing, limits = json.loads(done.stdout)
    assert limits == [0, 0]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert bool(missing) == (sys.platform != "linux")  # elsewhere it says what is missing


@linux
def test_a_hardened_process_cannot_be_dumped() -> None:
    done = _run(
        "import ctypes\n"
        "from holdfast.host.hardening import harden\n"
        "harden(); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    assert done.stdout.strip() == "0"


@linux
def test_a_process_dies_with_its_parent() -> None:
    """The middle process is killed; its child must go without having been told."""
    child = (
        "import sys, time\n"
        "from holdfast.host.hardening import die_with_parent\n"
        "die_with_parent(int(sys.argv[1])); print('ready', flush=True); time.sleep(600)"
    )
    middle = (
        "import os, subprocess, sys, time\n"
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())],"
        " stdout=subprocess.PIPE)\n"
        "c.stdout.readline(); print(c.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        watch = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    assert _ended_within(watch, seconds=30)


def test_a_parent_that_is_gone_already_ends_the_process_at_once() -> None:
    done = _run("from holdfast.host.hardening import die_with_parent\ndie_with_parent(2**22 + 1); print('lived on')")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def _ended_within(pidfd: int, *, seconds: float) -> bool:
    import select

    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(pidfd)
