"""Which tools the code of a task can call, found by looking at it, without running it.

So a tool that cannot work is refused when its task is served, and `holdfast tool check` finds it without a list. What
is found is what the code names: as a global or closed-over variable, as an attribute of a module or object, in a list
or a table, also by helper functions of the same package. A tool that is looked up by a computed name is not found; its
contract is then checked when it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from holdfast.runtime.tool.tool import Tool


def tools_called(function: Callable[..., Any]) -> dict[str, Tool[..., Any]]:
    """By name. Of two with one name the first."""
    found: dict[str, Tool[..., Any]] = {}
    todo: list[object] = [inspect.unwrap(function)]
    package = _package(function)
    seen: set[int] = set()
    while todo:
        one = todo.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tool):
            tool = cast("Tool[..., Any]", one)
            found.setdefault(tool.name, tool)
        elif isinstance(one, FunctionType) and _package(one) == package:
            todo += _values_of(one)
    return found


def _package(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _values_of(function: FunctionType) -> Iterable[object]:
    """What the function's code names."""
    names = _names(function.__code__)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    known = {**{name: _content(cell) for name, cell in cells}, **_picked(function.__globals__, names)}
    for value in known.values():
        yield value
        if isinstance(value, ModuleType) or hasattr(value, "__dict__"):
            yield from _picked(vars(value), names).values()
        if isinstance(value, Mapping):
            yield from cast("Mapping[object, object]", value).values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield from cast("Iterable[object]", value)


def _names(code: CodeType) -> set[str]:
    """Names of globals and attributes, also in functions inside it."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _picked(scope: Mapping[str, object], names: set[str]) -> dict[str, object]:
    return {name: scope[name] for name in names if name in scope}


def _content(cell: Any) -> object:  # Any: a closure's cell
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
