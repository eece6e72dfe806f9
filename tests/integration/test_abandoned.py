"""A server's folder that a killed process has left is removed by the next one; one that is in use stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.demo import server
from holdfast.demo.server import ABANDONED_S, own_folder

LEAVE = """
import os, sys
from pathlib import Path
from holdfast.demo import server
server.MEMORY = Path(sys.argv[1])
folder = server.own_folder()
print(folder.__enter__(), flush=True)
sys.stdin.read()
os._exit(1)
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MEMORY", tmp_path)
    words = [sys.executable, "-c", LEAVE, tmp_path]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        age(left)
        with own_folder():
            assert left.exists()  # its process lives
        other.stdin.close()
        other.wait()
    (left / "data").mkdir()
    (left / "data/postmaster.pid").write_text(f"{os.getpid()}\n")
    age(left)
    with own_folder():
        assert left.exists()  # its server lives
    (left / "data/postmaster.pid").unlink()
    os.utime(left)
    with own_folder():
        assert left.exists()  # it may have been made a moment ago
    age(left)
    with own_folder() as own:
        assert (left.exists(), own.exists()) == (False, True)


def age(folder: Path) -> None:
    at = time.time() - ABANDONED_S - 60
    os.utime(folder, (at, at))
