"""Finding an app: `module:attribute` or `path/file.py:attribute`.

The attribute is a list of tasks (and tools), or a `holdfast.App`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from holdfast.app.declared import check_tools
from holdfast.errors import BadApp
from holdfast.runtime.task.task import TaskType
from holdfast.runtime.tool.tool import Tool, check_registered


class App:
    """Tasks and tools that belong together."""

    __slots__ = ("tasks", "tools")

    def __init__(self, tasks: Iterable[TaskType] = (), *, tools: Iterable[Tool[..., Any]] = ()) -> None:
        self.tasks = {task.name: task for task in tasks}
        self.tools = {tool.name: tool for tool in tools}
        for tool in self.tools.values():
            check_registered(tool)

    def task(self, name: str) -> TaskType:
        """The named task; without a name, the only one."""
        if not name and len(self.tasks) == 1:
            return next(iter(self.tasks.values()))
        found = self.tasks.get(name)
        if found is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            asked = f"has no task {name!r}" if name else "has several tasks"
            raise BadApp(f"the app {asked}", hint=f"choose a task with --task; the app has: {known}")
        return found


def load_app(spec: str) -> App:
    """The app that this text names. Raises BadApp."""
    place, colon, attribute = spec.rpartition(":")
    if not colon or not place or not attribute or "\0" in spec:
        raise BadApp(f"{spec!r} is not an app")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    value: object = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            names = [n for n, v in vars(module).items() if isinstance(v, (App, TaskType, list))]
            raise BadApp(
                f"{place} has no attribute {attribute!r}",
                hint=f"it has: {', '.join(sorted(n for n in names if not n.startswith('_')))}" if names else "",
            )
        value = getattr(value, name)
    app = _as_app(value, spec, module)
    check_tools(app.tasks.values(), app.tools.values())
    return app


def _as_app(value: object, spec: str, module: ModuleType) -> App:
    if isinstance(value, App):
        return value
    if isinstance(value, TaskType):
        return App([value], tools=_tools_of(module))
    if isinstance(value, (list, tuple, set, frozenset)):
        items = list(cast("Sequence[object]", value))
        tasks = [one for one in items if isinstance(one, TaskType)]
        tools = [cast("Tool[..., Any]", one) for one in items if isinstance(one, Tool)]
        if items and len(tasks) + len(tools) == len(items):
            return App(tasks, tools=[*tools, *_tools_of(module)])
    raise BadApp(f"{spec} is not a list of tasks or a holdfast.App")


def _tools_of(module: ModuleType) -> list[Tool[..., Any]]:
    return [one for one in vars(module).values() if isinstance(one, Tool)]


def _load_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except BadApp:
        raise
    except ModuleNotFoundError as error:
        raise BadApp(f"module {name!r} cannot be found: {error}") from error
    except (Exception, SystemExit) as error:  # the module is the user's: it may raise anything
        raise BadApp(f"module {name!r} failed on import: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadApp(f"there is no file {path}")
    name = f"holdfast_app_{path.stem}"
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise BadApp(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the user's: it may raise anything
        del sys.modules[name]
        raise BadApp(f"{path} failed on import: {type(error).__name__}: {error}") from error
    return module
