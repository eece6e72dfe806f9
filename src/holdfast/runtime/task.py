"""Task functions: replayed over their records on resume, so they decide nothing by chance.

Between two steps a task function may only compute from its arguments and the steps' results;
time, randomness and ids come from the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, overload

from holdfast.errors import Misuse

if TYPE_CHECKING:
    from holdfast.runtime.run import Run

TaskFunction = Callable[..., Awaitable[Any]]  # Any: a task returns any JSON value
SCOPE_NAME = "@scope"  # the name under which scopes of foreign loops are kept


class TaskType:
    """A registered task function."""

    def __init__(self, function: TaskFunction, *, name: str) -> None:
        self.function = function
        self.name = name
        self.__doc__ = function.__doc__
        self.__name__ = name
        self.__module__ = function.__module__
        self.signature = _signature(function)

    def check_args(self, args: dict[str, Any]) -> None:  # Any: the submitter's arguments
        try:
            self.signature.bind(**args)
        except TypeError as error:
            raise Misuse(f"{self.name}: {error}") from None

    async def start(self, run: Run, args: dict[str, Any]) -> Any:  # Any: user code's result
        return await self.function(run, **args)


@overload
def task(function: TaskFunction, /) -> TaskType: ...


@overload
def task(*, name: str = ...) -> Callable[[TaskFunction], TaskType]: ...


def task(
    function: TaskFunction | None = None, /, *, name: str = ""
) -> TaskType | Callable[[TaskFunction], TaskType]:
    """Register `async def` with a run as its first parameter as a task."""

    def register(function: TaskFunction) -> TaskType:
        if not inspect.iscoroutinefunction(function):
            raise Misuse(f"{function!r}: a task is an `async def`")
        title = name or function.__name__
        if not title or title.startswith("@") or len(title) > 200:
            raise Misuse("task: a name of 1 to 200 characters that does not start with @")
        return TaskType(function, name=title)

    return register if function is None else register(function)


def _signature(function: TaskFunction) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters:
        raise Misuse(f"{function.__name__}: a task takes the run as its first parameter")
    return signature.replace(parameters=parameters[1:])
