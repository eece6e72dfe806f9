"""Backups by themselves: what is due is run, and a person is told what changed.

`run_due` is one look: it backs up to the places whose time has come and tells news, once per
change. `backup_loop` looks again and again beside a worker; a timer of the system that calls
`holdfast backup now --due` does the same without one. What was told is recorded after it was
told, so a notice that could not be delivered is tried again with the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.app.agent_home import AgentHome
from holdfast.app.backup_places import states_of
from holdfast.backup.due import due, find_trouble, news
from holdfast.backup.place_state import PlaceState
from holdfast.backup.places import read_places
from holdfast.core.clock import Clock
from holdfast.core.ports import Notice, Notices
from holdfast.errors import HoldfastError
from holdfast.runtime.log import Log

LOOK_S = 60.0  # how soon a disk that was plugged in is seen, at most

Backup = Callable[[Sequence[str]], Awaitable[object]]


async def run_due(
    home: AgentHome, backup: Backup, *, every_s: float, clock: Clock, notices: Notices | None,
    log: Log | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Back up to what is due, by `backup(names)`; then tell news. The names that were due."""
    places = read_places(home.places_file)
    now_ms = clock.wall_ms()
    names = due(
        [place.name for place in places], states_of(home).read(),
        now_ms=now_ms, every_ms=round(every_s * 1000),
    )  # fmt: skip
    if names:
        try:
            await backup(names)
        except HoldfastError as error:
            # It never came to the places: nothing was staged, or the engine is missing.
            _record(home, names, error, clock)
            if log is not None:
                log.event("backup-failed", code=error.code, error=error.message)
    await tell_news(home, clock=clock, notices=notices, log=log)
    return names


async def tell_news(
    home: AgentHome, *, clock: Clock, notices: Notices | None, log: Log | None = None
) -> int:
    """Tell what a person does not know yet about the agent's backups; how much was told."""
    states, told = states_of(home), 0
    stale_after_ms = round(home.settings.backup.stale_after_h * 3_600_000)
    for place in read_places(home.places_file):
        state = states.of(place.name)
        now_ms = clock.wall_ms()
        trouble = find_trouble(
            place.name, state, added_ms=place.added_ms, now_ms=now_ms,
            stale_after_ms=stale_after_ms,
        )  # fmt: skip
        new = news(state, trouble, place=place.name)
        if new is None:
            continue
        kind = f"backup-{new.kind}" if new.kind else "backup-well"
        if log is not None:
            log.event(kind, place=place.name, text=new.text)
        if notices is not None:
            notice = Notice(
                notice_id=f"{kind}:{place.name}:{now_ms}", kind=kind, text=new.text,
                hint=new.hint, at_ms=now_ms,
            )  # fmt: skip
            try:
                await notices.tell(notice)
            except (HoldfastError, OSError) as error:
                if log is not None:
                    log.event("notice-failed", error=str(error))
                continue
        states.change(place.name, _told(new.kind))
        told += 1
    return told


async def backup_loop(
    home: AgentHome, backup: Backup, *, every_s: float, clock: Clock, notices: Notices | None,
    log: Log, look_s: float = LOOK_S,
) -> None:  # fmt: skip
    """Look what is due until cancelled. No failure of a backup ends it, nor the worker."""
    while True:
        try:
            await run_due(home, backup, every_s=every_s, clock=clock, notices=notices, log=log)
        except (HoldfastError, OSError) as error:
            log.event("backup-failed", error=str(error))
        await asyncio.sleep(min(look_s, every_s))


def _record(home: AgentHome, names: Sequence[str], error: HoldfastError, clock: Clock) -> None:
    from holdfast.backup.place_state import tried

    for name in names:
        states_of(home).change(
            name,
            lambda state: tried(
                state, now_ms=clock.wall_ms(), result=error.code, message=error.message
            ),
        )


def _told(kind: str) -> Callable[[PlaceState], PlaceState]:
    return lambda state: msgspec.structs.replace(state, told=kind)
