"""What long work reports while it runs: sentences, and how far it is.

The caller passes in where reports go: a command shows them on standard error
(cli/screen/progress.py), a worker passes nothing. Reports may come from any thread, and often: the
receiver decides how often it shows something.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

QUIET_S = 3.0  # how long a place may take to answer before a person reads which one is asked
AGAIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Files and bytes that are done, of so many; 0 where the whole is not known."""

    files: int = 0
    bytes: int = 0
    files_all: int = 0
    bytes_all: int = 0


class Progress(Protocol):
    def say(self, text: str, /) -> None:
        """A sentence for a person to read now."""
        ...

    def reached(self, what: str, amount: Amount, /) -> None:
        """How far `what` is."""
        ...


class Silent:
    def say(self, text: str, /) -> None:
        pass

    def reached(self, what: str, amount: Amount, /) -> None:
        pass


SILENT: Progress = Silent()


@asynccontextmanager
async def awaited(progress: Progress, what: str) -> AsyncGenerator[None, None]:
    """While the body waits for an answer: say whose, once it takes longer than a moment."""
    reporting = asyncio.create_task(_report(progress, what))
    try:
        yield
    finally:
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting


async def _report(progress: Progress, what: str) -> None:
    await asyncio.sleep(QUIET_S)
    progress.say(f"{what} ...")
    waited = QUIET_S
    while True:
        await asyncio.sleep(AGAIN_S)
        waited += AGAIN_S
        progress.say(f"{what}: no answer after {waited:.0f} s")
