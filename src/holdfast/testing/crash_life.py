"""Lives of a task under test: `python -m holdfast.testing.crash_life` gets one `LifeOrder` a line on standard input.

Each life is a process: a fork of this one, which has only loaded the code; or this one itself, where a fork would
differ from a fresh start. It opens the journal of the trial, sends the request as its caller would, serves it until it
ends, and writes each boundary that it reaches to a file. At the one that its order names, it kills itself: SIGKILL, as
the kernel would. A second life gets the same order without that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.app.binder import KEYS
from holdfast.app.loading import App, load_app
from holdfast.app.open import open as open_holdfast
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.decoding import decode_json
from holdfast.drills.boundaries import Boundary, WatchedJournal
from holdfast.errors import BadApp, HoldfastError, TaskCancelled, TaskFailed, TaskParked, TaskUnfinished
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.layout.engine_settings import Settings

if TYPE_CHECKING:
    from holdfast.journal.contract import Journal

REQUEST = "crash-everywhere"


class LifeOrder(msgspec.Struct, frozen=True, kw_only=True):
    path: tuple[str, ...]  # sys.path of the test
    app: str  # `module:task` or `file.py:task`
    task: str
    args: dict[str, Any]  # Any: JSON arguments of the task
    journal: str
    secrets: dict[str, str]
    settings: dict[str, Any]  # Any: of holdfast.Settings
    log: str  # the file for what it prints
    lines: str  # the file that gets a line for each boundary, and one for the end
    patience_s: float
    die_at: str = ""
    die_after_s: float = 0.0  # so long after that boundary


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a life writes: a boundary with its time, or how it ended."""

    boundary: Boundary | None = None
    at_s: float = 0.0
    state: str = ""
    text: str = ""


class Life:
    def __init__(self, order: LifeOrder) -> None:
        self._order = order
        self._lines = os.open(order.lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def reach(self, boundary: Boundary) -> None:
        self.say(Line(boundary=boundary, at_s=time.monotonic()))
        if boundary.name != self._order.die_at:
            return
        if not self._order.die_after_s:
            _die()
        timer = threading.Timer(self._order.die_after_s, _die)
        timer.daemon = True
        timer.start()

    def say(self, line: Line) -> None:
        os.write(self._lines, msgspec.json.encode(line) + b"\n")

    def wrap(self, journal: Journal) -> Journal:
        return cast("Journal", WatchedJournal(journal, self.reach))

    async def run(self, app: App) -> None:
        order, settings = self._order, Settings(**self._order.settings)
        keep_secrets(Path(order.journal), order.secrets)
        tasks, tools = app.tasks.values(), app.tools.values()
        async with open_holdfast(order.journal, tasks=tasks, tools=tools, settings=settings, wrap=self.wrap) as hf:
            handle = await hf.submit(order.task, request_id=REQUEST, **order.args)
            state, text = "succeeded", ""
            try:
                await handle.result(order.patience_s)
            except TaskParked as error:
                state, text = "parked", f"step {error.ordinal}: {error.question}" if error.ordinal else error.question
            except (TaskFailed, TaskCancelled) as error:
                state, text = "failed", error.message
            except TaskUnfinished as error:
                state, text = "unfinished", error.message
            self.say(Line(state=state, text=text))


def keep_secrets(journal: Path, secrets: Mapping[str, str]) -> None:
    """As `holdfast secret set` would; a later life finds them."""
    if secrets and not journal.exists():
        entropy = SystemEntropy()
        keys = load_or_create(journal.parent / KEYS, journal_exists=False, entropy=entropy)
        file = SecretFile(journal.parent, keys=keys, clock=SystemClock(), entropy=entropy)
        for name in secrets.keys() - file.list_secrets().keys():
            file.set(name, secrets[name])


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    answers = os.dup(1)
    for line in sys.stdin.buffer:
        order = decode_json(line, LifeOrder)
        _print_to(order.log)
        if not _can_fork():
            _live(order)
            return
        _load(order)  # once: every fork has it
        child = os.fork()
        if not child:
            os.close(answers)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _live(order)
            sys.stdout.flush()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, b"%d\n" % code)


def _live(order: LifeOrder) -> None:
    life = Life(order)
    try:
        asyncio.run(life.run(_load(order)))
    except HoldfastError as error:
        life.say(Line(state="broken", text=f"{error.code}: {error.message}" + (f" ({error.hint})" * bool(error.hint))))


_loaded: list[App | BadApp] = []


def _load(order: LifeOrder) -> App:
    """The app, as it is right after its import."""
    if not _loaded:
        sys.path[:] = order.path
        try:
            _loaded.append(load_app(order.app))
        except BadApp as error:
            _loaded.append(error)
    if isinstance(_loaded[0], BadApp):
        raise _loaded[0]
    return _loaded[0]


def _can_fork() -> bool:
    """Whether a fork is what a fresh process would be. Code that starts threads when it is loaded gets a fresh one."""
    tasks = "/proc/self/task"
    alone = not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1
    return alone and threading.active_count() == 1 and sys.platform == "linux"


def _print_to(path: str) -> None:
    with open(path, "ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)


if __name__ == "__main__":
    main()
