"""Following a task: print what changed; on a terminal, redraw a table.

The journal is the only source: whichever worker runs the task, in whichever process, the same
lines appear. Nothing here can disturb the task; you can always stop following.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.cli.input.input_journal import unserved_text
from holdfast.cli.screen.screen import STATE_STYLES, ago, one_line, shown, talk
from holdfast.core.effect import CLASSES
from holdfast.core.ordinal import sort_key
from holdfast.core.step import StepState
from holdfast.errors import TaskUnfinished
from holdfast.journal.contract import TaskRow
from holdfast.journal.records import ENDED, StepView, TaskState, TaskView
from holdfast.views.tasks import failure_words, next_try_ms, step_name
from holdfast.views.unfinished import questions_of

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.app.handle import TaskHandle
    from holdfast.app.holdfast import Holdfast

UNSERVED_S = 2.0  # how long a task may wait unclaimed before we check for workers
STEPS_SHOWN_MAX = 30


class Screen(Protocol):
    def show(self, row: TaskRow, view: TaskView) -> None: ...
    def say(self, text: str) -> None: ...


async def follow(
    hf: Holdfast, handle: TaskHandle, *, app: str, quiet: bool, timeout_s: float | None
) -> Any:  # Any: the task's JSON result
    """Show progress until the task ends; its result, or the error that `result` raises."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    with _screen(quiet) as screen:
        rests = await _watch(hf, handle, screen, app=app, end=end)
    if not rests:
        why = "" if (text := await unserved_text(hf, await handle.row())) is None else f": {text}"
        raise TaskUnfinished(f"task {handle.id} has not ended within {timeout_s:g} s{why}")
    return await handle.result()


async def _watch(hf: Holdfast, handle: TaskHandle, screen: Screen, *, app: str, end: float | None) -> bool:
    """Show every change; True if the task has ended or needs a person."""
    began = time.monotonic()
    seen: tuple[int, TaskState] | None = None
    warned = False
    told: set[str] = set()
    async for row in handle.watch():
        if seen != (row.records, row.state):
            seen = (row.records, row.state)
            view = await handle.view()
            screen.show(row, view)
            _tell_questions(screen, row, view, told)
        if row.state in ENDED or row.state is TaskState.PARKED:
            return True
        now = time.monotonic()
        if end is not None and now >= end:
            return False
        if not warned and row.state is TaskState.QUEUED and now - began > UNSERVED_S:
            warned = True
            await _tell_unserved(hf, screen, row, app)
    return True


async def _tell_unserved(hf: Holdfast, screen: Screen, row: TaskRow, app: str) -> None:
    if (text := await unserved_text(hf, row)) is not None:
        screen.say(text)
        screen.say(f"hint: run `holdfast worker {app}` in another terminal, or use submit --run")


def _tell_questions(screen: Screen, row: TaskRow, view: TaskView, told: set[str]) -> None:
    if row.state is not TaskState.WAITING:
        return
    for one in questions_of(view):
        if one.ordinal not in told:
            told.add(one.ordinal)
            place = f"{one.task_id}/{one.ordinal}"
            screen.say(f"step {one.ordinal} waits for an approval: {one_line(one.question)}")
            screen.say(f"hint: `holdfast approval grant {place}` or `... refuse {place}`")


@contextmanager
def _screen(quiet: bool) -> Generator[Screen, None, None]:
    if quiet:
        yield _Silent()
    elif sys.stderr.isatty():
        with _live() as screen:
            yield screen
    else:
        yield _Lines()


class _Silent:
    """For programs: only the result and errors."""

    def show(self, row: TaskRow, view: TaskView) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class _Lines:
    """One line per change, for pipes and logs."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def show(self, row: TaskRow, view: TaskView) -> None:
        for ordinal in sorted(view.steps, key=sort_key):
            step = view.steps[ordinal]
            took = f", {took}" if (took := _took(step)) else ""
            line = f"step {ordinal} {step_name(view, step)} ({CLASSES[step.letter].name}): {_state(step)}{took}"
            if self._seen.get(ordinal) != line:
                self._seen[ordinal] = line
                talk(line)
        line = f"task {row.state.value}"
        if self._seen.get("") != line:
            self._seen[""] = line
            talk(line)

    def say(self, text: str) -> None:
        talk(text)


class _Live:
    """A table that is redrawn at every change."""

    def __init__(self, live: Any) -> None:  # Any: rich.live.Live, imported only on a terminal
        self._live = live

    def show(self, row: TaskRow, view: TaskView) -> None:
        self._live.update(_table(row, view), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(shown(text), markup=False, highlight=False)


@contextmanager
def _live() -> Generator[Screen, None, None]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
        yield _Live(live)


def _table(row: TaskRow, view: TaskView) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("step", "tool", "class", "state", "took"):
        table.add_column(column, no_wrap=column in ("class", "took"))
    ordinals = sorted(view.steps, key=sort_key)
    if len(ordinals) > STEPS_SHOWN_MAX:
        table.add_row("...", f"{len(ordinals) - STEPS_SHOWN_MAX} earlier steps", "", "", "")
    for ordinal in ordinals[-STEPS_SHOWN_MAX:]:
        step = view.steps[ordinal]
        table.add_row(
            ordinal,
            Text(shown(step_name(view, step))),
            CLASSES[step.letter].name,
            Text(_state(step), style=STATE_STYLES.get(step.state.value, "")),
            _took(step),
        )
    table.caption = Text(f"task {row.state.value}", style=STATE_STYLES.get(row.state.value, ""))
    table.caption_justify = "left"
    return table


def _state(step: StepView) -> str:
    text = step.state.value
    said = step.planned.gate
    if said is not None and said.refused:
        text += " (the gate refused it)"
    if step.step is not None and step.step.attempts > 1:
        text += f" (attempt {step.step.attempts})"
    if step.error and not step.closed and step.state not in (StepState.STARTED, StepState.PARKED):
        wait = f"; next try after {ago(after)}" if (after := _pause_ms(step)) else ""
        text += f": {one_line(failure_words(step.error))}{wait}"
    return text


def _took(step: StepView) -> str:
    return ago(step.closed_ms - step.attempts[-1].at_ms) if step.closed and step.attempts else ""


def _pause_ms(step: StepView) -> int:
    """From the end of the newest attempt to the next one: a length, because a line in a log is read later."""
    due_ms = next_try_ms(step)
    return max(0, due_ms - step.failures[-1].at_ms) if due_ms and step.failures else 0
