"""The door of a far end: a loopback socket, and visitors who can be held inside."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

BACKLOG = 256
INSIDE_S_MAX = 30


class Door(ABC):
    """Base of the far ends. Use it in an `async with` block: its port is known inside."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.inside = 0  # visitors who are held
        self._from_the_start = tls
        self._changed = asyncio.Condition()
        self._released = asyncio.Event()
        self._server: asyncio.Server | None = None

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One visit; the connection is closed afterwards."""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(
            self._visit, "127.0.0.1", port, backlog=BACKLOG, ssl=self._from_the_start
        )
        name: tuple[str, int] = self._server.sockets[0].getsockname()
        self.port = name[1]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if self._server is not None:
            self._server.close()

    async def wait_inside(self, count: int = 1) -> None:
        """Until that many visitors are held."""
        async with asyncio.timeout(INSIDE_S_MAX), self._changed:
            await self._changed.wait_for(lambda: self.inside >= count)

    def release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def hold(self) -> None:
        self.inside += 1
        async with self._changed:
            self._changed.notify_all()
        try:
            await self._released.wait()
        finally:
            self.inside -= 1

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.serve(reader, writer)
        writer.close()
