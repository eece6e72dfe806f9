"""Waiting for an event, for at most so long.

Not by `asyncio.wait_for`: on Python 3.11 it swallows a cancel that comes in the same moment as the
event, and whoever was to end goes on for ever.
"""

from __future__ import annotations

import asyncio


async def wait_event(event: asyncio.Event, seconds: float) -> bool:
    """True where the event came within that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
