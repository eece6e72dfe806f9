"""Worker processes of the demo: real ones, without the parent that would start them again.

So a kill is final here, and the next worker is clearly another process. `python -m holdfast.demo.workers PARENT ORDER`
is such a process: it dies with its parent, which under `holdfast worker` is the worker's own doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.app.worker import Order
from holdfast.app.worker import main as serve
from holdfast.errors import Terminal
from holdfast.host.hardening import die_with_parent

STOP_S_MAX = 5.0
LOG_CHARS_SHOWN = 600


class DemoFailed(Terminal):
    """The demo itself could not continue; that says nothing about the promises.
    Run it again with `--keep` and read `worker-*.log` in its folder."""

    code = "demo-failed"
    default_hint = "run `holdfast demo --folder DIR` and look at worker-*.log in that folder"


async def end(process: Process, by: signal.Signals) -> None:
    """Send the signal if it still runs; returns when it has ended. Not by `process.kill()`: of one that ends at that
    moment it takes away the exit code, and asyncio then prints a warning about an unknown child."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, by)
    await process.wait()


class Worker:
    """One worker process."""

    def __init__(self, process: Process, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    async def kill(self) -> None:
        """SIGKILL; returns when the process has ended."""
        await end(self._process, signal.SIGKILL)

    async def wait_ended(self) -> None:
        await self._process.wait()

    async def stop(self) -> None:
        """Ask it to end, then make it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                await end(self._process, signal.SIGTERM)
        await self.kill()

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far; other lines are left out."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def check_alive(self) -> None:
        code = self._process.returncode
        if code is not None:
            said = self._log.read_text(errors="replace")[-LOG_CHARS_SHOWN:].strip()
            raise DemoFailed(f"worker {self.pid} ended by itself (exit code {code}): {said}")


@contextlib.asynccontextmanager
async def start_worker(
    order: Order, *, words: Sequence[str] = (), log: Path, environment: Mapping[str, str], give: Sequence[int] = ()
) -> AsyncGenerator[Worker]:
    """Start a worker process; on leaving it is killed if it still lives. `words` name another program than this
    module, and `give` the descriptors that it gets."""
    program = words or ("holdfast.demo.workers", str(os.getpid()))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", *program, json.dumps(asdict(order))),
            stdin=DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env={**os.environ, **environment},
            pass_fds=give,
            process_group=0,  # Ctrl-C reaches the demo alone, which ends its workers in order
        )
    finally:
        os.close(descriptor)
    worker = Worker(process, log)
    try:
        yield worker
    finally:
        await worker.kill()


if __name__ == "__main__":
    _, parent, text = sys.argv
    die_with_parent(int(parent))
    sys.exit(serve(text))
