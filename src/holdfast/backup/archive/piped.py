"""An asynchronous stream of pieces, for code that reads as from a file.

The reader of archives is plain code that runs in a thread; Borg's output comes in pieces on the
event loop. Each piece is fetched when the thread asks for it, so no more than one is ever held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none only at the end."""
        ...


async def read_through(pieces: AsyncIterator[bytes], work: Callable[[Readable], T]) -> T:
    """Do the work in a thread, reading from the pieces. What the stream raises, the work gets."""
    return await asyncio.to_thread(work, _Pieces(pieces, asyncio.get_running_loop()))


class _Pieces:
    def __init__(self, pieces: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = pieces
        self._loop = loop
        self._piece = b""
        self._at = 0

    def read(self, size: int, /) -> bytes:
        while self._at >= len(self._piece):
            fetched = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
            if fetched is None:
                return b""
            self._piece, self._at = fetched, 0
        found = self._piece[self._at : self._at + size]
        self._at += len(found)
        return found

    async def _next(self) -> bytes | None:
        return await anext(self._pieces, None)
