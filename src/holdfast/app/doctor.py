"""What is wrong with this machine or journal, and the one command that mends it.

Looks without changing: a journal that stopped at a failed sync is not opened, because whoever
opens it alone repairs it, and that is not what a person who only looks has asked for. Every
check says something, so that a clean answer shows what it rests on.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast.app.binder import INSTANCE, KEYS, open_file_journal
from holdfast.app.doctor_backup import examine_backups
from holdfast.app.findings import Finding, Level
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.version import find_version
from holdfast.errors import EXIT_JOURNAL, HoldfastError, JournalDamaged
from holdfast.host.private_files import check_place, check_private_file, check_private_folder
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Filter, Journal
from holdfast.journal.records import TaskState
from holdfast.layout.agent_home import find_home
from holdfast.layout.engine_settings import Settings

FREE_BYTES_MIN = 64 * 1024 * 1024
FREE_FILES_MIN = 100
CLOCK_BEHIND_MS_MAX = 60_000
NOTICE_AGE_MS_MAX = 60_000
NOTICES_MAX = 1_000
REMARKS_MAX = 1_000
REMARK_AGE_MS_MAX = 60_000
PARKED_SHOWN_MAX = 20


async def examine(path: Path, *, settings: Settings, deep: bool) -> AsyncIterator[Finding]:
    """Every finding about the journal at this path, in the order a person would look."""
    admin = journal_at(path)
    yield _versions(admin)
    async for finding in examine_backups(path.parent):
        yield finding
    if sys.platform != "linux":
        yield Finding(
            check="platform",
            level=Level.NOTE,
            text="the kernel does not kill a stopped worker here: see docs/reference/platforms.md",
        )
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
    yield Finding(
        check="journal",
        level=Level.OK,
        text=f"journal {journal.journal_id}, incarnation {journal.incarnation}, not older than "
        f"what this machine has committed (record {admin.high_water().sequence})",
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
        return Finding(
            check="journal", level=Level.OK, text="none: an adopted agent has one once it uses Holdfast's durable calls"
        )
    return Finding(
        check="journal",
        level=Level.WARNING,
        text=f"there is no journal at {path}",
        mend="name it with --journal or --home; `holdfast worker APP` makes one",
    )


def _versions(admin: JournalAdmin) -> Finding:
    return Finding(
        check="versions",
        level=Level.OK,
        text=f"Holdfast {find_version()}, Python {platform.python_version()}, {admin.engine}",
    )


def _place(path: Path, settings: Settings) -> Finding:
    check_place(path, allow_network_fs=settings.allow_network_fs)
    check_private_file(path)
    instance = path.parent / INSTANCE
    if os.path.lexists(instance):
        check_private_folder(instance)
    return Finding(check="place", level=Level.OK, text=f"{path}, for its owner alone")


def _keys(path: Path) -> Finding:
    load_or_create(path.parent / KEYS, journal_exists=True, entropy=SystemEntropy())
    return Finding(check="keys", level=Level.OK, text=f"{KEYS} is there; keep a copy of it apart")


def _secrets(path: Path) -> Finding:
    entropy = SystemEntropy()
    try:
        keys = load_or_create(path.parent / KEYS, journal_exists=True, entropy=entropy)
        store = SecretFile(path.parent, keys=keys, clock=SystemClock(), entropy=entropy)
    except HoldfastError as error:
        return _failed(error)  # the journal itself may be well: it is looked at all the same
    count = len(store.list_secrets())
    return Finding(check="secrets", level=Level.OK, text=f"{count} set (`holdfast secret list`)")


def _stopped(reason: str) -> Finding:
    return Finding(
        check="stop flag",
        level=Level.DAMAGE,
        text=f"no new step begins: {reason}",
        mend="look at the disk; then stop every worker of this journal and start one "
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
        return Finding(check="reserve", level=Level.OK, text="space is set aside for the results of calls under way")
    return Finding(
        check="reserve",
        level=Level.WARNING,
        text="no space could be set aside: no new step begins while the disk is full",
        mend="free some space; work goes on by itself",
    )


def _clock(journal: Journal) -> Finding:
    behind = journal.clock_behind_ms
    if behind < CLOCK_BEHIND_MS_MAX:
        return Finding(check="clock", level=Level.OK, text="not behind the newest record")
    return Finding(
        check="clock",
        level=Level.WARNING,
        text=f"the machine's clock lies {behind / 1000:,.0f} s behind the newest record: key "
        "windows may close early, sleeping tasks wake later, nothing is repeated",
        mend="set the clock: `timedatectl set-ntp true`",
    )


async def _sessions(journal: Journal) -> AsyncIterator[Finding]:
    sessions = await journal.list_sessions()
    alive = [one for one in sessions if one.alive]
    names = ", ".join(one.worker for one in alive) or "none"
    yield Finding(check="sessions", level=Level.OK, text=f"{len(alive)} alive: {names}")
    orphans = sum(one.tasks for one in sessions if not one.alive)
    waiting = (await journal.count_tasks()).get(TaskState.QUEUED, 0)
    if orphans:
        yield Finding(
            check="orphans",
            level=Level.NOTE if alive else Level.WARNING,
            text=f"{orphans} tasks are held by dead sessions",
            mend="" if alive else "`holdfast worker APP` resumes them",
        )
    if waiting and not alive:
        yield Finding(
            check="queue",
            level=Level.WARNING,
            text=f"{waiting} tasks wait and no worker serves this journal",
            mend="`holdfast worker APP`",
        )


async def _parked(journal: Journal) -> AsyncIterator[Finding]:
    states = frozenset((TaskState.PARKED,))
    count = (await journal.count_tasks()).get(TaskState.PARKED, 0)
    if not count:
        yield Finding(check="parked", level=Level.OK, text="no task needs a person")
    for row in await journal.list_tasks(Filter(states=states, limit=PARKED_SHOWN_MAX)):
        try:
            rest = (await journal.read_task(row.task_id)).rest
        except JournalDamaged as error:
            yield _failed(error)
            continue
        yield Finding(
            check="parked",
            level=Level.WARNING,
            text=f"task {row.task_id} ({row.name}): {rest.question or 'is parked'}",
            mend=f"`holdfast effect show {row.task_id}/{rest.ordinal}`"
            if rest.ordinal
            else f"`holdfast task show {row.task_id}`",
        )
    if count > PARKED_SHOWN_MAX:
        yield Finding(
            check="parked",
            level=Level.WARNING,
            text=f"{count} tasks are parked in all",
            mend="`holdfast task list --state parked`",
        )


async def _notices(journal: Journal, settings: Settings) -> Finding:
    untold = await journal.pending_notices(limit=NOTICES_MAX)
    if not untold:
        return Finding(check="notices", level=Level.OK, text="all told")
    text = f"{len(untold)} notices were not told to anybody yet; the oldest: {untold[0].text}"
    if not settings.notice_command and not settings.notice_webhook:
        return Finding(
            check="notices",
            level=Level.NOTE,
            text=text,
            mend="set a command or a webhook under [notices] in holdfast.toml",
        )
    old = journal.now_ms() - untold[0].at_ms > NOTICE_AGE_MS_MAX
    return Finding(
        check="notices",
        level=Level.WARNING if old else Level.OK,
        text=text,
        mend="try the command or webhook of [notices] by hand; the worker's events say why (`notice-failed`)"
        if old
        else "",
    )


async def _memory(folder: Path, journal: Journal) -> Finding | None:
    """Whether lines wait for the memory files of the agent whose journal this is."""
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
        mend="`holdfast memory add TEXT` or a worker writes them; its events say why it does not (`memory-not-written`)"
        if old
        else "",
    )


async def _deep(journal: Journal) -> AsyncIterator[Finding]:
    sound = True
    async for finding in journal.check():
        sound = False
        yield Finding(check="records", level=Level.DAMAGE, text=finding, mend=JournalDamaged.default_hint)
    if sound:
        yield Finding(check="records", level=Level.OK, text="every record, chain and seal was read: all sound")
