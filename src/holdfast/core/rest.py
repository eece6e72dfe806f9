"""Why a run rests before its task has ended, as values.

A run raises `Suspended` with one of these. Decisions look at the type; `text` is what the record of the rest keeps
under `why`, so the texts of old journals stay as they are. `read_rest` turns a stored text into its value again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import Cancelled, RunFenced, Signal


class Sleep(msgspec.Struct, frozen=True):
    """Nothing to do before this moment."""

    due_ms: int

    @property
    def text(self) -> str:
        return f"sleeping {self.due_ms}"


class WaitsForApproval(msgspec.Struct, frozen=True):
    text: str = "approval"


class WaitsForMessage(msgspec.Struct, frozen=True):
    """A conversation without a message to answer."""

    text: str = "waiting message"


class Parked(msgspec.Struct, frozen=True):
    """A step asks a person; its own record has the question."""

    text: str = "parked"


class BrokenOff(msgspec.Struct, frozen=True):
    """The code left a call before its end. The call ends without the code; then the code runs again."""

    text: str = "broken-off"


class Stopping(msgspec.Struct, frozen=True):
    """The worker stops and gives the task back."""

    text: str = "the worker stopped"


class Diverged(msgspec.Struct, frozen=True):
    """The code asks for something else than is recorded. `detail` names both values: the record keeps it beside the
    text, because the text is told outside."""

    why: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"diverged: {self.why}"


class NeedsPerson(msgspec.Struct, frozen=True):
    """The task itself is parked; `text` is the question."""

    text: str


Rest = Sleep | WaitsForApproval | WaitsForMessage | Parked | BrokenOff | Stopping | Diverged | NeedsPerson

_FIXED: dict[str, Rest] = {
    one.text: one for one in (WaitsForApproval(), WaitsForMessage(), Parked(), BrokenOff(), Stopping())
}


def read_rest(text: str) -> Rest:
    """The rest that a record keeps as this text."""
    word, _, rest = text.partition(" ")
    if word == "sleeping" and rest.isdecimal():
        return Sleep(int(rest))
    if word == "diverged:":
        return Diverged(rest)
    return _FIXED.get(text) or NeedsPerson(text)


class Suspended(Signal):
    """The run ends here for now; `rest` says why (sleeping, waiting, parked)."""

    def __init__(self, rest: Rest) -> None:
        super().__init__(rest.text)
        self.rest = rest


def joined(ends: Sequence[tuple[Any, BaseException | None]]) -> list[Any]:
    """All results of a gather's branches; or a signal before any failure, the first failure in order otherwise."""
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
        case Suspended(rest=Sleep(due_ms=due_ms)):
            return (3, due_ms)
        case Suspended(rest=WaitsForApproval()):
            return (4, 0)
        case Suspended(rest=Parked()):
            return (5, 0)
        case Signal():
            return (2, 0)
        case _:
            return (6, 0)
