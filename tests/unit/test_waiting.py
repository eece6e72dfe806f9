"""Waiting for an event: in time, too late, and cancelled in the very moment it comes."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.waiting import running_beside, wait_event


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
