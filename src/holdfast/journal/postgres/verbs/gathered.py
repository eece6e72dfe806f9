"""Reads that are asked for at the same moment, as one query: 500 who wait for their tasks look once, not 500 times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

KEYS_MAX = 500  # of one query


class Gathered(Generic[K, V]):
    """`read` gives what it finds of some keys. What is asked for in one turn of the event loop is read together."""

    def __init__(self, read: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._read = read
        self._asked: dict[K, None] = {}
        self._next: asyncio.Task[Mapping[K, V]] | None = None
        self._under_way: set[asyncio.Task[Mapping[K, V]]] = set()

    async def get(self, key: K) -> V | None:
        """Raises what the read raises."""
        if self._next is None or len(self._asked) == KEYS_MAX:
            self._asked = {}
            self._next = asyncio.get_running_loop().create_task(self._run(self._asked))
            self._under_way.add(self._next)
            self._next.add_done_callback(self._over)
        self._asked[key] = None
        return (await asyncio.shield(self._next)).get(key)

    async def _run(self, asked: dict[K, None]) -> Mapping[K, V]:
        await asyncio.sleep(0)
        if self._asked is asked:
            self._next = None
        return await self._read([*asked])

    def _over(self, task: asyncio.Task[Mapping[K, V]]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # raised to those who still wait

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._under_way:
            await asyncio.wait(self._under_way)
