"""Backups by themselves: what is due is run, and a person is told what changed.

`run_due` is one look: it backs up to the places whose time has come and tells news, once per
change. A timer of the system calls it (`holdfast backup due`), or a worker does (backup_loop.py).
What was told is recorded after it was told, so a notice that could not be delivered is tried again
with the next look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.places import read_places
from holdfast.backup.record import OLDER_HINT
from holdfast.backup.upkeep.due import due, find_trouble, news
from holdfast.backup.upkeep.prune import Pruned
from holdfast.core.clock import Clock
from holdfast.core.notices import NoticeKind, Notices, backup_notice, backup_older_folder_notice, prune_refused_notice
from holdfast.errors import BackupBusy, HoldfastError, PruneRefused
from holdfast.host.log import Log
from holdfast.layout.agent_home import AgentHome

Backup = Callable[[Sequence[str]], Awaitable[object]]


async def run_due(
    home: AgentHome, backup: Backup, *, every_s: float, clock: Clock, notices: Notices | None, log: Log | None = None
) -> tuple[str, ...]:
    """Back up to what is due, by `backup(names)`; then tell news. The names that were due."""
    names = due_now(home, every_s=every_s, now_ms=clock.wall_ms())
    if names:
        try:
            await backup(names)
        except BackupBusy as error:  # somebody backs up: no trouble, and no place has failed
            if log is not None:
                log.event("backup-busy", error=error.message)
        except HoldfastError as error:
            # It never came to the places: nothing was staged, or the engine is missing.
            _record(home, names, error, clock)
            if log is not None:
                log.event("backup-failed", code=error.code, error=error.message)
    await tell_warning(home, clock=clock, notices=notices, log=log)
    await tell_news(home, clock=clock, notices=notices, log=log)
    return names


def due_now(home: AgentHome, *, every_s: float, now_ms: int) -> tuple[str, ...]:
    names = [place.name for place in read_places(home.places_file)]
    return due(names, states_of(home).read(), now_ms=now_ms, every_ms=round(every_s * 1000))


async def tell_warning(home: AgentHome, *, clock: Clock, notices: Notices | None, log: Log | None = None) -> bool:
    """Tell what a backup found about the agent's folder; kept until it could be told."""
    states = states_of(home)
    text = states.warning()
    if not text:
        return False
    if log is not None:
        log.event(NoticeKind.BACKUP_OLDER_FOLDER.value, text=text)
    if notices is not None:
        notice = backup_older_folder_notice(text, OLDER_HINT, now_ms=clock.wall_ms())
        try:
            await notices.tell(notice)
        except (HoldfastError, OSError) as error:
            if log is not None:
                log.event("notice-failed", error=str(error))
            return False
    states.warn("")
    return True


async def tell_news(home: AgentHome, *, clock: Clock, notices: Notices | None, log: Log | None = None) -> int:
    """Tell what a person does not know yet about the agent's backups; how much was told."""
    states, told = states_of(home), 0
    stale_after_ms = round(home.settings.backup.stale_after_h * 3_600_000)
    for place in read_places(home.places_file):
        state = states.of(place.name)
        now_ms = clock.wall_ms()
        trouble = find_trouble(place.name, state, added_ms=place.added_ms, now_ms=now_ms, stale_after_ms=stale_after_ms)
        new = news(state, trouble, place=place.name)
        if new is None:
            continue
        notice = backup_notice(place.name, new.kind, new.text, new.hint, now_ms=now_ms)
        if log is not None:
            log.event(notice.kind, place=place.name, text=new.text)
        if notices is not None:
            try:
                await notices.tell(notice)
            except (HoldfastError, OSError) as error:
                if log is not None:
                    log.event("notice-failed", error=str(error))
                continue
        states.change(place.name, _told(new.kind))
        told += 1
    return told


def backup_of(home: AgentHome) -> Backup:
    """Backing up this agent: opened anew for every run, so that no key stays in memory between."""

    async def backup(names: Sequence[str]) -> None:
        from holdfast.backup.backups import open_backups

        backups = await open_backups(home)
        await backups.now(names)

    return backup


async def tell_prune(refused: Sequence[Pruned], *, notices: Notices | None, clock: Clock) -> None:
    """A prune that was refused because snapshots are gone is news at once."""
    for one in refused:
        if notices is not None and isinstance(one.error, PruneRefused):
            told = prune_refused_notice(one.place.name, one.error.message, one.error.hint, now_ms=clock.wall_ms())
            await notices.tell(told)


def _record(home: AgentHome, names: Sequence[str], error: HoldfastError, clock: Clock) -> None:
    from holdfast.backup.places.place_state import tried

    for name in names:
        states_of(home).change(
            name, lambda state: tried(state, now_ms=clock.wall_ms(), result=error.code, message=error.message)
        )


def _told(kind: str) -> Callable[[PlaceState], PlaceState]:
    return lambda state: msgspec.structs.replace(state, told=kind)
