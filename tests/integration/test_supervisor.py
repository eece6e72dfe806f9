"""The supervising parent: restarts after kill -9, stops when asked, and is never outlived."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# The supervisor is told what to run and how patient to be; it talks on standard error.
SUPERVISOR = """
import sys
from holdfast.runtime.engine.supervisor import supervise
sys.exit(supervise(
    [sys.executable, "-c", sys.argv[1], *sys.argv[3:]], grace_s=float(sys.argv[2]),
    say=lambda line: print(line, file=sys.stderr, flush=True),
))
"""

# A worker that says who it is, and ends with 0 when asked politely. A handler writes for itself: the
# signal may come inside the print.
WORKER = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"asked\\n"), os._exit(0)))
print(os.getpid(), flush=True)
while True: signal.pause()
"""

DEAF = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked\\n"))
print(os.getpid(), flush=True)
while True: signal.pause()
"""


# A worker that ends by itself with this code.
ENDS = """
from holdfast.runtime.engine.supervisor import say_word, take_word
word = take_word()
def end(code):
    say_word(word, code)
    raise SystemExit(code)
"""


class Supervised:
    def __init__(self, worker: str, *args: str, grace_s: float = 30) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, worker, str(grace_s), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def started() -> Iterator[list[Supervised]]:
    made: list[Supervised] = []
    yield made
    for one in made:
        one.close()


def test_a_killed_worker_is_started_again_until_it_is_asked_to_stop(started: list[Supervised]) -> None:
    one = Supervised(WORKER)
    started.append(one)
    pids: list[int] = []
    for _ in range(3):
        pids.append(int(one.line()))
        os.kill(pids[-1], signal.SIGKILL)
    last = int(one.line())
    assert len({*pids, last}) == 4
    one.process.terminate()
    assert one.line() == "asked"
    assert one.end() == 0
    assert one.line() == ""


def test_an_interrupt_asks_the_worker_politely(started: list[Supervised]) -> None:
    """Also one that does not listen yet: Python would answer the interrupt itself with a traceback."""
    for worker, answer in (WORKER, "asked"), ("import os, time; print(os.getpid(), flush=True); time.sleep(60)", ""):
        one = Supervised(worker)
        started.append(one)
        int(one.line())
        one.process.send_signal(signal.SIGINT)
        assert one.line() == answer
        assert one.end() == 0
        assert one.process.stderr is not None
        assert "Traceback" not in one.process.stderr.read()


# As the parent of a standby: begun anew. What was closed when it was started, it has opened by then.
LEAN = """
import os, sys
from holdfast.runtime.engine.supervisor import supervise_lean
for stream in map(int, sys.argv[2:]):
    os.close(stream)
    assert os.open(os.devnull, os.O_RDWR) == stream
supervise_lean([sys.executable, "-c", sys.argv[1]], grace_s=30, close_s=0)
"""


@pytest.mark.parametrize("closed", ["2", "012"])
def test_a_supervisor_that_begins_anew_has_its_standard_streams(closed: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    worker = f"{ENDS}\nimport os\nfor n in range(3): os.fstat(n)\nopen({str(told)!r}, 'w').write(str(word))\nend(6)"
    done = subprocess.run([sys.executable, "-c", LEAN, worker, *closed], timeout=30, check=False)
    assert done.returncode == 6
    assert int(told.read_text()) > 2  # the pipe of its word has none of their numbers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_a_supervisor_begins_anew_is_heard(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if 'holdfast.runtime.engine.supervisor' in sys.orig_argv: os.kill(os.getpid(), {int(number)})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", LEAN, "import time; time.sleep(60)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    assert number.name.encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_worker_that_does_not_finish_in_time_is_killed(started: list[Supervised]) -> None:
    one = Supervised(DEAF, grace_s=1.0)
    started.append(one)
    watch = os.pidfd_open(int(one.line()))
    one.process.terminate()
    assert one.line() == "asked"
    assert one.end() == 128 + signal.SIGKILL
    assert _ended(watch)


def test_a_second_wish_does_not_wait_for_the_grace(started: list[Supervised]) -> None:
    one = Supervised(DEAF, grace_s=600)
    started.append(one)
    int(one.line())
    one.process.terminate()
    assert one.line() == "asked"
    time.sleep(1.1)  # signals within a second count as one wish
    one.process.terminate()
    assert one.end() == 128 + signal.SIGKILL


def test_a_wish_that_comes_when_all_is_over_changes_no_exit_code() -> None:
    """Somebody who presses Ctrl-C once more, while the interpreter ends, on a busy machine."""
    after = f"code = supervise([sys.executable, '-c', {ENDS + 'end(6)'!r}])"
    ends = "print('over', flush=True); sys.stdin.readline(); sys.exit(code)"
    head = "import sys; from holdfast.runtime.engine.supervisor import supervise"
    with subprocess.Popen(
        [sys.executable, "-c", f"{head}\n{after}\n{ends}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "over\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.stdin.close()
        assert process.wait(30) == 6


@pytest.mark.parametrize("code", [0, 2, 6, 64, 78])
def test_a_worker_that_ends_on_purpose_or_cannot_run_is_not_started_again(
    started: list[Supervised], tmp_path: Path, code: int
) -> None:
    one = Supervised(f"{ENDS}\nprint('ran', flush=True); end({code})")
    started.append(one)
    assert one.end() == code
    assert one.process.stdout is not None
    assert one.process.stdout.read() == "ran\n"


@pytest.mark.parametrize("code", [0, 2, 6, 7])
def test_an_exit_call_of_a_tool_is_a_death_like_any_other(started: list[Supervised], code: int) -> None:
    """Only the worker itself can say that its exit code means a wrong setting."""
    one = Supervised(f"{ENDS}\nimport os; print('ran', word >= 0, flush=True); os._exit({code})")
    started.append(one)
    assert [one.line() for _ in range(3)] == ["ran True"] * 3
    assert one.process.stderr is not None
    assert any(f"worker ended ({code}: code that it ran called exit)" in line for line in one.process.stderr)


def test_what_a_worker_starts_cannot_speak_for_it(started: list[Supervised]) -> None:
    """The descriptor and its name stay with the worker process."""
    child = (
        "import os, sys; print(os.environ.get('HOLDFAST_WORD'), os.path.exists(f'/dev/fd/{sys.argv[1]}'), flush=True)"
    )
    one = Supervised(
        f"{ENDS}\nimport subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {child!r}, str(word)], close_fds=False); end(0)"
    )
    started.append(one)
    assert one.line() == "None False"
    assert one.end() == 0


def test_a_worker_that_fails_is_started_again_later_and_later(started: list[Supervised], tmp_path: Path) -> None:
    count = tmp_path / "count"
    worker = (
        "import sys\n"
        "with open(sys.argv[1], 'a+') as f: f.write('x'); f.seek(0); n = len(f.read())\n"
        "raise SystemExit(1) if n < 4 else end(0)"
    )
    one = Supervised(f"{ENDS}\n{worker}", str(count))
    started.append(one)
    _, talk = one.process.communicate(timeout=60)
    assert one.process.returncode == 0
    assert count.read_text() == "xxxx"
    pauses = [line.split("again in ")[1] for line in talk.splitlines() if "again in" in line]
    assert pauses == ["0.1 s", "0.2 s", "0.4 s"]


def test_a_wish_to_stop_during_the_pause_is_heard(started: list[Supervised]) -> None:
    one = Supervised("import os; print(os.getppid(), flush=True); os._exit(1)")
    started.append(one)
    assert one.process.stderr is not None
    for line in one.process.stderr:
        if "in 1.6 s" in line:
            one.process.terminate()
            break
    assert one.end() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_a_killed_supervisor_takes_the_worker_with_it(started: list[Supervised]) -> None:
    one = Supervised(WORKER)
    started.append(one)
    watch = os.pidfd_open(int(one.line()))
    one.process.kill()
    assert _ended(watch)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
def test_what_a_dead_worker_left_is_killed_before_the_next_one_starts(started: list[Supervised]) -> None:
    """Also what has left its group and its session."""
    leaves = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    supervised = Supervised(leaves)
    started.append(supervised)
    orphan = os.pidfd_open(int(supervised.line()))
    parent = supervised.process.pid
    (worker,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[:1]
    os.kill(int(worker), signal.SIGKILL)
    again = int(supervised.line())
    poller = select.poll()
    poller.register(orphan, select.POLLIN)
    assert poller.poll(0)
    os.close(orphan)
    os.kill(parent, signal.SIGTERM)
    assert supervised.end() == 0
    assert not Path(f"/proc/{again}").exists()


def test_the_worker_is_in_a_group_of_its_own_with_default_signals(started: list[Supervised]) -> None:
    one = Supervised(
        f"{ENDS}\nimport os, signal\n"
        "print(os.getpgid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,"
        " os.read(0, 1) == b'', flush=True)\n"
        "end(0)"
    )
    started.append(one)
    assert one.line() == "True True True"
    assert one.end() == 0


def _ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        return bool(poller.poll(30_000))
    finally:
        os.close(pidfd)
