"""Task functions: replayed over their records on resume, so they decide nothing by chance.

Between two steps a task function may only compute from its arguments and the steps' results;
time, randomness and ids come from the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from holdfast.errors import Misuse
from holdfast.runtime.gate.gate import Gate

if TYPE_CHECKING:
    from holdfast.runtime.task.run import Run
    from holdfast.runtime.tool.tool import Tool

TaskFunction = Callable[..., Awaitable[Any]]  # Any: a task returns any JSON value
OnChange = Literal["continue", "park", "pin"]
NAME_CHARS_MAX = 200
SCOPE_NAME = "@scope"  # the name under which scopes of foreign loops are kept


class TaskType:
    """A registered task function."""

    def __init__(
        self, function: TaskFunction, *, name: str, on_change: OnChange = "continue", gate: Gate | None = None
    ) -> None:
        self.function = function
        self.name = name
        self.on_change: OnChange = on_change
        self.gate = gate
        self._digests: dict[str, str] | None = None
        self._hints: dict[str, Mapping[str, object]] | None = None
        self.__doc__ = function.__doc__
        self.__name__ = name
        self.__module__ = function.__module__
        self.signature = _signature(function)

    def check_args(self, args: dict[str, Any]) -> None:  # Any: the submitter's arguments
        try:
            self.signature.bind(**args)
        except TypeError as error:
            raise Misuse(f"{self.name}: {error}") from None

    def check_values(self, args: dict[str, Any]) -> None:  # Any: JSON values
        """Refuse a value that does not fit its type hint. One that is the default passes, as does one whose hint is no
        JSON type."""
        if self._hints is None:
            from holdfast.runtime.tool.schema import schemas_of_hints  # at the first submit: workers need it not

            self._hints = schemas_of_hints(self.function)
        from holdfast.runtime.tool.validation import problems

        for name, value in args.items():
            known = self.signature.parameters.get(name)
            is_default = known is not None and (type(value), value) == (type(known.default), known.default)
            if name in self._hints and not is_default:
                for text in problems(self._hints[name], value, what=name):
                    raise Misuse(f"{self.name}: {text}", hint=f"the task declares `{name}: {_hint_text(known)}`")

    @property
    def called(self) -> dict[str, Tool[..., Any]]:
        """The tools that its code names; see tool/called.py."""
        from holdfast.runtime.tool.called import tools_called

        return tools_called(self.function)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of what a run depends on, by name; see step/code_changes.py."""
        if self._digests is None:
            from holdfast.runtime.step.code_changes import code_digest

            self._digests = {"code": code_digest(self.function)}
            if self.gate is not None:
                self._digests["gate"] = self.gate.digest
        return self._digests

    @property
    def marks(self) -> dict[str, str]:
        """The name of `digests` until 0.2."""
        return self.digests

    async def start(self, run: Run, args: dict[str, Any]) -> Any:  # Any: user code's result
        return await self.function(run, **args)


@overload
def task(function: TaskFunction, /) -> TaskType: ...


@overload
def task(
    *, name: str = ..., on_change: OnChange = ..., gate: Gate | None = ...
) -> Callable[[TaskFunction], TaskType]: ...


def task(
    function: TaskFunction | None = None,
    /,
    *,
    name: str = "",
    on_change: OnChange = "continue",
    gate: Gate | None = None,
) -> TaskType | Callable[[TaskFunction], TaskType]:
    """Register an `async def` function, whose first parameter is a run, as a task.

    Args:
        name: the task's name in the journal and in commands (default: the function's name).
        on_change: what to do with a task that began with other code: "continue" with the new code,
            "park" the task until a person says yes, or "pin" it: only workers of the build that began it
            (`holdfast worker --build`) claim it. Holdfast reports a change in all cases.
        gate: which tools the task may call, and how much; see docs/how-to/limits.md.
    """
    check_on_change(on_change, what="task")
    check_gate(gate)

    def register(function: TaskFunction) -> TaskType:
        if not inspect.iscoroutinefunction(function):
            raise Misuse(f"{function!r}: a task must be an `async def`")
        title = name or function.__name__
        check_name(title)
        return TaskType(function, name=title, on_change=on_change, gate=gate)

    return register if function is None else register(function)


def check_on_change(on_change: str, *, what: str) -> None:
    if on_change not in get_args(OnChange):
        raise Misuse(f"{what}: on_change must be 'continue', 'park' or 'pin'")


def check_gate(gate: object) -> None:
    if gate is not None and not isinstance(gate, Gate):
        raise Misuse(f"{gate!r} is not a gate", hint="gate=holdfast.Gate(allow=[...])")


def check_name(name: str) -> None:
    """Refuse a name that no task can have; those with @ are the runtime's own."""
    if not 1 <= len(name) <= NAME_CHARS_MAX or name.startswith("@") or not name.isprintable():
        raise Misuse(
            f"task {name[:40]!r}: a name has 1 to {NAME_CHARS_MAX} printable characters and does not start with @"
        )


def _hint_text(parameter: inspect.Parameter | None) -> str:
    hint = "" if parameter is None else parameter.annotation
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def _signature(function: TaskFunction) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters:
        raise Misuse(f"{function.__name__}: a task must take the run as its first parameter")
    return signature.replace(parameters=parameters[1:])
