"""Many short lives from one process: fork, run, stop, kill, wait, with a limit on time.

The process that forks has imported everything and runs no thread and no event loop, so a child
is a fresh program a few milliseconds after the fork. A trial is a generator: it starts children
and yields what it waits for, a condition; several trials run side by side in one loop, which
sleeps until a child changes its state.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

LIFE_S_MAX = 30.0  # far beyond any life here; who needs longer hangs
LOOK_EVERY_S = 0.01  # for conditions that are about time; children wake the loop at once

EXPLAIN_S = 0.5
UNFIT = 70  # exit code of a child whose trial is at fault, not what is tried

Condition = Callable[[], bool]
Work = Callable[[], Coroutine[Any, Any, None]]  # Any: an event loop reads these two, we do not
Trial = Generator[Condition, None, T]


class Child:
    """A forked process and what became of it."""

    def __init__(self, pid: int, *, life_s: float) -> None:
        self.pid = pid
        self.code: int | None = None  # exit code, or minus the signal; None while it lives
        self.overdue = False
        self._stopped = False
        self._ends = time.monotonic() + life_s

    def ended(self) -> bool:
        """Whether it is gone; one that lives longer than it may explains itself and is killed."""
        self._look()
        if self.code is None and time.monotonic() > self._ends:
            if not self.overdue:
                self.overdue = True
                self._ends += EXPLAIN_S
                self.signal(signal.SIGUSR2)
            else:
                self.signal(signal.SIGKILL)
        return self.code is not None

    def stopped(self) -> bool:
        """Whether it is stopped by a signal, or gone."""
        return self.ended() or self._stopped

    def signal(self, number: signal.Signals) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def _look(self) -> None:
        if self.code is not None:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            self._stopped = True
        elif os.WIFCONTINUED(status):
            self._stopped = False
        else:
            self.code = os.waitstatus_to_exitcode(status)
        if self.code == UNFIT:
            raise RuntimeError("a child could not be made ready; see its error output")


def fork(life: Work, *, before: Callable[[], None] | None = None, life_s: float = LIFE_S_MAX) -> Child:
    """Start a child that runs `before`, then `life` in an event loop of its own, and ends."""
    pid = os.fork()
    if pid == 0:
        _live(life, before)
    return Child(pid, life_s=life_s)


def run_trials(trials: Iterator[Trial[T]], *, lanes: int) -> Iterator[T]:
    """Run the trials, `lanes` at a time; gives their results in the order they end."""
    gc.collect()
    gc.freeze()  # children do not copy what they never change
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    under_way: dict[Trial[T], Condition] = {}
    exhausted = False
    while under_way or not exhausted:
        while len(under_way) < lanes and not exhausted:
            trial = next(trials, None)
            if trial is None:
                exhausted = True
            else:
                under_way[trial] = _at_once
        moved = False
        for trial, condition in list(under_way.items()):
            if condition():
                moved = True
                try:
                    under_way[trial] = next(trial)
                except StopIteration as end:
                    del under_way[trial]
                    yield end.value
        if not moved and under_way:
            signal.sigtimedwait((signal.SIGCHLD,), LOOK_EVERY_S)


def _at_once() -> bool:
    return True


def _live(life: Work, before: Callable[[], None] | None) -> NoReturn:
    code = UNFIT
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
        if before is not None:
            before()
        code = 1
        asyncio.run(_explaining(life))
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


async def _explaining(life: Work) -> None:
    """Run it; where it hangs, a signal prints what each of its tasks waits for."""

    def explain() -> None:
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stderr)
        sys.stderr.flush()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, explain)
    await life()
