"""What a run has to tell while it goes on: sentences, and how far long work has come.

Whoever starts the work gives the two ways out; a command shows them on standard error
(cli/screen/progress.py), a worker leaves them out. Both may be called from any thread, and often: it is
the one who shows them who decides how often something is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

QUIET_S = 3.0  # how long a place may take to answer before a person is told who is asked
AGAIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Files and bytes that are done, of so many; 0 where the whole is not known."""

    files: int = 0
    bytes: int = 0
    files_all: int = 0
    bytes_all: int = 0


class News(Protocol):
    def say(self, text: str, /) -> None:
        """Something that a person should read now."""
        ...

    def far(self, what: str, amount: Amount, /) -> None:
        """How far `what` has come."""
        ...


class Silent:
    def say(self, text: str, /) -> None:
        pass

    def far(self, what: str, amount: Amount, /) -> None:
        pass


SILENT: News = Silent()


@asynccontextmanager
async def awaited(news: News, what: str) -> AsyncGenerator[None, None]:
    """While the body waits for somebody: say for whom, once it takes longer than a moment."""
    telling = asyncio.create_task(_tell(news, what))
    try:
        yield
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def _tell(news: News, what: str) -> None:
    await asyncio.sleep(QUIET_S)
    news.say(f"{what} ...")
    waited = QUIET_S
    while True:
        await asyncio.sleep(AGAIN_S)
        waited += AGAIN_S
        news.say(f"{what}: nothing yet after {waited:.0f} s")
