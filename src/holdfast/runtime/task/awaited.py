"""What a task's code made and never awaited: it has done nothing, though the code believes that it did.

Such a task may not succeed. Each call of the run is noted with its line when it is made, and struck out when it is
awaited; what is left when the code has ended fails the task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import Misuse
from holdfast.host.traces import caller
from holdfast.runtime.step.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")
NAMED_MAX = 5  # of the calls that a failure names


class _HasSteps(Protocol):
    steps: Steps


R = TypeVar("R", bound=_HasSteps)


class Made:
    """Something of the run that must be awaited."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what


def tracked(
    method: Callable[Concatenate[R, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[R, P], Coroutine[Any, Any, T]]:
    """A coroutine method of the run that must be awaited."""

    @functools.wraps(method)
    def made(run: R, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        mark, steps = Made(method.__name__), run.steps
        steps.not_awaited[mark] = caller(2)

        async def begun() -> T:
            steps.not_awaited.pop(mark, None)
            return await method(run, *args, **kwargs)

        work = begun()
        work.__qualname__ = method.__qualname__  # so Python's own warning names it
        return work

    return made


def check_awaited(steps: Steps) -> None:
    """Raises Misuse where something was made and never awaited."""
    if not steps.not_awaited:
        return
    named = [f"run.{made.what} at {file}:{line}" for made, (file, line) in steps.not_awaited.items()]
    more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
    raise Misuse(f"never awaited, so never carried out: {', '.join(named[:NAMED_MAX])}{more}; write `await` before it")
