"""How a function is named so that another process finds the same one.

By module where a fresh interpreter with our `sys.path` would import the same file; by file where
it would not: the script that was started (`__main__`), or an app loaded from a path. A script is
loaded in the child under another name than `__main__`, so what it does under
`if __name__ == "__main__":` is not done again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, cast

from holdfast.errors import ToolNotImportable

Function = Callable[..., Any]  # Any: a tool takes and returns whatever JSON its author chose

_SCRIPT = "__holdfast_script__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A function by its place: importable module, or file to load under that module name."""

    module: str
    name: str  # qualified: `Class.method`
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"


def locate(function: Function) -> Target:
    """Where a child process finds this function. Raises ToolNotImportable.

    Ask once its module is complete: while a decorator runs, the name is not bound yet.
    """
    name: str = getattr(function, "__qualname__", "")
    shown = name or repr(function)
    if not name or "<lambda>" in name:
        raise ToolNotImportable(f"{shown} has no name by which another process could find it")
    if "<locals>" in name:
        raise ToolNotImportable(f"{shown} is defined inside a function: no process can find it there")
    module = sys.modules.get(function.__module__)
    if module is None or _find(module, name) is not function:
        raise ToolNotImportable(
            f"module {function.__module__} holds something else under the name {name}",
            hint="keep the tool under the name it was defined with, at the top level of its module",
        )
    return _place(module, name)


def resolve(target: Target) -> Function:
    """Import the target's module, once per process, and return the function.

    Raises ToolNotImportable; whatever the module's own code raises is its cause.
    """
    try:
        module = _load(target) if target.file else import_module(target.module)
    except Exception as error:
        kind = type(error).__name__
        raise ToolNotImportable(f"cannot import {target.file or target.module}: {kind}: {error}") from error
    found = _find(module, target.name)
    if not callable(found):
        raise ToolNotImportable(f"{target.file or target.module} has no function {target.name}")
    return cast(Function, found)


def _place(module: ModuleType, name: str) -> Target:
    spec = cast("ModuleSpec | None", getattr(module, "__spec__", None))
    file: str | None = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        if spec is not None:
            return Target(module=spec.name, name=name)  # started with `python -m`
        if file is None:
            raise ToolNotImportable(f"{name} was typed in, not read from a file: no other process can find it")
        return Target(module=_SCRIPT, name=name, file=_absolute(file))
    if file is not None and not _imports_same(module.__name__, file):
        return Target(module=module.__name__, name=name, file=_absolute(file))
    return Target(module=module.__name__, name=name)


def _imports_same(name: str, file: str) -> bool:
    """Whether a plain import of the name leads to this very file."""
    parent, _, _ = name.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and path is None:
        return False
    spec = PathFinder.find_spec(name, path)
    return spec is not None and spec.origin is not None and _absolute(spec.origin) == _absolute(file)


def _load(target: Target) -> ModuleType:
    loaded = sys.modules.get(target.module)
    if loaded is not None and getattr(loaded, "__file__", None) == target.file:
        return loaded
    spec = spec_from_file_location(target.module, target.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{target.file} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[target.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[target.module]
        raise
    return module


def _find(module: ModuleType, name: str) -> object:
    """The function under a qualified name, out of the Tool object that may wrap it."""
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return getattr(found, "function", found)


def _absolute(path: str) -> str:
    return os.path.realpath(path)
