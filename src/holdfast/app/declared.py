"""What is wrong with the tools and tasks of an app, said before the first task runs.

A Queryable tool without a lookup, a key window that is over before a second attempt could use it, a blocking tool whose
child process would start the whole script again: each of them works until the day something is in doubt. So they are
refused when a journal is opened to serve, with the line to write. One exception: where the journal has open steps of a
tool with a short window, its worker must start, or nothing would bring them to their end; then it is a warning.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.core.effect import Keyed
from holdfast.errors import BadInput, JournalDamaged, Misuse
from holdfast.journal.builds import Build
from holdfast.journal.contract import Filter, Journal
from holdfast.journal.records import ENDED, TaskState
from holdfast.runtime.task.task import TaskType
from holdfast.runtime.tool.tool import Tool, check_registered

TASKS_MAX = 10_000  # open tasks that are looked through
BUILD_CHARS_MAX = 100


def check_tools(tasks: Iterable[TaskType], tools: Iterable[Tool[..., Any]] = ()) -> list[Tool[..., Any]]:
    """All tools: those given and those that the tasks call. Raises Misuse where one can never work."""
    called = [task.called.values() for task in tasks if isinstance(task, TaskType)]  # pyright: ignore[reportUnnecessaryIsInstance] - border
    known = {id(tool): tool for each in called for tool in each}
    known |= {id(tool): tool for tool in tools}
    for tool in known.values():
        check_registered(tool)
    _check_guarded(known.values())
    return list(known.values())


def build_of(tasks: Iterable[TaskType], name: str, *, takes_over: Iterable[str] = (), drains: bool = False) -> Build:
    """The build that a session of these tasks is. Raises Misuse where a task is pinned and there is no build, BadInput
    for one that cannot be."""
    known = (task for task in tasks if isinstance(task, TaskType))  # pyright: ignore[reportUnnecessaryIsInstance] - border
    pins = frozenset(task.name for task in known if task.on_change == "pin")
    others = frozenset(takes_over)
    for one in (name, *others):
        if one and not (len(one) <= BUILD_CHARS_MAX and one.isascii() and one.isprintable() and " " not in one):
            raise BadInput(f"build {one!r}: a build has at most {BUILD_CHARS_MAX} letters, digits and signs, no spaces")
    if not name and (pins or others or drains):
        what = f"task {min(pins)} is pinned to the build that begins it" if pins else "builds are taken over or drained"
        raise Misuse(
            f"{what}, but no build is named",
            hint="name the build of this code: `holdfast worker APP --build ID`, or holdfast.open(..., build=ID)",
        )
    if name in others:
        raise BadInput(f"build {name} cannot take over its own tasks", hint="it finishes them anyway")
    return Build(name=name, pins=pins, takes_over=others, drains=drains)


async def check_windows(tools: Iterable[Tool[..., Any]], journal: Journal, *, lease_s: float) -> list[str]:
    """Warnings of tools with a short key window and open steps in the journal. Raises Misuse for one without."""
    short = {tool.name: text for tool in tools if (text := window_trouble(tool, lease_s=lease_s))}
    if not short:
        return []
    used = await _open_tools(journal)
    for name, text in short.items():
        if name not in used:
            raise Misuse(text, hint="give the window that the service documents, a shorter timeout_s, or a lookup")
    return list(short.values())


def window_trouble(tool: Tool[..., Any], *, lease_s: float) -> str:
    """Why a call in doubt could never be sent again under its key; empty where it can."""
    effect = tool.effect
    if not isinstance(effect, Keyed) or tool.finder is not None:
        return ""
    delay_s = tool.delay_ms / 1000
    needed_s = tool.timeout_s + lease_s + delay_s
    if effect.window_s > needed_s:
        return ""
    return (
        f"tool {tool.name}: window_s={effect.window_s:g} is too short: a call in doubt could never be sent again. "
        f"It must be longer than {needed_s:g} s: timeout_s {tool.timeout_s:g} + lease {lease_s:g} + "
        f"max_delay_s {delay_s:g}"
    )


async def _open_tools(journal: Journal) -> set[str]:
    """Names of the tools of open steps, in the oldest open tasks; damaged ones are the worker's to report."""
    states = frozenset(state for state in TaskState if state not in ENDED)
    rows = await journal.list_tasks(Filter(states=states, limit=TASKS_MAX, newest_first=False))
    found: set[str] = set()
    for row in rows:
        try:
            view = await journal.read_task(row.task_id)
        except JournalDamaged:
            continue
        found |= {step.tool for step in view.steps.values() if not step.closed}
    return found


def _check_guarded(tools: Iterable[Tool[..., Any]]) -> None:
    """A blocking tool of the script itself: its child process imports the script, and must not run it again."""
    child = next((one for one in tools if one.needs_child and one.function.__module__ == "__main__"), None)
    line = _starting_line() if child is not None else 0
    file = getattr(sys.modules["__main__"], "__file__", None)
    if child is None or not line or not file or _is_guarded(Path(file), line):
        return
    raise Misuse(
        f"tool {child.name} runs in a process of its own, which imports {Path(file).name} and would start your "
        f"program again at line {line}",
        hint='put the code that starts your program under `if __name__ == "__main__":`, or make the tool `async def`',
    )


def _starting_line() -> int:
    """The line of the script that is under way; 0 where that is not this thread's."""
    names = vars(sys.modules["__main__"])
    frame: FrameType | None = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "<module>":
            return frame.f_lineno
        frame = frame.f_back
    return 0


def _is_guarded(file: Path, line: int) -> bool:
    """Whether the line is in a block that a second import leaves out, or that cannot be told."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True
    around = next((one for one in body if one.lineno <= line <= (one.end_lineno or one.lineno)), None)
    return around is None or (isinstance(around, ast.If) and "__name__" in ast.unparse(around.test))
