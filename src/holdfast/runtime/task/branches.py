"""How the ends of a gather's branches become its one end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.rest import Parked, Rest, Sleep, Suspended, WaitsForApproval
from holdfast.errors import Cancelled, RunFenced, Signal


def joined(ends: Sequence[tuple[Any, BaseException | None]]) -> list[Any]:
    """All results; or a signal before any failure, the first failure in order otherwise."""
    errors = [error for _, error in ends if error is not None]
    if errors:
        raise min(errors, key=_rank)
    return [result for result, _ in ends]


def _rank(error: BaseException) -> tuple[int, int]:
    """Which of several ends is the run's: the gravest; of several sleeps the shortest."""
    match error:
        case RunFenced():
            return (0, 0)
        case Cancelled():
            return (1, 0)
        case Suspended():
            return _rank_of_rest(error.rest)
        case Signal():
            return (2, 0)
        case _:
            return (6, 0)


def _rank_of_rest(rest: Rest) -> tuple[int, int]:
    match rest:
        case Sleep():
            return (3, rest.due_ms)
        case WaitsForApproval():
            return (4, 0)
        case Parked():
            return (5, 0)
        case _:
            return (2, 0)
