"""Whether this machine's keys are still valid for its agent: checked at start and regularly after.

A recovery elsewhere replaces the keys, and cannot reach the old machine. So a worker checks, at its start and every
`[identity] watch_s` seconds, the log at its witnesses and relays and next to every backup place that is a folder. If a
valid record there was not made here and names keys that the vault here does not hold, this machine was evicted: a
starting worker refuses, a running one stops as by SIGTERM, and both end with KeysReplaced, which no restart changes. So
it is where the agent was recovered twice at once and another final record stands at a position of ours: both stop.

The remote sources are read first; then what this machine is about to publish; then its own log. A
record of our own is written in the opposite order (pending, sent, own log, no longer pending), so
whatever stage another process of this machine is in, its record is seen in one of the two.

Commands that hand the agent over, take it or change its roster look once, by the same rule (check_at_start), and
`holdfast doctor` too (find_replaced).

`instance/evicted` holds what was found, so that commands that put work into the folder refuse (check_not_evicted). A
person is notified once: the file says whether the notice was sent, so that a worker that restarts again and again does
not send it each time. It counts while the key log here is at the position that it names.

Nothing else is written. A source that cannot be reached does not stop an agent; a machine that reaches none continues
until it does. Every peer that knows the newer log rejects what such a machine signs, and its lease ends with its
arbiter's. The check runs in its own thread, and so does the read of each source, which has ANSWER_S_MAX: what has
answered by then is judged without the others, and a late answer at the next look. So a mount that hangs hides no
eviction that another source shows, and blocks neither tasks nor leases (host/slow_reads.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.companion_files import log_in_companions, read_folder
from holdfast.backup.places.places import Place, read_places
from holdfast.backup.places.published import check_not_replaced
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import Notices, keys_replaced_notice
from holdfast.core.waiting import lasting, running_beside
from holdfast.errors import BadSettings, HoldfastError, KeysReplaced
from holdfast.host.log import Log as Events
from holdfast.host.private_files import ensure_private_folder, open_private, write_atomically
from holdfast.host.slow_reads import SlowReads
from holdfast.identity.files.own_log import find_own_log, find_pending
from holdfast.identity.files.public_file import find_relays
from holdfast.identity.files.roster_file import ROSTER, join_roster
from holdfast.identity.lease.enrolment import find_own_key
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, key_bytes
from holdfast.identity.records.records import parse_record
from holdfast.identity.statements.roster import RosterView, join_rosters
from holdfast.identity.vault.keyset import get_op
from holdfast.identity.vault.vault import open_vault
from holdfast.identity.witness.observe import ForeignRecord, find_foreign_records, merge_copies
from holdfast.identity.witness.open_witnesses import read_copy
from holdfast.identity.witness.witness import LogCopy
from holdfast.layout.agent_home import AgentHome, load_home, peek_home
from holdfast.layout.moved import EVICTED, RETURN_HINT, find_standby
from holdfast.layout.witness_address import WitnessAddress, relays_of

WATCH_S_MIN, WATCH_S_MAX = 0.5, 3600.0
LOOK_S_MAX = 10.0  # of one look; a start does not wait longer for it
ANSWER_S_MAX = 8.0  # of it a source has so long: there must be time left to judge what the others gave
AGAIN_S = 5.0  # after an error that no code expects, and while a source is late
TOLD_BYTES_MAX, UNTOLD = 200, ":untold"
HINT = (
    "stop this copy: its keys were replaced. If it is the right one, run `holdfast identity show --fetch`; "
    "if not, `holdfast recover`"
)


@dataclass(frozen=True, slots=True)
class Looked:
    """How many sources answered, and which did not, with the reason."""

    answered: int = 0
    silent: dict[str, str] = field(default_factory=dict[str, str])
    late: bool = False  # a source has still to answer


def check_speaks(home: AgentHome, *, port: Signatures | None = None) -> Looked:
    """Check once. Raises KeysReplaced if this machine was evicted.
    Raises LogDamaged and other errors of the home's own files; never for a remote source."""
    port = port or Sodium()
    mark = find_standby(home.instance)
    if mark is not None and mark.replaced:  # by then its own log knows the new keys
        raise KeysReplaced(mark.beaten(home.folder), hint=RETURN_HINT)
    known = find_own_log(home.folder, port)
    if known is None:
        return Looked()
    witnesses = (*home.witnesses, *find_relays(home))
    readers = _readers(home, witnesses, known.id, port)
    heard, silent = _SOURCES.read(readers, of=home.folder, within_s=ANSWER_S_MAX)
    late = _SOURCES.is_late(readers, of=home.folder)
    sources = {name: one.copy for name, one in heard.items() if one.copy is not None}
    rosters = [line for one in heard.values() for line in one.rosters]
    pending = find_pending(home.folder)
    own = find_own_log(home.folder, port) or known
    named = (key for entry in own.entries() for keys in entry.needs for key in keys.members)
    opened = (one.key for one in heard.values() if one.key is not None)
    asked = frozenset((*opened, *(PublicKey(one.key) for one in relays_of(witnesses)), *named))
    seen = merge_copies(own, tuple(sources.values()), id=own.id, port=port, asked=asked) or own
    mine = () if pending is None else (pending.digest,)
    strange = [one for one in find_foreign_records(own, seen, mine) if one.stands]
    if strange and (not _holds(home, seen) or _is_left_out(home, join_rosters(rosters, seen, port=port))):
        raise KeysReplaced(_text(own, seen, strange, sources), hint=hint_of(home))
    if rosters:
        join_roster(home.folder, rosters, own, port)  # the next look at the roster knows it (instances/standing.py)
    for where, copy in sources.items():  # a second recovery at the same position: final too, though it does not stand
        if not strange:
            check_not_replaced(own, copy, where=where, port=port, pending=mine)
    return Looked(len(sources), silent, late)


async def find_replaced(home: AgentHome) -> KeysReplaced | None:
    """What a look shows; nothing is noted. What else is wrong is found by others."""
    try:
        await asyncio.to_thread(check_speaks, home)
    except KeysReplaced as error:
        return error
    except (HoldfastError, OSError):
        pass
    return None


def check_not_evicted(home: AgentHome, *, port: Signatures | None = None) -> None:
    """Raises KeysReplaced where a worker of this folder has found that its keys were replaced. Asks nobody."""
    found = _read(home.instance / EVICTED).removesuffix(UNTOLD)
    own = find_own_log(home.folder, port or Sodium()) if found else None
    if own is not None and found == _news(own):
        raise KeysReplaced(
            f"{own.id}: this machine's keys were replaced, so nothing that is added to {home.folder} would be done or "
            "read",
            hint=hint_of(home),
        )


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
        unheard, looked = False, Looked()
        while not found:
            watch_s = home.settings.identity.watch_s
            await asyncio.sleep(min(watch_s, AGAIN_S) if looked.late else watch_s)
            try:
                looked = await asyncio.to_thread(check_speaks, load_home(home.folder))
                unheard = _tell_unheard(looked, unheard, log)
            except KeysReplaced as error:
                found.append(error)
            except (HoldfastError, OSError) as error:
                log.event("watch-failed", error=str(error))
        log.event("stopping", reason=found[0].message)
        stop()

    async with running_beside(lasting(watch, partial(log.failure, "watch-failed"), again_s=AGAIN_S)):
        yield
    if found:
        await _tell(home, found[0], notices, log)
        raise found[0]


async def check_at_start(journal: JournalAddress, *, notices: Notices | None, log: Events) -> None:
    """Raises KeysReplaced, before anything is opened for serving, handed over or taken."""
    home = _watched_home(journal.folder)
    if home is None:
        return
    try:
        async with asyncio.timeout(LOOK_S_MAX):
            _tell_unheard(await asyncio.to_thread(check_speaks, home), False, log)
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


def _tell_unheard(looked: Looked, before: bool, log: Events) -> bool:
    """Once, when no source answers any more, and once when one does again: until then an eviction goes unseen."""
    unheard = bool(looked.silent) and not looked.answered
    if unheard and not before:
        log.event("watch-unheard", sources=looked.silent)
    elif before and not unheard:
        log.event("watch-heard", answered=looked.answered)
    return unheard


class _Heard(NamedTuple):
    """What one source has: its copy of the log, its key if it is a witness, and the roster beside a place."""

    copy: LogCopy | None
    key: PublicKey | None = None
    rosters: tuple[bytes, ...] = ()


_SOURCES: SlowReads[_Heard] = SlowReads()


def _readers(
    home: AgentHome, witnesses: tuple[WitnessAddress, ...], id: AgentId, port: Signatures
) -> dict[str, Callable[[], _Heard]]:
    """How each source is read, by its name for people."""
    found = {f"witness {one}": partial(_read_witness, one, id, port) for one in witnesses}
    try:
        places = read_places(home.places_file)
    except HoldfastError:
        places = ()  # `holdfast doctor` and backups report a damaged file
    folders = (one for one in places if one.kind is PlaceKind.FOLDER)
    return {**found, **{f"place {one.name}": partial(_read_place, one) for one in folders}}


def _read_witness(address: WitnessAddress, id: AgentId, port: Signatures) -> _Heard:
    key, copy = read_copy(address, id, port=port)
    return _Heard(copy, key)


def _read_place(place: Place) -> _Heard:
    files = read_folder(place.own, rescue=True)
    return _Heard(log_in_companions(files), rosters=tuple(files.get(ROSTER, b"").splitlines()))


def hint_of(home: AgentHome) -> str:
    return RETURN_HINT if os.path.lexists(home.folder / ROSTER) else HINT


def _is_left_out(home: AgentHome, view: RosterView) -> bool:
    """Whether another instance was promoted with the keys that are here too (both use one vault), by its roster."""
    key = find_own_key(home.instance, id=view.versions[0].record.id, clock=SystemClock()) if view else None
    return key is not None and view.find(key) is None


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
    path = home.instance / EVICTED
    own = find_own_log(home.folder, Sodium())
    if own is None or _read(path) == (news := _news(own)):
        return
    try:
        ensure_private_folder(home.instance)
        write_atomically(path, f"{news}{UNTOLD}".encode())
        if notices is not None:
            await notices.tell(keys_replaced_notice(news, error.message, error.hint, now_ms=SystemClock().wall_ms()))
            write_atomically(path, news.encode())
    except (HoldfastError, OSError) as failed:
        log.event("notice-failed", error=str(failed))


def _news(own: KeyLog) -> str:
    """By this machine's position: the same id however often the worker restarts, and whether the recovery was seen half
    done or complete."""
    g, s = own.position
    return f"{KeysReplaced.code}:{own.id}:{g}.{s}"


def _read(path: Path) -> str:
    try:
        fd = open_private(path, os.O_RDONLY)
    except (HoldfastError, OSError):
        return ""
    with open(fd, "rb") as file:
        return file.read(TOLD_BYTES_MAX).decode(errors="replace")
