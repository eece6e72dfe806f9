"""What is wrong with this machine or journal, and the one command that fixes it.

Changes nothing: a journal that stopped at a failed sync is not opened, because the first process
that opens it alone repairs it, and a person who only looks has not asked for that. Every check
reports something, so that a clean result shows what it is based on.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.app.binder import INSTANCE, KEYS, open_file_journal
from holdfast.backup.open_engine import describe_engine
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.place_state import PlaceState
from holdfast.backup.places.places import Place, check_there, read_places, shared_domains
from holdfast.backup.upkeep.due import find_trouble
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.version import find_version
from holdfast.errors import EXIT_JOURNAL, HoldfastError, JournalDamaged
from holdfast.host.private_files import check_place, check_private_file, check_private_folder
from holdfast.identity.journal_keys.keyfile import is_pointer, load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter, Journal
from holdfast.journal.records import TaskState
from holdfast.layout.agent_home import AgentHome, find_home, load_home
from holdfast.layout.engine_settings import Settings
from holdfast.layout.settings import NAME

FREE_BYTES_MIN = 64 * 1024 * 1024
FREE_FILES_MIN = 100
HOUR_MS = 3_600_000
CLOCK_BEHIND_MS_MAX = 60_000
NOTICE_AGE_MS_MAX = 60_000
NOTICES_MAX = 1_000
REMARKS_MAX = 1_000
REMARK_AGE_MS_MAX = 60_000
PARKED_SHOWN_MAX = 20


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing, nothing to fix
    WARNING = "warning"
    DAMAGE = "damage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    text: str
    mend: str = ""  # the command that fixes it


def _maker(level: Level) -> Callable[..., Finding]:
    def make(check: str, text: str, mend: str = "") -> Finding:
        return Finding(check=check, level=level, text=text, mend=mend)

    return make


ok, note, warning, damage = map(_maker, Level)


async def examine(path: Path, *, settings: Settings, deep: bool) -> AsyncIterator[Finding]:
    """Every finding about the journal at this path, in the order a person would look."""
    admin = journal_at(path)
    yield _versions(admin)
    async for finding in examine_backups(path.parent):
        yield finding
    if sys.platform != "linux":
        yield note("platform", "this system cannot kill a stopped worker: see docs/reference/platforms.md")
    if not os.path.lexists(path):
        try:
            admin.check_not_lost()
        except HoldfastError as error:
            yield _failed(error)
            return
        yield _no_journal(path)
        return
    try:
        yield _place(path, settings)
        yield _keys(path)
        yield _secrets(path)
        stopped = admin.find_stopped()
        if stopped is not None:
            yield _stopped(stopped)
            return
        journal, _ = await open_file_journal(path, create=False, allow_network_fs=settings.allow_network_fs)
    except HoldfastError as error:
        yield _failed(error)
        return
    try:
        async for finding in _examine_open(path, admin, journal, settings, deep=deep):
            yield finding
    except HoldfastError as error:
        yield _failed(error)
    finally:
        await journal.close()


async def _examine_open(
    path: Path, admin: JournalAdmin, journal: Journal, settings: Settings, *, deep: bool
) -> AsyncIterator[Finding]:
    yield ok(
        "journal",
        f"journal {journal.journal_id}, incarnation {journal.incarnation}, has every record that "
        f"this machine has committed (up to {admin.high_water().sequence})",
    )
    for finding in (_space(path.parent / INSTANCE), _reserve(admin), _clock(journal)):
        yield finding
    async for finding in _sessions(journal):
        yield finding
    async for finding in _parked(journal):
        yield finding
    yield await _notices(journal, settings)
    memory = await _memory(path.parent, journal)
    if memory is not None:
        yield memory
    if deep:
        async for finding in _deep(journal):
            yield finding


def _no_journal(path: Path) -> Finding:
    home = find_home(path.parent)
    if home is not None and home.state != home.folder:
        return ok("journal", "none: an adopted agent gets one when it uses Holdfast's durable calls")
    return warning(
        "journal", f"there is no journal at {path}", "name it with --journal or --home; `holdfast worker APP` makes one"
    )


def _versions(admin: JournalAdmin) -> Finding:
    return ok("versions", f"Holdfast {find_version()}, Python {platform.python_version()}, {admin.engine}")


def _place(path: Path, settings: Settings) -> Finding:
    check_place(path, allow_network_fs=settings.allow_network_fs)
    check_private_file(path)
    instance = path.parent / INSTANCE
    if os.path.lexists(instance):
        check_private_folder(instance)
    return ok("place", f"{path}, readable only by its owner")


def _keys(path: Path) -> Finding:
    load_or_create(path.parent / KEYS, journal_exists=True, entropy=SystemEntropy())
    kept = "in the vault" if is_pointer((path.parent / KEYS).read_bytes()) else f"in {KEYS}; keep a copy elsewhere"
    return ok("keys", kept)


def _secrets(path: Path) -> Finding:
    entropy = SystemEntropy()
    try:
        keys = load_or_create(path.parent / KEYS, journal_exists=True, entropy=entropy)
        store = SecretFile(path.parent, keys=keys, clock=SystemClock(), entropy=entropy)
    except HoldfastError as error:
        return _failed(error)  # the journal itself may be fine: check it too
    count = len(store.list_secrets())
    return ok("secrets", f"{count} set (`holdfast secret list`)")


def _stopped(reason: str) -> Finding:
    return damage(
        "stop flag",
        f"no new step starts: {reason}",
        "check the disk. Then stop every worker of this journal and start one "
        "(`holdfast worker APP`): it rewrites the journal to a new file",
    )


def _failed(error: HoldfastError) -> Finding:
    level = Level.DAMAGE if error.exit_code == EXIT_JOURNAL else Level.WARNING
    return Finding(check=error.code, level=level, text=error.message, mend=error.hint or error.page)


def _space(folder: Path) -> Finding:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    short = free < FREE_BYTES_MIN or (room.f_files and room.f_favail < FREE_FILES_MIN)
    return Finding(
        check="space",
        level=Level.WARNING if short else Level.OK,
        text=f"{free // (1024 * 1024):,} MiB free on the journal's disk",
        mend=f"free some space: `df -h {folder}`" if short else "",
    )


def _reserve(admin: JournalAdmin) -> Finding:
    if admin.has_reserve():
        return ok("reserve", "space is reserved for the results of calls in flight")
    return warning(
        "reserve",
        "could not reserve space: no new step starts while the disk is full",
        "free some space; work then resumes by itself",
    )


def _clock(journal: Journal) -> Finding:
    behind = journal.clock_behind_ms
    if behind < CLOCK_BEHIND_MS_MAX:
        return ok("clock", "not behind the newest record")
    return warning(
        "clock",
        f"the machine's clock is {behind / 1000:,.0f} s behind the newest record: key windows "
        "may close early and sleeping tasks may wake late, but nothing is repeated",
        "set the clock: `timedatectl set-ntp true`",
    )


async def _sessions(journal: Journal) -> AsyncIterator[Finding]:
    sessions = await journal.list_sessions()
    alive = [one for one in sessions if one.alive]
    names = ", ".join(one.worker for one in alive) or "none"
    yield ok("sessions", f"{len(alive)} alive: {names}")
    orphans = sum(one.tasks for one in sessions if not one.alive)
    waiting = (await journal.count_tasks()).get(TaskState.QUEUED, 0)
    if orphans:
        yield Finding(
            check="orphans",
            level=Level.NOTE if alive else Level.WARNING,
            text=f"{orphans} tasks belong to workers that died",
            mend="" if alive else "`holdfast worker APP` resumes them",
        )
    if waiting and not alive:
        yield warning("queue", f"{waiting} tasks wait and no worker serves this journal", "`holdfast worker APP`")


async def _parked(journal: Journal) -> AsyncIterator[Finding]:
    states = frozenset((TaskState.PARKED,))
    count = (await journal.count_tasks()).get(TaskState.PARKED, 0)
    if not count:
        yield ok("parked", "no task needs a person")
    for row in await journal.list_tasks(Filter(states=states, limit=PARKED_SHOWN_MAX)):
        try:
            rest = (await journal.read_task(row.task_id)).rest
        except JournalDamaged as error:
            yield _failed(error)
            continue
        yield warning(
            "parked",
            f"task {row.task_id} ({row.name}): {rest.question or 'is parked'}",
            f"`holdfast effect show {row.task_id}/{rest.ordinal}`"
            if rest.ordinal
            else f"`holdfast task show {row.task_id}`",
        )
    if count > PARKED_SHOWN_MAX:
        yield warning("parked", f"{count} tasks are parked in total", "`holdfast task list --state parked`")


async def _notices(journal: Journal, settings: Settings) -> Finding:
    untold = await journal.pending_notices(limit=NOTICES_MAX)
    if not untold:
        return ok("notices", "all sent")
    text = f"{len(untold)} notices are not sent yet; the oldest: {untold[0].text}"
    if not settings.notice_command and not settings.notice_webhook:
        return note("notices", text, "set a command or a webhook under [notices] in holdfast.toml")
    old = journal.now_ms() - untold[0].at_ms > NOTICE_AGE_MS_MAX
    return Finding(
        check="notices",
        level=Level.WARNING if old else Level.OK,
        text=text,
        mend="try the command or webhook of [notices] by hand; the worker's log says why (`notice-failed`)"
        if old
        else "",
    )


async def _memory(folder: Path, journal: Journal) -> Finding | None:
    """Whether lines wait to be written to the agent's memory files."""
    if find_home(folder) is None:
        return None
    from holdfast.layout.memory_place import MemoryPlace
    from holdfast.memory.projection import find_position

    position = await find_position(journal, MemoryPlace(folder=folder))
    waiting = await journal.remarks_after(position, limit=REMARKS_MAX)
    old = waiting and journal.now_ms() - waiting[0].at_ms > REMARK_AGE_MS_MAX
    text = f"{len(waiting)} lines wait to be written into memory files" if waiting else "all written"
    return Finding(
        check="memory",
        level=Level.WARNING if old else Level.OK,
        text=text,
        mend="`holdfast memory add TEXT` or a worker writes them; its log says why it could not (`memory-not-written`)"
        if old
        else "",
    )


async def _deep(journal: Journal) -> AsyncIterator[Finding]:
    sound = True
    async for finding in journal.check():
        sound = False
        yield damage("records", finding, JournalDamaged.default_hint)
    if sound:
        yield ok("records", "read every record, chain and seal: all intact")


async def examine_backups(folder: Path) -> AsyncIterator[Finding]:
    """Engine, places and their last verified backups; nothing if there is no agent here."""
    if not (folder / NAME).exists():
        return
    try:
        home = load_home(folder)
        places = read_places(home.places_file)
        states = states_of(home).read()
    except HoldfastError:
        return  # a folder with settings and no agent; other checks say what is wrong with it
    if not places and home.vault is None:
        return  # a journal with a name: it has no keys that could open a backup
    if not places:
        yield warning("backups", "this agent has no place for backups", "`holdfast place add NAME FOLDER`")
        return
    yield await _engine(home)
    for place in places:
        yield _backup_place(place, states.get(place.name, PlaceState()), home)
    for names in shared_domains(places).values():
        yield note("backups", f"{', '.join(names)} share a failure domain: one failure can take all of them")


async def _engine(home: AgentHome) -> Finding:
    settings = home.settings.backup
    try:
        shown = await describe_engine(settings)
    except HoldfastError as error:
        accepted = settings.accept_old_borg and error.code == "engine-too-old"
        return Finding(
            check="borg", level=Level.NOTE if accepted else Level.WARNING, text=error.message, mend=error.hint
        )
    return ok("borg", shown)


def _backup_place(place: Place, state: PlaceState, home: AgentHome) -> Finding:
    now_ms = round(time.time() * 1000)
    trouble = find_trouble(
        place.name,
        state,
        added_ms=place.added_ms,
        now_ms=now_ms,
        stale_after_ms=round(home.settings.backup.stale_after_h * HOUR_MS),
    )
    if trouble is not None:
        return warning("backups", trouble.text, trouble.hint)
    try:
        check_there(place)
        away = ""
    except HoldfastError as error:
        away = f"; not reachable now ({error.code})"
    if not state.verified_ms:
        return note("backups", f"place {place.name}: no verified backup yet{away}", "`holdfast backup now`")
    hours = (now_ms - state.verified_ms) / HOUR_MS
    kind = ", append-only (not immutable)" if place.append_only else ""
    return ok("backups", f"place {place.name}{kind}: {state.verified} verified {hours:.1f} h ago{away}")
