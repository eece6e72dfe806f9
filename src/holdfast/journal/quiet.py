"""Whether a look at the journal can be left out, because nothing has happened in it since the last one.

For what is done beside tasks: notices, memory files, the hand-off. They look after a change, and once in a while: each
second in a process that serves one agent, much less often in one that serves hundreds.
"""

from __future__ import annotations

import asyncio

from holdfast.journal.contract import Journal

IDLE_LOOK_S = 1.0  # where a process serves one agent


class Quiet:
    """One who looks; `most_s` is the longest time without a look. 0: every look is made."""

    def __init__(self, journal: Journal, *, most_s: float) -> None:
        self._journal = journal
        self._most_s = most_s
        self._changes = 0
        self._looked_s = float("-inf")

    async def lasts(self) -> bool:
        """Whether nothing has changed. If it has, the caller looks now."""
        if not self._most_s:
            return False
        now, before = asyncio.get_running_loop().time(), self._changes
        self._changes = await self._journal.wait_change(timeout_s=0, seen=before)
        if self._changes == before and now - self._looked_s < self._most_s:
            return True
        self._looked_s = now
        return False
