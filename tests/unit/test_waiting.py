"""Waiting for an event: in time, too late, and cancelled in the very moment it comes."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.waiting import lasting, running_beside, wait_event


async def test_it_says_whether_the_event_came() -> None:
    event = asyncio.Event()
    assert not await wait_event(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await wait_event(event, 10)


async def test_a_cancel_in_the_moment_of_the_event_is_not_swallowed() -> None:
    """`asyncio.wait_for` of Python 3.11 returns here, and the cancel is lost."""
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_event(event, 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_work_beside_that_fails_is_not_lost() -> None:
    async def fails() -> None:
        raise ValueError("the watcher is broken")

    with pytest.raises(ValueError, match="the watcher is broken"):
        async with running_beside(fails()):
            await asyncio.sleep(0.01)


class Panic(BaseException):
    """As a library raises it whose own code has failed."""


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), Panic("index out of bounds")])
async def test_lasting_work_survives_what_no_code_expects(error: BaseException) -> None:
    told, errors = list[BaseException](), [error]

    async def work() -> None:
        while errors:
            raise errors.pop()

    await lasting(work, told.append, again_s=0.0)
    assert told == [error]


async def test_lasting_work_ends_with_a_cancel() -> None:
    told = list[BaseException]()
    async with running_beside(lasting(lambda: asyncio.sleep(60), told.append, again_s=0.0)):
        await asyncio.sleep(0.01)
    assert told == []
