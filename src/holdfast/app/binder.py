"""Opening a journal by its address, with its keys, secrets and memory, and acting as its agent.

A process that serves a journal in an agent's folder first gets the agent's lease. A folder whose settings name no
arbiter has no lease, and pays nothing for this. Nor has one whose arbiter is the journal: all hosts that share it act
at once, and its incarnation stops them when it rises. Otherwise the order is: lease held, journal raised to its
incarnation and opened, tasks claimed. Without the lease the journal is not even opened for serving: a copy sends
nothing and writes nothing, says why it waits, and notifies a person once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from holdfast.app.instances.shared_roster import check_no_copy, has_roster
from holdfast.app.serving_keys import check_may_begin, serve_journal
from holdfast.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import Notices, quarantined_notice, second_instance_notice
from holdfast.core.ports import KeyRing, Memory
from holdfast.core.reading_ring import ReadingRing
from holdfast.core.served import ServingRing
from holdfast.core.waiting import ALONE, Pacing
from holdfast.errors import (
    AgentElsewhere,
    AgentQuarantined,
    BadSettings,
    HoldfastError,
    IsStandby,
    KeysMissing,
    MovedAway,
    NotAJournal,
    text_of,
)
from holdfast.host.log import Log
from holdfast.identity.journal_keys.keyfile import load_or_create
from holdfast.identity.journal_keys.secret_file import SecretFile
from holdfast.journal.bind import Connections, journal_at
from holdfast.journal.contract import Journal
from holdfast.layout.agent_home import BY_JOURNAL, find_home, load_home, peek_home
from holdfast.layout.moved import check_not_moved
from holdfast.layout.rescued import check_not_rescued
from holdfast.runtime.secrets import NO_SECRETS, Secrets
from holdfast.runtime.tool.file_watch import FileWatch, compact

if TYPE_CHECKING:
    from holdfast.app.agent_lease import AgentLease

T = TypeVar("T")

KEYS = "keys.json"
LOG = "kel.jsonl"  # identity.own_log.LOG, whose room is loaded only where there is one
SCRATCH = "scratch"
LOOK_S = 0.05
TELL_AGAIN_S = 10.0
_HINTS = {
    "elsewhere": "this instance takes over when the other one's lease ends",
    "copy": "start the agent where it ran last; if that machine is lost: `holdfast recover`",
    "behind": "start the agent where it ran last; if that machine is lost: `holdfast recover`",
    "older": "`holdfast recover` turns it into a proper restore",
    "frozen": "find out which copies run, then `holdfast identity rotate --why stolen`",
    "silent": "`holdfast identity show`",
    "trouble": "`holdfast doctor`",
}


def open_secrets(address: JournalAddress, *, keys: KeyRing, clock: Clock, entropy: Entropy) -> Secrets:
    """The secrets of the journal at this address, for the runtime; none in a copy that is only read."""
    if isinstance(keys, ReadingRing):
        return NO_SECRETS
    return Secrets(SecretFile(address.folder, keys=keys, clock=clock, entropy=entropy))


def open_secrets_alone(address: JournalAddress) -> Secrets:
    """The secrets of the journal at this address, without opening the journal."""
    keys_file, entropy = address.folder / KEYS, SystemEntropy()
    if not keys_file.exists():
        return NO_SECRETS  # no secret was ever set here, and none of its files is made
    keys = load_or_create(keys_file, journal_exists=journal_at(address).exists(), entropy=entropy)
    return open_secrets(address, keys=keys, clock=SystemClock(), entropy=entropy)


def scratch_root(address: JournalAddress, *, folder: str, journal_id: str) -> Path:
    """Where the scratch folders of the journal at this address are; one root for each journal."""
    return (Path(folder) if folder else address.folder / SCRATCH) / journal_id


def watched_files(address: JournalAddress, *, scratch: Path, log: Log) -> FileWatch | None:
    """What notes the files that tools write elsewhere; None unless the settings of the agent ask for it."""
    try:
        home = find_home(address.folder)
        if home is None or not home.settings.surfaces.watch:
            return None
        compact(home.written_file)
        return FileWatch(home.written_file, kept=(home.state, home.folder, scratch))
    except (HoldfastError, OSError) as error:
        log.event("watch-off", error=text_of(error))
        return None


@asynccontextmanager
async def memory_beside(
    address: JournalAddress, journal: Journal, *, secrets: Secrets, log: Log | None = None, pacing: Pacing = ALONE
) -> AsyncGenerator[Memory | None]:
    """The memory of the agent in whose folder this journal is, kept while the block lasts.
    None if the folder is not an agent's, or cannot be one: the log says why, the work continues."""
    log = log or Log()
    try:
        home = find_home(address.folder)
    except HoldfastError as error:
        log.event("memory-off", code=error.code, error=error.message)
        home = None
    if home is None or address.name != home.journal.name:
        yield None
        return
    from holdfast.app.memory import open_memory  # only where there is an agent

    async with open_memory(home, journal, secrets=secrets, log=log, pacing=pacing) as memory:
        yield memory


async def open_journal(
    address: JournalAddress,
    *,
    create: bool = True,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    network_fs: bool = False,
    synchronous: str = "FULL",
    moving: bool = False,
    new_journal: bool = False,
    connections: Connections | None = None,
) -> tuple[Journal, ServingRing]:
    """The journal at this address with its keys; makes both if there are none.
    Raises JournalGone if the keys serve a journal that is missing, unless `new_journal` asks for a further one.
    Raises MovedAway if the agent was moved to another host; `moving` is for the move itself.
    `connections`: those of a process that serves many agents; what waits for a server waits beside the event loop."""
    if not moving:
        try:
            check_not_moved(address.instance)
        except (IsStandby, MovedAway):
            check_no_copy(address, clock=SystemClock())  # else people would be told to promote it, or to wait
            raise
    clock = clock or SystemClock()
    entropy = entropy or SystemEntropy()
    admin, look = journal_at(address, connections=connections), _at_once if connections is None else asyncio.to_thread
    exists = await look(admin.exists)
    if not exists:
        await look(admin.check_not_lost)
        if not create:
            raise NotAJournal(
                f"there is no journal at {address}",
                hint="run `holdfast worker APP` or `holdfast submit APP REQUEST` to create one",
            )
    if not address.folder.is_dir():
        raise NotAJournal(f"the folder {address.folder} does not exist", hint="make the folder first")
    admin.check_place(allow_network_fs=network_fs)
    try:
        keys = load_or_create(address.folder / KEYS, journal_exists=exists, entropy=entropy)
    except KeysMissing:
        admin.peek()  # a file that is no journal has no keys: say that instead
        raise
    if not exists and not new_journal:
        await look(partial(check_may_begin, address, keys))
    journal = await admin.open(
        keys=keys, clock=clock, entropy=entropy, create=create, allow_network_fs=network_fs, synchronous=synchronous
    )
    try:
        if not isinstance(keys, ReadingRing):
            await look(partial(serve_journal, address, journal.journal_id, keys, entropy))
        await asyncio.sleep(0)
        if not moving:
            check_not_moved(address.instance)  # again, now that a move would find it in use
    except BaseException:  # also a cancel: no journal stays open without an owner
        await journal.close()
        raise
    return journal, keys


async def _at_once(act: Callable[[], T]) -> T:
    return act()


@asynccontextmanager
async def acting(
    address: JournalAddress, *, clock: Clock, entropy: Entropy, notices: Notices | None, log: Log, patient: bool
) -> AsyncGenerator[AgentLease | None]:
    """The agent's lease, held, while the block runs; None if the folder has no arbiter, or the journal is the arbiter.
    Raises AgentElsewhere or AgentQuarantined after two lease times without it, unless it is patient; BadSettings where
    the journal cannot be the arbiter; RescuedCopy; IsStandby, NotEnrolled."""
    if os.path.lexists(address.folder / LOG) or await asyncio.to_thread(has_roster, address):
        from holdfast.app.instances.standing import wait_enrolled  # the rooms of keys: only where they are used

        await wait_enrolled(address, clock=clock, notices=notices, log=log, patient=patient)
    check_not_moved(address.instance)
    check_not_rescued(address.folder)
    home = peek_home(address.folder)
    if home is not None and home.by_journal and not journal_at(address).hosts:
        raise BadSettings(
            f'{home.settings_file}: [identity] arbiter is "{BY_JOURNAL}", but {address} is a file of this machine, '
            "which says nothing about other copies of the agent",
            hint="set `arbiter` to a folder, such as ~/.config/holdfast/arbiter/NAME, or use a journal in PostgreSQL",
        )
    if home is None or home.arbiter is None:
        yield None
        return
    from holdfast.app.agent_lease import AgentLease  # the rooms of keys: only where they are used

    lease = AgentLease(
        load_home(address.folder), address, clock=clock, entropy=entropy, keys=lambda: keys_of(address, entropy)
    )
    lease.start()
    try:
        await wait_held(lease, notices=notices, log=log, patient=patient)
        yield lease
    finally:
        await asyncio.to_thread(lease.stop)


async def wait_held(lease: AgentLease, *, notices: Notices | None, log: Log, patient: bool) -> None:
    """Wait until the lease is held; log each reason why it is not once."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 2 * lease.life_s
    said, told, tell_at = "", "", 0.0
    while not lease.held:
        shown = lease.shown
        if shown.text and shown.state != said:
            said = shown.state
            log.event("agent-waits", state=shown.state, text=shown.text, inst=shown.inst)
        if said not in ("", "elsewhere", told) and loop.time() >= tell_at:
            tell_at = loop.time() + TELL_AGAIN_S
            told = said if await _told(lease, notices) else told
        if not patient and loop.time() > end:
            kind = AgentElsewhere if shown.state in ("elsewhere", "trouble") else AgentQuarantined
            raise kind(shown.text or "could not get the lease", hint=_HINTS[shown.state])
        await asyncio.sleep(min(lease.look_every_s, LOOK_S))
    log.event("agent-lease", e=lease.e, keeps=lease.keeps)


async def open_as(
    lease: AgentLease | None,
    address: JournalAddress,
    *,
    clock: Clock,
    entropy: Entropy,
    network_fs: bool,
    create: bool = True,
    new_journal: bool = False,
    connections: Connections | None = None,
) -> tuple[Journal, ServingRing]:
    """The journal, under the incarnation of the lease."""

    async def opened() -> tuple[Journal, ServingRing]:
        return await open_journal(
            address,
            clock=clock,
            entropy=entropy,
            create=create,
            network_fs=network_fs,
            new_journal=new_journal,
            connections=connections,
        )

    found, keys = await opened()
    if lease is None:
        return found, keys
    if found.incarnation < lease.e:  # made just now
        await found.close()
        await journal_at(address).raise_incarnation(to=lease.e, keys=keys, clock=clock)
        found, keys = await opened()
    lease.bind(found.incarnation)
    return found, keys


@asynccontextmanager
async def watching(lease: AgentLease | None, journal: Journal, log: Log) -> AsyncGenerator[None]:
    """While the block runs, notify a person of other instances that ask for the lease."""
    if lease is None:
        yield
        return
    watch = asyncio.create_task(_watch(lease, journal, log))
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _watch(lease: AgentLease, journal: Journal, log: Log) -> None:
    while True:
        await asyncio.sleep(lease.look_every_s)
        found, lease.contender = lease.contender, None
        if found is None:
            continue
        log.event("agent-contender", inst=found.inst, how=found.how.value)
        with contextlib.suppress(Exception):  # told again with its next claim
            await journal.add_notice(second_instance_notice(found.inst, now_ms=journal.now_ms()))


async def _told(lease: AgentLease, notices: Notices | None) -> bool:
    """Notify a person by the hook alone: we may not write to this journal."""
    shown = lease.shown
    if notices is None:
        return True
    try:
        await notices.tell(quarantined_notice(shown.inst, shown.state, shown.text, _HINTS[shown.state]))
    except Exception:  # noqa: BLE001 - the hook is the user's: it is tried again
        return False
    return True


def keys_of(address: JournalAddress, entropy: Entropy) -> KeyRing:
    return load_or_create(address.folder / KEYS, journal_exists=True, entropy=entropy)
