"""Backups without a person: places that are due are backed up, and a person is notified of changes.

`run_due` looks once: it backs up to the places whose time has come and sends a notice for each
change. A timer of the system calls it (`holdfast backup due`), or a worker does (`kept_backups`).
A notice counts as sent after it was delivered, so one that failed is tried again at the next look.

A worker starts `holdfast backup due` as a child when a place is due: staging, the engine and test
restores take neither the worker's event loop nor its memory, and no failure there reaches its tasks.
When the worker stops, it asks the child to stop too; the child ends its engine and leaves nothing
that counts.

A system timer (systemd, or a line for cron) looks more often than backups are made: `backup due`
decides which places are due, so what was missed while the machine was off is caught up soon.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.places import read_places
from holdfast.backup.record import OLDER_HINT
from holdfast.backup.turns import give_duty, keeping_duty, take_duty
from holdfast.backup.upkeep.due import due, find_trouble, unreported
from holdfast.backup.upkeep.prune import Pruned
from holdfast.core.clock import Clock
from holdfast.core.notices import Notice, Notices, backup_notice, backup_older_folder_notice, prune_refused_notice
from holdfast.core.waiting import running_beside
from holdfast.errors import BackupBusy, BadInput, HoldfastError, PruneRefused
from holdfast.host.log import Log
from holdfast.host.private_files import ensure_private_folder, write_atomically
from holdfast.layout.agent_home import AgentHome

if TYPE_CHECKING:
    from holdfast.backup.report import NowReport

Backup = Callable[[Sequence[str]], Awaitable[object]]


async def run_due(
    home: AgentHome, backup: Backup, *, every_s: float, clock: Clock, notices: Notices | None
) -> tuple[str, ...]:
    """Back up to what is due, by `backup(names)`; then tell news. The names that were due. Nothing is done where
    another host of the agent makes the scheduled backups."""
    if await asyncio.to_thread(take_duty, home):
        return ()
    async with keeping_duty(home):
        names = due_now(home, every_s=every_s, now_ms=clock.wall_ms())
        if names:
            await _back_up(home, backup, names, clock)
        await notify_warning(home, clock=clock, notices=notices)
        await notify_changes(home, clock=clock, notices=notices)
    states = states_of(home).read()
    if names and all(name in states and states[name].failures for name in names):
        await asyncio.to_thread(give_duty, home)  # another host may reach what this one does not
    return names


async def _back_up(home: AgentHome, backup: Backup, names: Sequence[str], clock: Clock) -> None:
    try:
        await backup(names)
    except BackupBusy:
        pass  # another process backs up: no place has failed
    except HoldfastError as error:
        # It never came to the places: nothing was staged, or the engine is missing.
        for name in names:
            states_of(home).tried(name, error, now_ms=clock.wall_ms())


def due_now(home: AgentHome, *, every_s: float, now_ms: int) -> tuple[str, ...]:
    names = [place.name for place in read_places(home.places_file)]
    return due(names, states_of(home).read(), now_ms=now_ms, every_ms=round(every_s * 1000))


async def notify_warning(home: AgentHome, *, clock: Clock, notices: Notices | None) -> bool:
    """Send the kept warning about the agent's folder, if there is one; kept until it was delivered."""
    states = states_of(home)
    text = states.warning()
    if not text or not await _sent(backup_older_folder_notice(text, OLDER_HINT, now_ms=clock.wall_ms()), notices):
        return False
    states.warn("")
    return True


async def notify_changes(home: AgentHome, *, clock: Clock, notices: Notices | None) -> int:
    """Send a notice for each change in the state of the places; how many."""
    states, told = states_of(home), 0
    stale_after_ms = round(home.settings.backup.stale_after_h * 3_600_000)
    for place in read_places(home.places_file):
        state = states.of(place.name)
        now_ms = clock.wall_ms()
        trouble = find_trouble(place.name, state, added_ms=place.added_ms, now_ms=now_ms, stale_after_ms=stale_after_ms)
        new = unreported(state, trouble, place=place.name)
        if new is None:
            continue
        if await _sent(backup_notice(place.name, new.kind, new.text, new.hint, now_ms=now_ms), notices):
            states.change(place.name, _told(new.kind))
            told += 1
    return told


async def _sent(notice: Notice, notices: Notices | None) -> bool:
    """Whether a person has it, as far as there is a way to them."""
    try:
        if notices is not None:
            await notices.tell(notice)
    except (HoldfastError, OSError):
        return False
    return True


def backup_of(home: AgentHome, on_made: Callable[[NowReport], None] = lambda _: None) -> Backup:
    """Backs up this agent; opens it for every run, so that no key stays in memory between."""

    async def backup(names: Sequence[str]) -> None:
        from holdfast.backup.backups import open_backups

        on_made(await (await open_backups(home)).now(names))

    return backup


async def notify_refused_prunes(refused: Sequence[Pruned], *, notices: Notices | None, clock: Clock) -> None:
    """A prune that was rejected because snapshots are missing is reported at once."""
    for one in refused:
        if notices is not None and isinstance(one.error, PruneRefused):
            told = prune_refused_notice(one.place.name, one.error.message, one.error.hint, now_ms=clock.wall_ms())
            await notices.tell(told)


def _told(kind: str) -> Callable[[PlaceState], PlaceState]:
    return lambda state: msgspec.structs.replace(state, notified=kind)


LOOK_MIN = 10  # minutes between two looks
EVERY_S_MIN = 300.0
EVERY_S_MAX = 31 * 86_400.0
_UNITS = {"m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`unit` is the name of the files without their ends."""

    unit: str
    service: str
    timer: str
    cron: str


def parse_every(text: str) -> float:
    """Seconds of `30m`, `1h`, `1d`. Raises BadInput."""
    try:
        seconds = float(text[:-1]) * _UNITS[text[-1:]]
    except (ValueError, KeyError):
        raise BadInput(f"{text!r} is not a valid interval", hint="use for example 30m, 1h or 1d") from None
    if seconds < EVERY_S_MIN:
        raise BadInput(f"the interval {text!r} is too short: use at least 5m", hint="use for example 30m, 1h or 1d")
    if not seconds <= EVERY_S_MAX:
        raise BadInput(f"the interval {text!r} is too long: use at most 31d", hint="use for example 30m, 1h or 1d")
    return seconds


def make_schedule(home: Path, *, agent: str, every: str) -> Schedule:
    """For the agent in this folder, run by the Python that runs this."""
    parse_every(every)
    return make_units(
        ("backup", "due", "--every", every, "--home", str(home)),
        unit=f"holdfast-backup-{_unit_name(agent)}",
        does=f"Backups of the agent {agent}",
        looks=f"Look which backups of the agent {agent} are due",
        calendar=f"*:0/{LOOK_MIN}",
        cron=f"*/{LOOK_MIN} * * * *",
    )


def make_drill_schedule(home: Path, *, agent: str) -> Schedule:
    """Once a day, at night, whatever drill is due and needs no person."""
    return make_units(
        ("drill", "run", "--due", "--home", str(home)),
        unit=f"holdfast-drill-{_unit_name(agent)}",
        does=f"Drills of the agent {agent}",
        looks=f"Look which drills of the agent {agent} are due",
        calendar="*-*-* 03:30:00",
        cron="30 3 * * *",
    )


def make_units(arguments: Sequence[str], *, unit: str, does: str, looks: str, calendar: str, cron: str) -> Schedule:
    words = [sys.executable, "-m", "holdfast", *arguments]
    service = (
        f"[Unit]\nDescription={does}\n\n"
        f"[Service]\nType=oneshot\nExecStart={_escaped(words)}\n"
        "Nice=10\nIOSchedulingClass=idle\nUMask=0077\n"
    )
    timer = (
        f"[Unit]\nDescription={looks}\n\n"
        f"[Timer]\nOnCalendar={calendar}\nRandomizedDelaySec=60\nPersistent=true\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )
    line = f"{cron} {' '.join(map(shlex.quote, words))}".replace("%", r"\%")
    return Schedule(unit=unit, service=service, timer=timer, cron=line)


def units_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "systemd" / "user"


def install(schedule: Schedule, folder: Path) -> tuple[Path, Path]:
    """Write both files; nothing is started. Safe to repeat."""
    if not folder.is_dir():
        ensure_private_folder(folder)
    service, timer = folder / f"{schedule.unit}.service", folder / f"{schedule.unit}.timer"
    write_atomically(service, schedule.service.encode())
    write_atomically(timer, schedule.timer.encode())
    return service, timer


def _unit_name(agent: str) -> str:
    safe = "".join(one if one.isascii() and one.isalnum() else "-" for one in agent)
    return safe.strip("-").lower() or "agent"


def _escaped(words: list[str]) -> str:
    """As systemd reads a command line: quotes, and what it would replace is doubled."""
    doubled = str.maketrans({"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"})
    return " ".join(f'"{word.translate(doubled)}"' for word in words)


LOOK_S = 60.0  # how soon a disk that was plugged in is seen, at most
NEWS_S = 600.0  # how soon the absence of backups is noticed where nothing is due
STOP_S = 20.0
SAID_CHARS_MAX = 500


@asynccontextmanager
async def kept_backups(
    home: AgentHome, *, every: str, clock: Clock, log: Log, look_s: float = LOOK_S, turn: asyncio.Lock | None = None
) -> AsyncGenerator[None, None]:
    """Backups run while the body runs; those of several agents one after the other, by their `turn`. Raises BadInput
    for a bad interval."""
    every_s, turn = parse_every(every), turn or asyncio.Lock()
    looking = _look(home, every=every, every_s=every_s, clock=clock, log=log, look_s=look_s, turn=turn)
    async with running_beside(looking):
        yield


async def _look(
    home: AgentHome, *, every: str, every_s: float, clock: Clock, log: Log, look_s: float, turn: asyncio.Lock
) -> None:
    ran_ms = 0
    while True:
        try:
            # Beside the loop: the journal may be asked, and a server that is away takes its time.
            names = await asyncio.to_thread(due_now, home, every_s=every_s, now_ms=clock.wall_ms())
            if names or clock.boot_ms() - ran_ms > NEWS_S * 1000:
                ran_ms = clock.boot_ms()
                if not await asyncio.to_thread(take_duty, home):
                    async with turn:
                        await _run(home.folder, every, log)
        except (HoldfastError, OSError) as error:
            log.event("backup-failed", error=str(error))
        await asyncio.sleep(look_s)


async def _run(folder: Path, every: str, log: Log) -> None:
    words = ["-P", "-m", "holdfast", "backup", "due", "--every", every, "--home", str(folder)]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, said = await child.communicate()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                child.send_signal(signal.SIGINT)  # it ends its engine before itself
                async with asyncio.timeout(STOP_S):
                    await child.wait()
        if child.returncode is None:
            child.kill()
            await child.wait()
    text = said.decode(errors="replace").strip()
    log.event("backup-looked", code=child.returncode, text=text[-SAID_CHARS_MAX:])
