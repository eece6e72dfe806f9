"""A worker is forked from its parent's loaded code, unless that code has changed on the disk."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems start every worker from nothing")

# The module `holdfast.extra` lies in a folder of the test's, so that it can be changed.
PARENT = """
import os, signal, sys
import holdfast
holdfast.__path__.append(sys.argv[1])
import holdfast.extra
from holdfast.runtime.engine.supervisor import supervise
from holdfast.runtime.engine.supervisor import Warm

COLD = "import os, signal; print('cold', os.getpid(), flush=True); signal.pause()"

def work():
    print("warm", os.getpid(), os.getpgid(0) == os.getpid(), os.read(0, 1) == b"", flush=True)
    signal.pause()
    return 0

sys.exit(supervise([sys.executable, "-c", COLD], warm=Warm(work)))
"""


class Parent:
    def __init__(self, folder: Path) -> None:
        self.extra = folder / "extra.py"
        self.extra.write_text("ONE = 1\n")
        self.process = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True)

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    parent = Parent(tmp_path)
    with parent.process:
        yield parent
        parent.process.kill()


def test_a_killed_worker_is_forked_again_until_the_code_changes(parent: Parent) -> None:
    kind, pid, *rest = parent.line()
    assert (kind, rest) == ("warm", ["True", "True"])
    os.kill(int(pid), signal.SIGKILL)
    kind, again, *rest = parent.line()
    assert (kind, rest) == ("warm", ["True", "True"])
    assert again != pid
    parent.extra.write_text("ONE = 11\n")
    os.kill(int(again), signal.SIGKILL)
    kind, last = parent.line()
    assert kind == "cold"
    parent.process.terminate()
    assert parent.process.wait(20) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(last), 0)


def test_a_forked_worker_dies_with_its_parent(parent: Parent) -> None:
    _, pid, *_ = parent.line()
    descriptor = os.pidfd_open(int(pid))
    parent.process.kill()
    ready, _, _ = select.select([descriptor], [], [], 20)
    os.close(descriptor)
    assert ready


def test_a_worker_from_nothing_prints_what_a_forked_one_prints(tmp_path: Path) -> None:
    """Also a letter that the terminal does not have: an app that prints it must not fail on one of the two."""
    (tmp_path / "app.py").write_text("print('\u2192')\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast.app.worker", '{"app": "app.py:nothing"}'],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "has no attribute 'nothing'" in done.stderr
    assert done.stdout == "\\u2192\n"
