"""What a supervising parent does when its worker has ended: a decision over values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import EXIT_CONFLICT, EXIT_JOURNAL, EXIT_NOT_FOUND, EXIT_PLACE, EXIT_USAGE

FIRST_DELAY_S = 0.1
DELAY_S_MAX = 5.0
HEALTHY_S = 30.0  # a worker that lived this long starts with a clean slate
_SIGNAL_EXIT = 128
_TERMINAL = frozenset((EXIT_USAGE, EXIT_NOT_FOUND, EXIT_CONFLICT, EXIT_JOURNAL, EXIT_PLACE, *range(64, 79)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start the worker again after a pause; `failures` goes into the next decision."""

    delay_s: float
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End with this exit code."""

    code: int


def is_terminal(code: int) -> bool:
    """Exit codes that a restart cannot change: wrong usage, unfit place, unusable journal.

    64-78 are those of sysexits.h, for workers that are not ours.
    """
    return code in _TERMINAL


def after_exit(
    status: int, uptime_s: float, failures: int, *, terminal: Callable[[int], bool] = is_terminal
) -> Restart | Stop:
    """Restart a worker that died, let one that ended on purpose end.

    `status` is the exit code, or minus the signal that killed it; `failures` is how often in a
    row it had died before.
    """
    if status == 0 or (status > 0 and terminal(status)):
        return Stop(code=status)
    row = 0 if uptime_s >= HEALTHY_S else failures
    # The exponent is bounded too: a worker that fails for a week must not overflow it.
    delay_s = min(FIRST_DELAY_S * 2.0 ** min(row, 16), DELAY_S_MAX)
    return Restart(delay_s=delay_s, failures=row + 1)


def exit_code(status: int) -> int:
    """The exit code that stands for a status, as shells write it."""
    return _SIGNAL_EXIT - status if status < 0 else status
