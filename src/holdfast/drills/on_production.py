"""Drills on production itself (`--production`): no shadow, the agent's own worker and its own files.

Two drills may run so. `process-kill` kills the worker process that serves; its supervising parent starts another one,
and the first step of the agent's own work that is recorded afterwards ends the recovery. `hand-off` kills nothing: it
reads production's hand-off file in a shadow without the journal, and compares it with the tasks that are open. The far
ends of production are not asked: the report says that effects were not counted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from holdfast.app.binder import open_journal
from holdfast.core.clock import SystemClock
from holdfast.drills.production import Production, gone_with_journal
from holdfast.drills.run import LOOK_S, WAIT_S, DrillFailed, DrillRun
from holdfast.errors import NotProven
from holdfast.host.shadow import pipe_with
from holdfast.journal.contract import Filter, Journal, SessionRow
from holdfast.layout.agent_home import AgentHome

T = TypeVar("T")
TASKS_ASKED = 3  # the newest open ones; the hand-off leaves older ones out where there are many


class OwnMachine:
    """This machine, without a shadow."""

    def start(
        self,
        words: Sequence[str],
        *,
        cwd: Path = Path("/"),
        more: Mapping[str, str] | None = None,
        typed: Sequence[tuple[str, str]] = (),
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        given = [(option, pipe_with(text)) for option, text in typed]
        try:
            return subprocess.Popen(
                [*words, *(word for option, fd in given for word in (option, str(fd)))],
                cwd=cwd,
                env={**os.environ, **(more or {})},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[fd for _, fd in given],
            )
        finally:
            for _, fd in given:
                os.close(fd)

    def forward(self, port: int) -> int:
        return port


def kill_worker(run: DrillRun) -> None:
    run.deviations.append("effects were not counted: the far ends of production belong to others")
    run.shadow = OwnMachine()
    home = run.production.home
    old = _find_worker(run.production)
    run.event("baseline_taken", f"worker {old.worker}, process {old.pid}, {old.tasks} tasks")
    run.fault("SIGKILL of the worker process", how="of production, at this moment", target=f"process {old.pid}")
    killed_ms = time.time_ns() // 1_000_000
    os.kill(old.pid, signal.SIGKILL)
    run.event("recovery_started", "the supervising parent starts a worker process again", at_ms=killed_ms)
    new = _wait_worker(home, old)
    seen_ms = time.time_ns() // 1_000_000
    text, ended_ms = _wait_step(run, after_ms=killed_ms)
    run.event("connectivity_restored", f"worker {new.worker}, process {new.pid}", at_ms=min(seen_ms, ended_ms))
    run.event("first_verified_step", text, at_ms=ended_ms)
    run.act("see what waits for a person", must=False)


def _find_worker(production: Production) -> SessionRow:
    """The worker on this machine that has most to do, as it was looked at: nothing is opened here. Raises NotProven."""
    boot = SystemClock().boot_id
    sessions = production.journal.sessions if production.journal is not None else ()
    found = [one for one in sessions if one.alive and one.boot_id == boot and _is_worker(one.pid)]
    if not found:
        raise NotProven("no worker of the agent runs on this machine", hint="start it: `holdfast worker APP`")
    chosen = max(found, key=lambda one: one.tasks)
    if not _is_worker(_parent_of(chosen.pid)):
        raise NotProven(
            f"process {chosen.pid} has no supervising parent that would start it again",
            hint="run the agent with `holdfast worker APP`",
        )
    return chosen


def _is_worker(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(b"holdfast" in one for one in words)


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _read(home: AgentHome, ask: Callable[[Journal], Awaitable[Sequence[T]]]) -> Sequence[T]:
    async def read() -> Sequence[T]:
        journal, _ = await open_journal(home.journal, create=False)
        try:
            return await ask(journal)
        finally:
            await journal.close()

    return asyncio.run(read())


def _wait_worker(home: AgentHome, old: SessionRow) -> SessionRow:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for one in _read(home, lambda journal: journal.list_sessions()):
            if one.alive and one.begun_ms > old.begun_ms and one.pid != old.pid:
                return one
        time.sleep(LOOK_S)
    raise DrillFailed(f"no worker began within {WAIT_S:g} s")


def _wait_step(run: DrillRun, *, after_ms: int) -> tuple[str, int]:
    """The first step of the agent's own work that succeeded after this time, and when. Raises NotProven."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for row in _read(run.production.home, lambda journal: journal.list_tasks(Filter(limit=100))):
            if row.changed_ms <= after_ms:
                continue
            for step in run.task(str(row.task_id))["steps"]:
                if step["state"] == "succeeded" and (ended_ms := run.ms(step["ended"])) > after_ms:
                    return f"step {step['ordinal']} of {row.task_id}", ended_ms
        time.sleep(0.1)
    raise NotProven(
        f"the worker came back, but did no step within {WAIT_S:g} s", hint="run the drill while the agent works"
    )


def read_handoff(run: DrillRun) -> None:
    asked = run.production.journal.open_tasks[:TASKS_ASKED] if run.production.journal is not None else ()
    if not asked:
        raise NotProven("no task is open: the hand-off has nothing to answer", hint="run it while the agent works")
    run.event("baseline_taken", f"{len(asked)} open tasks")
    run.fault("the journal is away", how="it is absent in a shadow; production is not touched", target="the journal")
    run.event("recovery_started", "from files alone")
    with run.machine(gone=gone_with_journal(run.production.home)):
        done = run.act("read where the agent was", "--json", why="its JSON is read").json()
        run.require("from files", done["source"] == "file", f"source: {done['source']}")
        for task in asked:
            said = [line for name in ("where", "pending") for line in done[name] if task in line]
            run.check("hand-off: open", bool(said), said[0] if said else f"nothing is said of task {task}")
        run.event("first_verified_step", f"{len(asked)} open tasks looked for in handoff.md")
