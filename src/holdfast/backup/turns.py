"""Which host backs up: hosts that share a journal take turns in it; any other agent has one host.

Two turns. Whoever makes, tests or restores a snapshot has the first for as long as that takes, so that no two hosts
continue the chain of heads at one place; its number is drawn in the journal too, so that no clock can give it twice.
The second is the duty of scheduled backups. The host that has it keeps it from one backup to the next, because each
snapshot holds that host's own folder; it gives it up when nothing could be backed up, and loses it when it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from holdfast.core.clock import SystemClock
from holdfast.core.waiting import running_beside
from holdfast.errors import BackupBusy, HoldfastError, IsStandby, NotEnrolled
from holdfast.host.machine import host_id
from holdfast.identity.lease.enrolment import own_role
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.statements.certificate import Role
from holdfast.journal.admin import SharedState
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.moved import check_not_moved

SNAPSHOT, DUTY, HEAD = "snapshot", "scheduled backups", "head"
SNAPSHOT_S = 600.0  # how long others wait for a host that died in it
DUTY_S = 1800.0  # above the time between two looks of a timer
EXTEND_S = 60.0


@asynccontextmanager
async def taking_snapshot(home: AgentHome) -> AsyncGenerator[None]:
    """While the block runs, no other host makes, tests or restores a snapshot. Raises BackupBusy."""
    shared = None
    with contextlib.suppress(HoldfastError):  # a test needs no server, and the journal itself says that it is away
        shared = await asyncio.to_thread(_find_shared, home)
    if shared is None:
        yield
        return
    async with turn_of_hosts(home, shared, SNAPSHOT, for_s=SNAPSHOT_S, extend_s=EXTEND_S) as other:
        if other:
            raise BackupBusy(f"another host is making or restoring a snapshot of this agent: {other}")
        yield


@asynccontextmanager
async def turn_of_hosts(
    home: AgentHome, shared: SharedState, name: str, *, for_s: float, extend_s: float
) -> AsyncGenerator[str]:
    """Empty where this host has the turn, which it keeps while the block runs; else who has it."""
    take = partial(_take, shared, home, name, for_s)
    other = await asyncio.to_thread(take)
    if other:
        yield other
        return
    try:
        async with running_beside(_extended(take, extend_s)):
            yield ""
    finally:
        with contextlib.suppress(HoldfastError):  # it ends by itself
            await asyncio.to_thread(shared.give_turn, name, holder=_holder(home))


def check_backs_up(home: AgentHome) -> None:
    """Only an instance that acts backs up: two chains of heads would be a fork. Raises MovedAway, IsStandby,
    NotEnrolled."""
    check_not_moved(home.instance)
    role = own_role(home.folder, home.instance, clock=SystemClock(), port=Sodium())
    if role is None:
        raise NotEnrolled(f"the folder {home.folder} is not in the roster of its agent: it backs up nothing")
    if role is not Role.PRIMARY:
        raise IsStandby(f"the folder {home.folder} is a standby of its agent: the instance that acts makes the backups")


def take_duty(home: AgentHome) -> str:
    """Empty where scheduled backups are this host's now; else who makes them. While the server cannot be reached every
    host that acts has the duty, and tells a person that nothing is backed up."""
    try:
        check_backs_up(home)
    except (IsStandby, NotEnrolled):
        return "the instance that acts"
    with contextlib.suppress(HoldfastError):
        shared = _find_shared(home)
        return "" if shared is None else _take(shared, home, DUTY, DUTY_S)
    return ""


def give_duty(home: AgentHome) -> None:
    with contextlib.suppress(HoldfastError):  # it ends by itself
        shared = _find_shared(home)
        if shared is not None:
            shared.give_turn(DUTY, holder=_holder(home))


@asynccontextmanager
async def keeping_duty(home: AgentHome) -> AsyncGenerator[None]:
    """While the block runs, the duty that was taken stays this host's."""
    async with running_beside(_extended(partial(take_duty, home), EXTEND_S)):
        yield


def next_number(home: AgentHome, *, above: int) -> int:
    """The number of the head after the one with number `above`: given to one host only. The first head has number 1,
    also where a run that failed has drawn it before."""
    shared = _find_shared(home) if above else None
    if shared is None:
        return above + 1
    return int(shared.change_text(HEAD, lambda text: str(max(int(text or 0), above) + 1)))


async def _extended(take: partial[str], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        with contextlib.suppress(HoldfastError):  # the server is away for a moment
            await asyncio.to_thread(take)


def _find_shared(home: AgentHome) -> SharedState | None:
    return journal_at(home.journal).find_shared()


def _take(shared: SharedState, home: AgentHome, name: str, for_s: float) -> str:
    who = f"{socket.gethostname()}:{home.folder}"
    return shared.take_turn(name, holder=_holder(home), who=who, for_s=for_s)


def _holder(home: AgentHome) -> str:
    return host_id(home.instance)
