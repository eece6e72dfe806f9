"""A far end that a person starts on a terminal, as the tutorial tells."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
from urllib.request import urlopen

END_OF_INPUT = b"\x04"  # what Ctrl-D sends


def test_typing_on_its_terminal_does_not_disturb_it() -> None:
    """Started with `&` it shares the terminal with a shell; what is typed there is not for it."""
    keyboard, terminal = pty.openpty()
    far_end = subprocess.Popen(
        [sys.executable, "-m", "holdfast.downstream", "--class", "payment", "--port", "0"],
        stdin=terminal,
        stdout=subprocess.PIPE,
    )
    try:
        assert far_end.stdout is not None
        port = json.loads(far_end.stdout.readline())["port"]
        os.write(keyboard, b"ls\n" + END_OF_INPUT)
        with urlopen(f"http://127.0.0.1:{port}/_waiting?n=1&timeout_s=0.3") as answer:
            assert json.load(answer) == {"inside": []}
        assert far_end.poll() is None
    finally:
        far_end.kill()
        far_end.communicate()
        os.close(keyboard)
        os.close(terminal)


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "holdfast.downstream", "--class", "payment", "--port", str(port)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == f"error: port {port} is taken"
    assert "Traceback" not in done.stderr
