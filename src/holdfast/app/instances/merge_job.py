"""The worker's job that merges the agent's memory with that of its other instances; in one process of a folder.

An agent with one instance pays next to nothing: every five seconds a look whether there is a roster; the library of
documents is not loaded. Otherwise files and the place that carries the updates are looked at every two seconds, without
reading any.

An instance that waits for its lease has no journal open, and merges all the same (`merge_while_waiting`): what it
would tell a person is in its log and in `holdfast instance list` then. While there is nothing to merge it has no
document open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.app.binder import keys_of
from holdfast.app.instances.standing import StandingKind, find_standing
from holdfast.core.clock import SystemClock, SystemEntropy, iso
from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import Notice, memory_conflict_notice, memory_lag_notice, update_refused_notice
from holdfast.core.waiting import lasting
from holdfast.errors import HoldfastError, InstancesUnfit
from holdfast.host.hardening import give_back_early, give_back_memory
from holdfast.host.log import Log
from holdfast.host.private_files import locked_now
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.files.roster_file import join_roster, read_roster
from holdfast.identity.lease.enrolment import NAME as ENROLMENT
from holdfast.identity.lease.enrolment import find_enrolment
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import key_bytes
from holdfast.identity.records.secret_bytes import KeyPair
from holdfast.identity.statements.roster import RosterView
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.layout.agent_home import AgentHome, MemoryPlace, find_home
from holdfast.memory.lines import day_of, entry_id
from holdfast.memory.projection import Written

if TYPE_CHECKING:
    from holdfast.app.worker import JobContext
    from holdfast.instances.channels import Channel
    from holdfast.instances.merging import Merging

LOCK = "merge.lock"
ALONE_S = 5.0  # between two looks at the roster of an agent that has one instance
LOOK_S = 2.0
AGAIN_S, AGAIN_S_MAX = 5.0, 120.0
PANIC_S = 30.0  # after an error that no code expects
LAG_MS = 3_600_000  # an instance that has been behind for so long causes a notice
REFUSED_MS = 60_000  # and so long after an update was refused: a file that is still being copied is not whole
TELL_MS = 60_000
LIFE_S = 60.0  # between two looks whether the journal that hosts share was restored
REMARKS, TASKS_MAX = 500, 10_000


async def keep_merged(context: JobContext) -> None:
    """Merges for as long as the worker serves."""
    await _lasting(context.address, context.log, context.journal)


async def merge_while_waiting(address: JournalAddress, log: Log) -> None:
    """The same for an instance that has no lease yet."""
    give_back_early()
    await _lasting(address, log, None)


async def _lasting(address: JournalAddress, log: Log, journal: Journal | None) -> None:
    await lasting(lambda: _keep(address, log, journal), partial(log.failure, "merge-failed"), again_s=PANIC_S)


async def _keep(address: JournalAddress, log: Log, journal: Journal | None) -> None:
    said, again_s = "", AGAIN_S
    left_alone: tuple[object, ...] = ()
    while True:
        pause_s = ALONE_S
        try:
            home = find_home(address.folder)
            if home is None:
                return
            with locked_now(home.instance / LOCK) as mine:
                if mine and await asyncio.to_thread(is_shared, home):
                    await _merge(home, log, journal)
                    pause_s = 0.0  # the roster has changed
                elif mine and left_alone != (known := _signature(home)):
                    await asyncio.to_thread(announce_roster, home)
                    left_alone = known
            again_s = AGAIN_S
        except (HoldfastError, OSError) as error:
            text = str(error)
            if text != said:
                log.event("merge-failed", error=text, code=getattr(error, "code", "os-error"))
            said, pause_s, again_s = text, again_s, min(2 * again_s, AGAIN_S_MAX)
        await asyncio.sleep(pause_s)


async def _merge(home: AgentHome, log: Log, journal: Journal | None) -> None:
    """Merges until the roster changes, or the journal that hosts share is restored. Raises where the place, this folder
    or this installation cannot be used."""
    known, teller = _signature(home), _Teller(journal, log)
    life = await asyncio.to_thread(_JournalLife, home)
    found = await asyncio.to_thread(open_merging, home)
    if found is None:
        return
    merging, key = found
    log.event("merge-open", instances=sorted(merging.state.peers))
    with key:
        while _signature(home) == known and not await asyncio.to_thread(life.is_over):
            now_ms, told = SystemClock().wall_ms() if journal is None else journal.now_ms(), list[Written]()
            if await asyncio.to_thread(merging.is_due, now_ms=now_ms):
                await teller.note_tasks(merging)
                told = await asyncio.to_thread(merging.run, now_ms=now_ms)
            elif journal is None and merging.rest(now_ms=now_ms):
                give_back_memory()
            await teller.tell(merging, told, now_ms)
            await asyncio.sleep(LOOK_S)


def is_shared(home: AgentHome) -> bool:
    """Whether this folder is one of several instances that are enrolled. Blocks."""
    found = _enrolled(home)
    if found is not None:
        found[3].wipe()
    return found is not None


def announce_roster(home: AgentHome) -> None:
    """The last instance that is left sends its roster once more: those that were removed hear of it nowhere else, if
    they have journals of their own. Blocks. Raises InstancesUnfit."""
    found = None if home.shared_folder is None else open_merging(home, least=1)
    if found is not None:
        merging, key = found
        with key:
            merging.announce(now_ms=SystemClock().wall_ms())


def find_way(home: AgentHome) -> str:
    """What carries the updates, for people; empty where nothing does."""
    if home.shared_folder is not None:
        return f"the folder {home.shared_folder}"
    return "the journal" if journal_at(home.journal).hosts else ""


def open_merging(home: AgentHome, *, least: int = 2) -> tuple[Merging, KeyPair] | None:
    """The merges of this folder, and the key that they sign with: wipe it at the end. None where the folder is not one
    of at least so many enrolled instances. Blocks. Raises InstancesUnfit."""
    found = _enrolled(home, least=least)
    if found is None:
        return None
    log, view, me, key = found
    try:
        from holdfast.instances.envelope import Peers, update_key
        from holdfast.instances.merging import Merging
    except ModuleNotFoundError as error:
        if error.name != "loro":
            raise
        raise InstancesUnfit("memory is not merged with the other instances: the package `loro` is missing") from error
    admin = journal_at(home.journal)
    peers = Peers(
        agent=log.id,
        incarnation=admin.incarnation() if admin.hosts else view.rank[0],
        me=me,
        keys={one.name: key_bytes(one.key) for one in view.enrolled},
        sign=key.sign,
    )
    merging = Merging(
        MemoryPlace(folder=home.folder),
        _channel(home, agent=log.id, instance=me),
        peers,
        update_key(keys_of(home.journal, SystemEntropy()).k_effect),
        roster=view.lines(),
        hear_roster=_hearing(home, log),
    )
    return merging, key


def _enrolled(home: AgentHome, *, least: int = 2) -> tuple[KeyLog, RosterView, str, KeyPair] | None:
    """The name and the key of this folder, where it is one of `least` enrolled instances or more; wipe the key."""
    if not (os.path.lexists(home.roster_file) and os.path.lexists(home.instance / ENROLMENT)):
        return None
    if journal_at(home.journal).hosts and find_standing(home, clock=SystemClock()).kind is StandingKind.COPY:
        return None  # also where another folder uses its key: two that write as one instance would not converge
    log = find_own_log(home.folder, Sodium())
    key = None if log is None else find_enrolment(home.instance, id=log.id, clock=SystemClock())
    if log is None or key is None:
        return None
    view = read_roster(home.folder, log, Sodium())
    me = view.find(key.public)
    if me is None or len(view.enrolled) < least:
        key.wipe()
        return None
    return log, view, me.name, key


def _hearing(home: AgentHome, log: KeyLog) -> Callable[[Sequence[bytes]], None]:
    """A roster that another instance knows counts here too, if the agent's keys signed it."""

    def hear(lines: Sequence[bytes]) -> None:
        join_roster(home.folder, lines, log, Sodium())

    return hear


def _channel(home: AgentHome, *, agent: str, instance: str) -> Channel:
    from holdfast.instances.channels import FolderChannel, JournalChannel

    if home.shared_folder is not None:
        return FolderChannel(home.shared_folder, agent=agent, instance=instance)
    shared = journal_at(home.journal).find_shared()
    if shared is None:
        raise InstancesUnfit(
            f"nothing carries memory updates between the instances of {home.name}",
            hint="set `folder` in [instances] of holdfast.toml to a folder that the hosts share, or use a journal in "
            "PostgreSQL",
        )
    return JournalChannel(shared, instance=instance)


def _signature(home: AgentHome) -> tuple[object, ...]:
    """Changes with the roster, the key log, this folder's key and its settings."""
    found: list[object] = []
    for path in (home.roster_file, home.log_file, home.instance / ENROLMENT, home.settings_file):
        with contextlib.suppress(FileNotFoundError):
            entry = os.lstat(path)
            found.append((entry.st_ino, entry.st_mtime_ns, entry.st_size))
    return tuple(found)


class _JournalLife:
    """Whether the journal that hosts share got a higher incarnation since: the others refuse what names the old one. A
    worker that acts hears of that from its journal; an instance that waits has none open. Blocks."""

    def __init__(self, home: AgentHome) -> None:
        self._admin = journal_at(home.journal)
        self._first = self._incarnation()
        self._look_s = time.monotonic() + LIFE_S

    def is_over(self) -> bool:
        if not self._admin.hosts or time.monotonic() < self._look_s:
            return False
        self._look_s = time.monotonic() + LIFE_S
        with contextlib.suppress(HoldfastError):  # one that does not answer now; the merges may not need it
            return self._incarnation() > self._first
        return False

    def _incarnation(self) -> int:
        return self._admin.incarnation() if self._admin.hosts else 0


class _Teller:
    """What the log and people hear of the passes; which task said an entry."""

    def __init__(self, journal: Journal | None, log: Log) -> None:
        self._journal = journal
        self._log = log
        self._remark = 0
        self._said: dict[str, str] = {}
        self._told_ms = 0

    async def note_tasks(self, merging: Merging) -> None:
        """Of lines that are in a file for the first time the document keeps which task said them."""
        while self._journal is not None:
            remarks = await self._journal.remarks_after(self._remark, limit=REMARKS)
            if not remarks:
                return
            self._remark = remarks[-1].number
            ids = [one.remark.remark_id for one in remarks]
            merging.tasks.update({entry_id(one): one.rpartition("/")[0] for one in ids if "/" in one})
            for old in list(merging.tasks)[:-TASKS_MAX]:
                del merging.tasks[old]

    async def tell(self, merging: Merging, told: Sequence[Written], now_ms: int) -> None:
        for one in told:
            if one.worth_telling:
                self._log.event("memory-merged", file=one.file, near=len(one.near), unsure=len(one.unsure))
        waits = {**{name: one.waits for name, one in merging.state.peers.items()}, **merging.state.files}
        for name, text in waits.items():
            if text and self._said.get(name) != text:
                self._log.event("merge-waits", about=name, text=text)
        self._said = waits
        if self._journal is not None and (told or now_ms - self._told_ms >= TELL_MS):
            self._told_ms = now_ms
            for notice in _notices(merging, told, now_ms):
                with contextlib.suppress(HoldfastError):  # told again a minute later
                    await self._journal.add_notice(notice)


def _notices(merging: Merging, told: Sequence[Written], now_ms: int) -> Generator[Notice]:
    day = day_of(now_ms)
    for one in told:
        if one.unsure:
            yield memory_conflict_notice(one.file, len(one.unsure), day=day, now_ms=now_ms)
    for name, (error, since_ms) in merging.refused.items():
        if now_ms - since_ms >= REFUSED_MS:
            yield update_refused_notice(name, error.code, error.message, error.hint, day=day, now_ms=now_ms)
    for name, peer in merging.state.peers.items():
        if peer.behind_ms and now_ms - peer.behind_ms >= LAG_MS:
            since = iso(peer.behind_ms)
            yield memory_lag_notice(name, peer.waits, since=since, since_ms=peer.behind_ms, now_ms=now_ms)
