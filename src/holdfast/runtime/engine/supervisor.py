"""The supervising parent of a worker: starts it again when it dies (forked, where its code is warm), and ends with it.

The worker may be killed at any instant, by its own dead-man timer too; this process is what makes that harmless. It
holds no journal, no keys and no state, so there is nothing in it to recover. If it is itself killed, the kernel kills
the worker, and the worker's death kills the tools' children: no process is left that no other one restarts. (macOS has
no such signal: there a worker outlives a killed parent until it is stopped by hand.)

Only the worker process itself can say that it ended on purpose, or that a restart cannot help: right before it ends it
writes its exit code into a pipe that only this process reads. An exit code without that word is a death like a kill: a
tool, or a C library in it, may end the process with any code at any time (`os._exit(2)`).

A first SIGTERM or SIGINT is passed on, and the worker has `grace_s + close_s` to finish; a second one, or the end of
that time, kills it, which loses nothing. The worker is in a process group of its own, so Ctrl-C reaches it once, from
here. A signal that comes when all is over finds a process that ends with the worker's exit code and nothing else: from
there on both are ignored.

Processes that a tool started may outlive the worker. The keepers of blocking tools end theirs (runtime/tool/keeper.py);
whatever is left becomes a child of this process, which kills it before it starts the next worker. As process 1 of a
container it also reaps orphans.

Where it is given a `Warm`, a worker is forked from the code that is loaded here: loading takes most of a worker's
start, and a worker that was killed should resume its tasks at once. This process has the code loaded, runs none of it,
and has one thread, no journal, no keys and no event loop; so a fork of it is what a fresh start would be, only sooner.
The code on the disk may have changed since (an upgrade in place). Half of a program from before and half from after
must never run together, so a parent whose files have changed starts workers from nothing again. macOS cannot fork
without exec safely: there it is always so.

A standby has no task to resume, so its worker may start slowly. Its parent replaces itself with a process that loads
this module and no other code of the agent (`supervise_lean`): loaded code takes memory for as long as the agent runs.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, NoReturn

from holdfast.errors import EXIT_CONFLICT, EXIT_JOURNAL, EXIT_NOT_FOUND, EXIT_PLACE, EXIT_USAGE
from holdfast.host.hardening import IS_LINUX, PR_SET_CHILD_SUBREAPER, die_with_parent, kill_children, prctl
from holdfast.host.log import open_log

FIRST_DELAY_S = 0.1
DELAY_S_MAX = 5.0
HEALTHY_S = 30.0  # a worker that lived this long starts with a clean slate
_SIGNAL_EXIT = 128
_TERMINAL = frozenset((EXIT_USAGE, EXIT_NOT_FOUND, EXIT_CONFLICT, EXIT_JOURNAL, EXIT_PLACE, *range(64, 79)))


class Restart(NamedTuple):
    """Start the worker again after a pause; `failures` goes into the next decision."""

    delay_s: float
    failures: int


class Stop(NamedTuple):
    """End with this exit code."""

    code: int


def is_terminal(code: int) -> bool:
    """Exit codes that a restart cannot change: wrong usage, unfit place, unusable journal; and those of sysexits.h."""
    return code in _TERMINAL


def after_exit(
    status: int, uptime_s: float, failures: int, *, own: bool, terminal: Callable[[int], bool] = is_terminal
) -> Restart | Stop:
    """Restart a worker that died, let one that ended on purpose end. `status` is the exit code, or minus the signal
    that killed it; `own`: the worker said so itself; `failures` is how often in a row it had died before."""
    if own and (status == 0 or (status > 0 and terminal(status))):
        return Stop(code=status)
    row = 0 if uptime_s >= HEALTHY_S else failures
    # The exponent is bounded too: a worker that fails for a week must not overflow it.
    delay_s = min(FIRST_DELAY_S * 2.0 ** min(row, 16), DELAY_S_MAX)
    return Restart(delay_s=delay_s, failures=row + 1)


def exit_code(status: int) -> int:
    """The exit code of a status, as shells write it."""
    return _SIGNAL_EXIT - status if status < 0 else status


GRACE_S = 30.0
KEEPERS_S = 1.0
_LOOK_S = 0.01
_DOUBLE_S = 1.0  # two signals closer than this are one wish, sent by two senders
_POLITE = (signal.SIGTERM, signal.SIGINT)
_HANDLED = (*_POLITE, signal.SIGCHLD)

Say = Callable[[str], None]


class Wake(NamedTuple):
    """The two ends of the pipe through which signals wake us."""

    reader: int
    writer: int


@dataclass(slots=True, eq=False)
class _Worker:
    """One life of a worker."""

    pid: int
    word: int  # where it says that its exit code is its own
    returncode: int | None = None

    def send(self, number: signal.Signals) -> None:
        if self.returncode is None:  # only we reap it: until then the number is its own
            os.kill(self.pid, number)

    def read_word(self) -> bool:
        """Whether it said itself that it ends with this code. Once it has ended."""
        try:
            return list(os.read(self.word, 1)) == [self.returncode]
        except BlockingIOError:  # a process that it started has the other end
            return False
        finally:
            os.close(self.word)


WORD = "HOLDFAST_WORD"  # the environment's name for the descriptor of a worker that is started from nothing


def take_word() -> int:
    """The descriptor for `say_word`, kept from what this process starts; -1 where no parent listens. For a worker
    process, before it loads the app."""
    word = int(os.environ.pop(WORD, "-1"))
    if word >= 0:
        os.set_inheritable(word, False)
    return word


def say_word(word: int, code: int) -> None:
    """Tell the parent that this process ends by itself, with this exit code. The last thing that a worker does."""
    if word >= 0:
        with suppress(OSError):  # a tool has closed it: the parent starts another worker
            os.write(word, bytes((code,)))


def supervise(
    argv: Sequence[str],
    *,
    grace_s: float = GRACE_S,
    close_s: float = 0.0,
    terminal: Callable[[int], bool] = is_terminal,
    say: Say = lambda line: None,
    warm: Warm | None = None,
) -> int:
    """Keep a worker running until it ends on purpose or we are asked to stop; its exit code. Runs in the main thread of
    a process of its own, which has no other children and ends when this returns: SIGTERM and SIGINT are ignored from
    then on. `say` gets one line per start, end and decision."""
    if IS_LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    with _signals() as wake:
        return _Supervisor(
            argv=argv, grace_s=grace_s, close_s=close_s, terminal=terminal, say=say, wake=wake, warm=warm
        ).run()


def supervise_lean(argv: Sequence[str], *, grace_s: float, close_s: float) -> NoReturn:
    """Replace this process with one that supervises in the same way, and has loaded nothing else. Call it with one
    thread, and with open standard streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in range(3):  # one that the caller had closed was opened here
        os.set_inheritable(stream, True)
    # The signals wait until they are listened to: an interpreter that begins answers Ctrl-C with a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, _POLITE)
    os.execv(sys.executable, [sys.executable, "-P", "-m", __name__, str(grace_s), str(close_s), *argv])


@dataclass(slots=True, kw_only=True)
class _Supervisor:
    argv: Sequence[str]
    grace_s: float  # for calls in flight
    close_s: float  # after that, for writing what they returned and closing the journal
    terminal: Callable[[int], bool]
    say: Say
    wake: Wake
    warm: Warm | None
    _asked_at: float | None = None  # when we were first asked to stop
    _worker: _Worker | None = None

    def run(self) -> int:
        failures = 0
        while True:
            began = time.monotonic()
            status, own = self._live()
            uptime_s = time.monotonic() - began
            if self._asked_at is not None:
                # Asked before it listened to signals, the worker died of the polite one: as good.
                return 0 if -status in _POLITE else exit_code(status)
            decision = after_exit(status, uptime_s, failures, own=own, terminal=self.terminal)
            if isinstance(decision, Stop):
                self.say(f"worker ended with exit code {decision.code}")
                return decision.code
            failures = decision.failures
            why = ": code that it ran called exit" if not own and (status == 0 or self.terminal(status)) else ""
            self.say(f"worker ended ({status}{why}); starting it again in {decision.delay_s:g} s")
            if self._rest(decision.delay_s):
                return 0

    def _live(self) -> tuple[int, bool]:
        """One life of the worker: its exit code, or minus the signal; and whether it ended by itself."""
        worker = self._worker = self._start()
        self.say(f"worker {worker.pid} started")
        try:
            while worker.returncode is None:
                self._wait(self._time_left())
                _reap(worker)
                if worker.returncode is None and self._time_left() == 0.0:
                    self.say(f"killing worker {worker.pid}: it did not finish in time")
                    worker.send(signal.SIGKILL)
        finally:
            self._worker = None
        self._end_orphans()
        return worker.returncode, worker.read_word()

    def _end_orphans(self) -> None:
        """What the dead worker left: its keepers get a moment to end all they keep, and the rest is killed."""
        until = time.monotonic() + KEEPERS_S
        while _has_children() and time.monotonic() < until:
            self._wait(_LOOK_S)
        if IS_LINUX:
            kill_children()

    def _start(self) -> _Worker:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            if self.warm is not None and self.warm.is_fresh():
                return _Worker(self.warm.fork(signals=_HANDLED, close=(*self.wake, reader), word=writer), reader)
            parent = os.getpid()
            started = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                pass_fds=(writer,),
                env={**os.environ, WORD: str(writer)},
                process_group=0,
                preexec_fn=lambda: _first(parent),  # noqa: PLW1509 - this process has one thread
            )
            started.returncode = 0  # it is reaped here, by its number
            return _Worker(started.pid, reader)
        finally:
            os.close(writer)

    def _rest(self, delay_s: float) -> bool:
        """Pause before a restart; True where we are asked to stop meanwhile."""
        until = time.monotonic() + delay_s
        while self._asked_at is None and (left := until - time.monotonic()) > 0:
            self._wait(left)
        return self._asked_at is not None

    def _time_left(self) -> float | None:
        if self._asked_at is None:
            return None
        return max(self._asked_at + self.grace_s + self.close_s - time.monotonic(), 0.0)

    def _wait(self, timeout_s: float | None) -> None:
        """Sleep until a signal or the end of the time."""
        if timeout_s == 0.0:
            timeout_s = _DOUBLE_S  # killed already; only its end can wake us
        ready, _, _ = select.select([self.wake.reader], [], [], timeout_s)
        for number in os.read(self.wake.reader, 4_096) if ready else b"":
            if number in _POLITE:
                self._asked(signal.Signals(number))

    def _asked(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self.say(f"{number.name}: calls in flight have {self.grace_s:g} s to finish; again kills the worker")
            if self._worker is not None:
                # Not SIGINT: before a worker listens to it, Python answers it with a traceback.
                self._worker.send(signal.SIGTERM)
        elif now - self._asked_at > _DOUBLE_S:
            self.grace_s = self.close_s = 0.0


def _first(parent: int) -> None:
    """What the worker does between fork and exec; the kernel keeps it across exec."""
    die_with_parent(parent)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)


def _reap(worker: _Worker) -> None:
    """Collect everything that ended: the worker, and orphans given to process 1."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == worker.pid:
            worker.returncode = os.waitstatus_to_exitcode(status)


def _has_children() -> bool:
    """Reap what has ended; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


@contextmanager
def _signals() -> Generator[Wake, None, None]:
    """A pipe that becomes readable with the numbers of the signals that came."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    for number in _HANDLED:
        signal.signal(number, _ignore)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _POLITE)
    try:
        yield Wake(reader, writer)
    finally:
        signal.set_wakeup_fd(wakeup)
        # Not as before: a signal that comes while the interpreter ends must not change the exit code into that of
        # a Ctrl-C.
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
        os.close(reader)
        os.close(writer)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The number is read from the descriptor."""


PACKAGE = "holdfast"
EXIT_DEFECT = 1


class Warm:
    """What a worker runs, with its code loaded."""

    def __init__(self, run: Callable[[], int]) -> None:
        self._run = run
        self._stamps = _stamps()

    def is_fresh(self) -> bool:
        """Whether a fork would run what is on the disk."""
        return sys.platform == "linux" and self._stamps == _stamps(self._stamps)

    def fork(self, *, signals: Sequence[signal.Signals], close: Sequence[int], word: int) -> int:
        """Start a worker; its process id. It never returns to the caller's code."""
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = EXIT_DEFECT
        try:
            signal.set_wakeup_fd(-1)
            for number in signals:
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(parent)
            os.setpgid(0, 0)
            for descriptor in close:
                os.close(descriptor)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            code = self._run()
            sys.stdout.flush()
            sys.stderr.flush()
            say_word(word, code)
        finally:
            os._exit(code)


def _stamps(known: dict[str, tuple[int, int]] | None = None) -> dict[str, tuple[int, int]]:
    """Size and time of the files of our own modules that are loaded."""
    paths = known or {
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == PACKAGE and getattr(module, "__file__", None)
    }
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (-1, -1)
    return (found.st_size, found.st_mtime_ns)


if __name__ == "__main__":
    _grace_s, _close_s, *_argv = sys.argv[1:]
    _log = open_log()
    sys.exit(
        supervise(
            _argv,
            grace_s=float(_grace_s),
            close_s=float(_close_s),
            say=lambda line: _log.event("supervisor", text=line),
        )
    )
