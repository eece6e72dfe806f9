"""Whether this machine's keys are still valid for its agent: checked at start and regularly after.

A recovery elsewhere replaces the keys, and cannot reach the old machine. So a worker checks, at its start and every
`[identity] watch_s` seconds, the log at its witnesses and next to every backup place that is a folder. If a valid
record there was not made here and names keys that the vault here does not hold, this machine was evicted: a starting
worker refuses, a running one stops as by SIGTERM, and both end with KeysReplaced, which no restart changes. So it is
where the agent was recovered twice at once and another final record stands at a position of ours: both machines stop.

The remote sources are read first; then what this machine is about to publish; then its own log. A
record of our own is written in the opposite order (pending, sent, own log, no longer pending), so
whatever stage another process of this machine is in, its record is seen in one of the two.

A person is notified once: `instance/evicted` holds the id of the notice, written after it was sent,
so that a worker that restarts again and again does not send it each time.

Nothing else is written. A source that cannot be reached does not stop an agent; a machine that reaches none continues
until it does. Every peer that knows the newer log rejects what such a machine signs, and its lease ends with its
arbiter's. The check runs in its own thread: a mount that hangs blocks neither tasks nor leases.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.companion_files import log_in_companions, read_folder
from holdfast.backup.places.places import read_places
from holdfast.backup.places.published import check_not_replaced
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import Notices, keys_replaced_notice
from holdfast.core.waiting import running_beside
from holdfast.errors import BadSettings, HoldfastError, KeysReplaced
from holdfast.host.log import Log as Events
from holdfast.host.private_files import ensure_private_folder, open_private, write_atomically
from holdfast.identity.files.own_log import find_own_log, find_pending
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import AgentId, Digest, key_bytes
from holdfast.identity.records.records import parse_record
from holdfast.identity.vault.keyset import get_op
from holdfast.identity.vault.vault import open_vault
from holdfast.identity.witness.observe import ForeignRecord, find_foreign_records, merge_copies
from holdfast.identity.witness.open_witnesses import OpenWitnesses, open_witnesses
from holdfast.identity.witness.witness import LogCopy
from holdfast.layout.agent_home import AgentHome, load_home, peek_home

WATCH_S_MIN, WATCH_S_MAX = 0.5, 3600.0
START_S_MAX = 10.0  # a start does not wait longer for a mount that hangs; the next check does
TOLD, TOLD_BYTES_MAX = "evicted", 200
HINT = (
    "stop this copy: its keys were replaced. If it is the right one, run `holdfast identity show --fetch`; "
    "if not, `holdfast recover`"
)


def check_speaks(home: AgentHome, *, port: Signatures | None = None) -> None:
    """Check once. Raises KeysReplaced if this machine was evicted.
    Raises LogDamaged and other errors of the home's own files; never for a remote source."""
    port = port or Sodium()
    known = find_own_log(home.folder, port)
    if known is None:
        return
    reached = open_witnesses(home.witnesses, port=port)
    sources = asyncio.run(_copies(home, known.id, reached))
    pending = find_pending(home.folder)
    own = find_own_log(home.folder, port) or known
    named = (key for entry in own.entries() for keys in entry.needs for key in keys.members)
    asked = frozenset((*reached.by_key, *named))
    seen = merge_copies(own, tuple(sources.values()), id=own.id, port=port, asked=asked) or own
    mine = () if pending is None else (pending.digest,)
    strange = [one for one in find_foreign_records(own, seen, mine) if one.stands]
    if strange and not _holds(home, seen):
        raise KeysReplaced(_text(own, seen, strange, sources), hint=HINT)
    for where, copy in sources.items():  # a second recovery at the same position: final too, though it does not stand
        if not strange:
            check_not_replaced(own, copy, where=where, port=port, pending=mine)


@asynccontextmanager
async def stopped_when_evicted(
    journal: JournalAddress, stop: Callable[[], None], *, notices: Notices | None, log: Events
) -> AsyncGenerator[None]:
    """While the block runs, an eviction stops the work as SIGTERM would; then this raises
    KeysReplaced. A person is notified once. A folder without an identity is not watched."""
    home = _watched_home(journal.folder)
    if home is None:
        yield
        return
    found: list[KeysReplaced] = []

    async def watch() -> None:
        while not found:
            await asyncio.sleep(home.settings.identity.watch_s)
            try:
                await asyncio.to_thread(check_speaks, load_home(home.folder))
            except KeysReplaced as error:
                found.append(error)
            except (HoldfastError, OSError) as error:
                log.event("watch-failed", error=str(error))
        log.event("stopping", reason=found[0].message)
        stop()

    async with running_beside(watch()):
        yield
    if found:
        await _tell(home, found[0], notices, log)
        raise found[0]


async def check_at_start(journal: JournalAddress, *, notices: Notices | None, log: Events) -> None:
    """Raises KeysReplaced, before anything is opened for serving."""
    home = _watched_home(journal.folder)
    if home is None:
        return
    try:
        async with asyncio.timeout(START_S_MAX):
            await asyncio.to_thread(check_speaks, home)
    except KeysReplaced as error:
        await _tell(home, error, notices, log)
        raise
    except (HoldfastError, OSError) as error:  # TimeoutError too: logged, and checked again
        log.event("watch-failed", error=str(error) or "a place or witness does not answer in time")


def _watched_home(folder: Path) -> AgentHome | None:
    home = peek_home(folder)
    if home is None or not os.path.lexists(home.log_file):
        return None
    watch_s = home.settings.identity.watch_s
    if not WATCH_S_MIN <= watch_s <= WATCH_S_MAX:
        raise BadSettings(f"watch_s must be between {WATCH_S_MIN:g} and {WATCH_S_MAX:g}")
    return home


async def _copies(home: AgentHome, id: AgentId, reached: OpenWitnesses) -> dict[str, LogCopy]:
    """The log of each source, by its name; sources that do not answer are left out."""
    found: dict[str, LogCopy] = {}
    for key, witness in reached.by_key.items():
        try:
            answer = await witness.fetch(id)
        except (HoldfastError, OSError):
            continue
        if isinstance(answer, LogCopy):
            found[f"witness {reached.addresses[key]}"] = answer
    try:
        places = read_places(home.places_file)
    except HoldfastError:
        places = ()  # `holdfast doctor` and backups report a damaged file
    for place in places:
        if place.kind is PlaceKind.FOLDER:
            try:
                found[f"place {place.name}"] = log_in_companions(read_folder(place.own, rescue=True))
            except (HoldfastError, OSError):
                continue
    return found


def _holds(home: AgentHome, seen: KeyLog) -> bool:
    """Whether the vault here has the keys that the newer log names: then only our copy of the log
    is old, because an older folder was restored."""
    if home.vault is None or home.signer is not None or seen.operational is None:
        return False
    try:
        with open_vault(home.vault) as vault:
            get_op(vault, key_bytes(seen.operational.members[0])).wipe()
    except HoldfastError:
        return False
    return True


def _text(own: KeyLog, seen: KeyLog, strange: list[ForeignRecord], sources: dict[str, LogCopy]) -> str:
    newest = strange[-1]
    holders = [name for name, copy in sources.items() if newest.digest in _digests(copy)]
    return (
        f"{own.id}: this machine's keys were replaced: {newest.what} at {newest.position} was not made here. "
        f"The log is at {seen.position}, the copy here at {own.position} (seen at {', '.join(holders)})"
    )


def _digests(copy: LogCopy) -> set[Digest]:
    found: set[Digest] = set()
    for line in copy.records:
        try:
            found.add(parse_record(line).digest)
        except HoldfastError:
            continue
    return found


async def _tell(home: AgentHome, error: KeysReplaced, notices: Notices | None, log: Events) -> None:
    told = home.instance / TOLD
    own = find_own_log(home.folder, Sodium())
    if notices is None or own is None:
        return
    # By this machine's position: the same id however often the worker restarts, and whether the
    # recovery was seen half done or complete.
    g, s = own.position
    news = f"{error.code}:{own.id}:{g}.{s}"
    if _read(told) == news:
        return
    notice = keys_replaced_notice(news, error.message, error.hint, now_ms=SystemClock().wall_ms())
    try:
        await notices.tell(notice)
        ensure_private_folder(home.instance)
        write_atomically(told, news.encode())
    except (HoldfastError, OSError) as failed:
        log.event("notice-failed", error=str(failed))


def _read(path: Path) -> str:
    try:
        fd = open_private(path, os.O_RDONLY)
    except (HoldfastError, OSError):
        return ""
    with open(fd, "rb") as file:
        return file.read(TOLD_BYTES_MAX).decode(errors="replace")
