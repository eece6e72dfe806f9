"""A command that is stopped by a signal stops the programs that it runs.

Borg and ssh run in a session of their own, so neither Ctrl-C nor a signal to this process reaches them. asyncio turns
Ctrl-C into a cancellation; here SIGTERM, and SIGHUP unless it is ignored (nohup), do the same. The work's own clean-up
then ends Borg and ssh (backup/borg/process.py) before this process ends. A second signal ends them at once.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine
from signal import SIG_IGN, SIGHUP, SIGTERM, Signals, getsignal
from threading import current_thread, main_thread
from typing import Any, TypeVar

T = TypeVar("T")


class Ended(BaseException):
    """A signal ended the command, which has cleaned up."""

    def __init__(self, number: Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


def run_async(work: Coroutine[Any, Any, T]) -> T:  # Any: what a coroutine takes and gives inside
    """As asyncio.run. Raises Ended after SIGTERM or SIGHUP."""
    import asyncio

    caught: list[Signals] = []

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: Signals) -> None:
            caught.append(number)
            task.cancel()

        for number in (SIGTERM, SIGHUP):
            if current_thread() is main_thread() and getsignal(number) is not SIG_IGN:
                loop.add_signal_handler(number, end, number)
        return await work

    try:
        return asyncio.run(main())
    except BaseException:  # a clean-up may raise anything; the signal is what ended it
        if caught:
            raise Ended(caught[0]) from None
        raise


def in_loop(work: Callable[[Namespace], Coroutine[Any, Any, int]]) -> Callable[[Namespace], int]:  # Any: as above
    """The `run` of a verb that is a coroutine."""
    return lambda args: run_async(work(args))


def report_ended(ended: Ended) -> None:
    print(
        f"stopped by {ended.number.name}: Holdfast ignores unfinished work; the next run does it again", file=sys.stderr
    )
