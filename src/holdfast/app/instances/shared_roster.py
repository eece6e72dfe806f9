"""Whether the agent of a shared journal has a roster, for folders that have the journal's keys and no identity.

With the keys and the database's password a folder reaches the journal, but nothing in it shows that it is an instance.
Where the journal has a roster such a folder is a copy, as every folder is that is not enrolled (standing.py). Nothing
here loads the rooms of keys unless there is a roster: an agent without one pays one look.

`AskedJournal` is for processes that serve no tasks: people who submit and decide. Reading is always allowed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.journal_address import INSTANCE, JournalAddress
from holdfast.core.waiting import lasting, running_beside
from holdfast.errors import AgentElsewhere, HoldfastError
from holdfast.host.log import Log
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.layout.agent_home import peek_home
from holdfast.layout.moved import EVICTED

ROSTER_TEXT = "roster"  # in the shared journal
WATCH_S = 30.0
WRITES = frozenset(
    {
        "add_notice",
        "add_remarks",
        "append",
        "claim",
        "close_notice",
        "close_remarks",
        "drop",
        "forget_folder",
        "open_session",
        "put_blob",
        "put_blobs",
        "retain",
        "submit",
    }
)


def has_roster(address: JournalAddress) -> bool:
    """Blocks. Raises what reaching the journal raises."""
    admin = journal_at(address)
    shared = admin.find_shared() if admin.hosts else None
    return shared is not None and bool(shared.read_text(ROSTER_TEXT))


def is_asked(address: JournalAddress) -> bool:
    """Whether what people write into this journal must be asked for first (check_no_copy)."""
    return journal_at(address).hosts or os.path.lexists(address.instance / EVICTED) or _has_roster_file(address.folder)


def _has_roster_file(folder: Path) -> bool:
    home = peek_home(folder)
    return home is not None and os.path.lexists(home.roster_file)


def check_keys_count(folder: Path) -> None:
    """Raises KeysReplaced where a worker has found that the agent has other keys now."""
    if os.path.lexists(folder / INSTANCE / EVICTED) and (home := peek_home(folder)) is not None:
        from holdfast.app.eviction import check_not_evicted  # the rooms of keys: only where they are used

        check_not_evicted(home)


def check_no_copy(address: JournalAddress, *, clock: Clock, work: bool = False) -> None:
    """What people do is written by enrolled folders alone, whatever their role is; but `work` that only the journal in
    this folder gets needs the one that acts. Blocks. Raises NotEnrolled, KeysReplaced, IsStandby."""
    check_keys_count(address.folder)
    alone = not journal_at(address).hosts
    if _has_roster_file(address.folder) if alone else has_roster(address):
        from holdfast.app.instances.standing import (
            StandingKind,
            standing_at,
        )  # the rooms of keys: only where there is one

        standing = standing_at(address, clock=clock)
        if standing.kind is StandingKind.COPY or (work and alone):
            standing.check()


@asynccontextmanager
async def stopped_by_roster(
    address: JournalAddress, stop: Callable[[], None], *, log: Log, look_s: float = WATCH_S
) -> AsyncGenerator[None]:
    """While the block runs, a folder without an identity stops once the agent's owner has enrolled instances. Then this
    raises AgentElsewhere: the next start waits, and says why."""
    ended: list[str] = []

    async def watch() -> None:
        while not ended:
            await asyncio.sleep(look_s)
            try:
                if await asyncio.to_thread(has_roster, address):
                    ended.append(f"the agent of {address} has a roster now, and this folder is not enrolled")
            except (HoldfastError, OSError):
                continue  # a journal that is away ends the session by itself
        log.event("stopping", reason=ended[0])
        stop()

    async with running_beside(lasting(watch, partial(log.failure, "roster-unread"), again_s=look_s)):
        yield
    if ended:
        raise AgentElsewhere(ended[0])


class AskedJournal:
    """A journal of an agent with several instances, or of a folder that was locked out: before the first write it is
    asked whether this folder is a copy. Any: what the port takes is passed on as it is."""

    def __init__(self, journal: Journal, address: JournalAddress, *, clock: Clock) -> None:
        self._journal, self._address, self._clock = journal, address, clock
        self._asked = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._journal, name)
        if self._asked or name not in WRITES:
            return found

        async def write(*given: Any, **named: Any) -> Any:
            await asyncio.to_thread(check_no_copy, self._address, clock=self._clock, work=True)
            self._asked = True
            return await found(*given, **named)

        return write
