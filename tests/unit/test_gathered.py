"""Reads that are asked for at the same moment are one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.journal.postgres.verbs import gathered
from holdfast.journal.postgres.verbs.gathered import Gathered


class Squares:
    def __init__(self) -> None:
        self.reads: list[list[int]] = []
        self.error: Exception | None = None
        self.all = Gathered(self.read)

    async def read(self, asked: Sequence[int]) -> dict[int, int]:
        self.reads.append([*asked])
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return {n: n * n for n in asked if n >= 0}


async def test_what_is_asked_for_in_one_turn_is_read_together() -> None:
    squares = Squares()
    assert await asyncio.gather(*map(squares.all.get, (2, 3, -1, 2))) == [4, 9, None, 4]
    assert await squares.all.get(5) == 25
    assert squares.reads == [[2, 3, -1], [5]]


async def test_one_read_has_so_many_keys_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "KEYS_MAX", 2)
    squares = Squares()
    assert await asyncio.gather(*map(squares.all.get, range(5))) == [0, 1, 4, 9, 16]
    assert squares.reads == [[0, 1], [2, 3], [4]]


async def test_all_who_asked_get_the_error_and_the_next_one_reads_again() -> None:
    squares = Squares()
    squares.error = ValueError("no")
    assert await asyncio.gather(*map(squares.all.get, (1, 2)), return_exceptions=True) == [squares.error] * 2
    squares.error = None
    assert await squares.all.get(3) == 9


async def test_one_who_is_cancelled_takes_nothing_from_the_others() -> None:
    squares = Squares()
    first, second = (asyncio.create_task(squares.all.get(n)) for n in (1, 2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 4
    last = asyncio.create_task(squares.all.get(7))
    await asyncio.sleep(0)
    last.cancel()
    await squares.all.close()
    assert squares.reads[-1] == [7]
