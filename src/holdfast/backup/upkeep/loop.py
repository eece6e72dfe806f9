"""Backups beside a worker: a process of their own, started when a place is due.

The worker's process only looks at two small files. Staging, Borg and test restores run in a child
(`holdfast backup due`): they take neither the worker's event loop nor its memory, and nothing that
goes wrong in them reaches its tasks. When the worker stops, the child is asked to stop as well,
ends its Engine, and leaves nothing that counts.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from holdfast.backup.upkeep.run_due import due_now
from holdfast.backup.upkeep.schedule import parse_every
from holdfast.core.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.host.log import Log
from holdfast.layout.agent_home import AgentHome

LOOK_S = 60.0  # how soon a disk that was plugged in is seen, at most
NEWS_S = 600.0  # how soon the absence of backups is noticed where nothing is due
STOP_S = 20.0
SAID_CHARS_MAX = 500


@asynccontextmanager
async def kept_backups(
    home: AgentHome, *, every: str, clock: Clock, log: Log, look_s: float = LOOK_S
) -> AsyncGenerator[None, None]:
    """Backups go on while the body does. Raises BadInput for an interval that is none."""
    every_s = parse_every(every)
    looking = asyncio.create_task(_look(home, every=every, every_s=every_s, clock=clock, log=log, look_s=look_s))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def _look(home: AgentHome, *, every: str, every_s: float, clock: Clock, log: Log, look_s: float) -> None:
    ran_ms = 0
    while True:
        try:
            names = due_now(home, every_s=every_s, now_ms=clock.wall_ms())
            if names or clock.boot_ms() - ran_ms > NEWS_S * 1000:
                ran_ms = clock.boot_ms()
                await _run(home.folder, every, log)
        except (HoldfastError, OSError) as error:
            log.event("backup-failed", error=str(error))
        await asyncio.sleep(look_s)


async def _run(folder: Path, every: str, log: Log) -> None:
    words = ["-P", "-m", "holdfast", "backup", "due", "--every", every, "--home", str(folder)]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, said = await child.communicate()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                child.send_signal(signal.SIGINT)  # it ends its Borg before itself
                async with asyncio.timeout(STOP_S):
                    await child.wait()
        if child.returncode is None:
            child.kill()
            await child.wait()
    text = said.decode(errors="replace").strip()
    log.event("backup-looked", code=child.returncode, text=text[-SAID_CHARS_MAX:])
