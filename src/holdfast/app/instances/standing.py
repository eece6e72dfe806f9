"""Whether this folder may act for its agent: where there is a roster, only an enrolled instance of role `primary` may.

An agent without a roster has one instance, and nothing here changes anything for it. The roster is in the agent's home;
hosts that share a journal also keep it there, where the first version of each number is the only one. A folder asks
before it opens the journal for serving, and while it serves (kept_enrolled): an instance that was removed, or whose
role changed, stops as by SIGTERM, so that its calls end and its tasks go back to the queue.

The shared journal also knows which host uses which enrolment key: the first one that acts with it. A second folder with
the same key is a copy, and so is a folder without a key that is enrolled. Copies are noted there, and the enrolled
instances notify a person.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import msgspec

from holdfast.app.eviction import check_at_start
from holdfast.app.instances.shared_roster import ROSTER_TEXT
from holdfast.core.clock import Clock, SystemClock
from holdfast.core.decoding import decode_json
from holdfast.core.journal_address import JournalAddress
from holdfast.core.notices import Notices, instance_lost_notice, quarantined_notice, unknown_instance_notice
from holdfast.core.waiting import lasting, running_beside
from holdfast.errors import AgentElsewhere, BadRecord, HoldfastError, IsStandby, NotEnrolled
from holdfast.host.log import Log
from holdfast.host.machine import host_id
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.files.roster_file import ROSTER, join_roster, read_roster
from holdfast.identity.lease.enrolment import find_enrolment
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import PublicKey
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import Enrolled, RosterView, join_rosters, parse_roster
from holdfast.journal.admin import SharedState
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal, SessionRow
from holdfast.layout.agent_home import AgentHome, peek_home
from holdfast.layout.moved import MOVED, PROMOTING_HINT, RETURN_HINT, find_mark, find_standby

SEEN_TEXT = "instances"  # in the shared journal
UNKNOWN_MAX = 16
REMOVED_MAX = 256
LOOK_S = 2.0  # how often a folder that waits looks again
WATCH_S = 5.0  # how often an instance that serves looks whether it is still enrolled
ALONE_WATCH_S = 30.0  # the same while there is no roster
UNTAKEN = "this instance gets the agent back: run `holdfast instance promote FILE` here, with the other host's package"
FORKED = "two hosts changed the roster at the same time: only what both versions say counts"
FORK_FIX = "run the command that enrolled, removed or promoted an instance again, on one host"
FETCH_HINT = "copy the vault of the host that rotated the keys here, then run `holdfast identity show --fetch`"
JOIN_HINT = (
    "run `holdfast instance invite NAME FILE` on an enrolled host, and here `holdfast instance join FILE --home "
    "FOLDER`, with a new folder"
)


class StandingKind(StrEnum):
    ALONE = "alone"  # the agent has no roster
    PRIMARY = "primary"
    STANDBY = "standby"
    COPY = "copy"  # not enrolled, or removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    kind: StandingKind
    text: str = ""
    name: str = ""  # of this instance, where it is enrolled
    view: RosterView = field(default_factory=RosterView)
    fix: str = ""  # what helps; empty: as for every standby or copy

    @property
    def may_act(self) -> bool:
        return self.kind in (StandingKind.ALONE, StandingKind.PRIMARY)

    @property
    def hint(self) -> str:
        return self.fix or (IsStandby if self.kind is StandingKind.STANDBY else NotEnrolled).default_hint

    def check(self) -> None:
        """Raises IsStandby, NotEnrolled."""
        if not self.may_act:
            raise (IsStandby if self.kind is StandingKind.STANDBY else NotEnrolled)(self.text, hint=self.hint)


class SeenHost(msgspec.Struct, frozen=True, kw_only=True):
    host: str  # its host id
    who: str  # for people
    at: int  # unix seconds


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the hosts of a shared journal note there: which host uses which key, and folders that are not enrolled."""

    bound: dict[str, SeenHost] = {}  # by enrolment key
    unknown: dict[str, SeenHost] = {}  # by host id
    removed: tuple[str, ...] = ()  # enrolment keys that were removed from the roster, or are about to be


def standing_at(address: JournalAddress, *, clock: Clock) -> Standing:
    """What the folder of this address is to the agent whose journal is there. A folder that is no agent's has the
    journal's keys at most: where the journal has a roster, it is a copy. Blocks; raises as `find_standing`."""
    home = peek_home(address.folder)
    if home is not None:
        return find_standing(home, clock=clock, at=address)
    shared = journal_at(address).find_shared()
    if shared is None or not shared.read_text(ROSTER_TEXT):
        return Standing(kind=StandingKind.ALONE)
    note_host(shared, address, clock, None)
    text = f"the folder {address.folder} has no agent in it, and the agent of its journal has a roster: it is a copy"
    return Standing(kind=StandingKind.COPY, text=text, fix=JOIN_HINT)


def find_standing(
    home: AgentHome, *, clock: Clock, port: Signatures | None = None, at: JournalAddress | None = None
) -> Standing:
    """What this folder is to its agent now. Blocks: a shared journal is asked, and given what it does not know yet;
    `at`: where that is another one than the settings name. Raises what reading the home's own files and reaching the
    journal raise."""
    port = port or Sodium()
    mark = find_standby(home.instance)
    if mark is not None and (mark.replaced or mark.promoting):
        log = find_own_log(home.folder, port)
        view = RosterView() if log is None else read_roster(home.folder, log, port)
        if mark.replaced:
            return Standing(kind=StandingKind.COPY, view=view, text=mark.beaten(home.folder), fix=RETURN_HINT)
        # What was restored may be older than the roster, or than this instance.
        text = f"the agent in {home.folder} is being promoted; {PROMOTING_HINT}"
        return Standing(kind=StandingKind.STANDBY, name=mark.name, view=view, text=text, fix=PROMOTING_HINT)
    shared = journal_at(at if at is not None and at.url else home.journal).find_shared()
    told = () if shared is None else lines_of(shared.read_text(ROSTER_TEXT))
    if not told and not os.path.lexists(home.folder / ROSTER):
        return Standing(kind=StandingKind.ALONE)
    log = find_own_log(home.folder, port)
    if log is None:  # its disk was deleted beside it, or the files were taken apart: nothing shows who it is
        text = f"the folder {home.folder} has no key log, and the agent of its journal has a roster: it is a copy"
        return Standing(kind=StandingKind.COPY, text=text, fix=JOIN_HINT)
    if is_behind(told, log):
        return Standing(kind=StandingKind.COPY, text=behind_text(home), fix=FETCH_HINT)
    view = join_roster(home.folder, told, log, port)
    if shared is not None and view and view.lines() != told:
        share_roster(shared, view.lines(), log, port=port)
    if not view:
        return Standing(kind=StandingKind.ALONE)
    key = find_enrolment(home.instance, id=log.id, clock=clock)
    with key if key is not None else _Nothing():
        return _standing(home, view, None if key is None else key.public, shared, clock)


def is_behind(told: Iterable[bytes], log: KeyLog) -> bool:
    """Whether the shared journal may have a roster of this agent by keys that the log here does not know yet. The log
    cannot judge it, and an older roster that it can judge counts no more."""
    return any(_is_ahead(line, log) for line in told)


def behind_text(home: AgentHome) -> str:
    return f"the key log in {home.folder} is older than the roster in the agent's journal"


def _is_ahead(line: bytes, log: KeyLog) -> bool:
    try:
        roster = parse_roster(line).record
    except BadRecord:
        return False
    return roster.id == log.id and roster.position > log.position


def _standing(
    home: AgentHome, view: RosterView, key: PublicKey | None, shared: SharedState | None, clock: Clock
) -> Standing:
    own = None if key is None else view.find(key)
    if own is None:
        why = "its key is not in the roster any more" if key else "it is a copy, or was made before the roster"
        if shared is not None:
            note_host(shared, home, clock, None)
        fix = ""
        if any(one.record.find(key) for one in view.versions if key):
            why, fix = "only one of two changes that were made at once lists its key", JOIN_HINT
        text = f"the folder {home.folder} is not enrolled: {why}"
        return Standing(kind=StandingKind.COPY, view=view, text=text, fix=fix)
    if shared is not None and (other := note_host(shared, home, clock, own.key)):
        text = f"the folder {home.folder} has the key of instance {own.name}, which {other} uses"
        return Standing(kind=StandingKind.COPY, view=view, text=text)
    if own.role is Role.STANDBY or (shared is None and find_standby(home.instance) is not None):
        acting = ", ".join(one.name for one in view.enrolled if one.role is Role.PRIMARY and one is not own) or "none"
        text = f"this folder is the standby {own.name} of its agent; the instance that acts: {acting}"
        return Standing(kind=StandingKind.STANDBY, name=own.name, view=view, text=text)
    return Standing(kind=StandingKind.PRIMARY, name=own.name, view=view)


def share_roster(shared: SharedState, lines: Iterable[bytes], log: KeyLog, *, port: Signatures) -> tuple[bytes, ...]:
    """Join these lines with the roster in the shared journal, in one act; what is there now. What the log cannot judge
    stays as it is."""

    def change(text: str) -> str:
        joined = join_rosters((*lines_of(text), *lines), log, port=port)
        return text_of_lines(joined.lines()) if joined and not is_behind(lines_of(text), log) else text

    return lines_of(shared.change_text(ROSTER_TEXT, change))


def read_seen(shared: SharedState) -> Seen:
    return _seen(shared.read_text(SEEN_TEXT))


def note_removed(shared: SharedState, key: PublicKey) -> None:
    def change(text: str) -> str:
        seen = _seen(text)
        kept = tuple(one for one in seen.removed if one != key)[1 - REMOVED_MAX :]
        return msgspec.json.encode(msgspec.structs.replace(seen, removed=(*kept, key))).decode()

    shared.change_text(SEEN_TEXT, change)


def forget_seen(shared: SharedState, keys: Iterable[PublicKey]) -> None:
    """These keys are used by no host any more."""
    gone = set(keys)

    def change(text: str) -> str:
        seen = _seen(text)
        kept = {key: one for key, one in seen.bound.items() if key not in gone}
        return msgspec.json.encode(msgspec.structs.replace(seen, bound=kept)).decode()

    shared.change_text(SEEN_TEXT, change)


def note_host(shared: SharedState, home: AgentHome | JournalAddress, clock: Clock, key: PublicKey | None) -> str:
    """Note that this host uses the key, or that it has none; the host that had the key before, if it is another."""
    here = SeenHost(
        host=host_id(home.instance), who=f"{socket.gethostname()}:{home.folder}", at=clock.wall_ms() // 1000
    )
    seen = read_seen(shared)
    there = seen.bound.get(key or "")
    if (key and there is not None and there.host == here.host) or (not key and here.host in seen.unknown):
        return ""  # as it is noted already

    def change(text: str) -> str:
        seen = _seen(text)
        bound, unknown = dict(seen.bound), dict(seen.unknown)
        if key and bound.setdefault(key, here).host == here.host:
            # Also a folder that was at this path before; a copy elsewhere is noted again at its next look.
            unknown = {host: one for host, one in unknown.items() if here.host != host and here.who != one.who}
        else:
            unknown[here.host] = here
        newest = sorted(unknown.items(), key=lambda one: one[1].at)[-UNKNOWN_MAX:]
        return msgspec.json.encode(msgspec.structs.replace(seen, bound=bound, unknown=dict(newest))).decode()

    kept = _seen(shared.change_text(SEEN_TEXT, change)).bound.get(key or "")
    return "" if kept is None or kept.host == here.host else kept.who


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def lines_of(text: str) -> tuple[bytes, ...]:
    return tuple(line.encode() for line in text.splitlines() if line)


def text_of_lines(lines: Iterable[bytes]) -> str:
    return "\n".join(line.decode() for line in lines)


def _seen(text: str) -> Seen:
    try:
        return decode_json(text, Seen) if text else Seen()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Seen()  # it is noted again


async def wait_enrolled(
    address: JournalAddress, *, clock: Clock, notices: Notices | None, log: Log, patient: bool
) -> None:
    """Until this folder may act, as far as the roster says; each reason why it may not is logged once. Raises
    IsStandby or NotEnrolled where it may not and nobody waits, KeysReplaced where another one was promoted."""
    said, loop = "", asyncio.get_running_loop()
    looked_at = loop.time()
    while True:
        home = peek_home(address.folder)
        if home is not None and loop.time() >= looked_at + home.settings.identity.watch_s:
            await check_at_start(address, notices=notices, log=log)
            looked_at = loop.time()
        try:
            standing = await asyncio.to_thread(standing_at, address, clock=clock)
        except (HoldfastError, OSError) as error:
            if not said:
                raise
            log.event("roster-unread", error=str(error))
            await asyncio.sleep(LOOK_S)
            continue
        untaken = patient and standing.may_act and _is_untaken(address)
        if standing.may_act and not untaken:
            if said or standing.kind is StandingKind.PRIMARY:
                log.event("agent-enrolled", instance=standing.name, role=standing.kind.value)
            return
        if not patient:
            standing.check()
        kind, text = (StandingKind.STANDBY, UNTAKEN) if untaken else (standing.kind, standing.text)
        if text != said:
            said = text
            log.event("agent-waits", state=kind.value, text=said)
            if kind is StandingKind.COPY and notices is not None:
                notice = quarantined_notice(str(address.folder), kind.value, said, standing.hint)
                await _tell(notices, notice, log)
        await asyncio.sleep(LOOK_S)


def _is_untaken(address: JournalAddress) -> bool:
    """Whether this folder handed over and is to get the agent back: the roster says so before the package is here."""
    mark = find_mark(address.instance)
    return mark is not None and mark.state == MOVED and bool(mark.instance)


async def _tell(notices: Notices, notice: object, log: Log) -> None:
    try:
        await notices.tell(notice)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # noqa: BLE001 - the hook is the user's
        log.event("notice-failed", error=str(error))


@asynccontextmanager
async def kept_enrolled(
    address: JournalAddress, journal: Journal, stop: Callable[[], None], *, log: Log, clock: Clock | None = None
) -> AsyncGenerator[None]:
    """While the block runs, this instance stops when it is removed or becomes a standby; then this raises
    AgentElsewhere: the next start waits until it may act again. What happens to the other instances is notified."""
    home = peek_home(address.folder)
    if home is None:
        yield
        return
    ended: list[Standing] = []

    async def watch() -> None:
        pause_s, said = WATCH_S, ""
        while True:
            await asyncio.sleep(pause_s)
            try:
                standing = await asyncio.to_thread(find_standing, home, clock=clock or SystemClock(), at=address)
                if not standing.may_act:
                    break
                pause_s = WATCH_S if standing.view else ALONE_WATCH_S
                if standing.view:
                    await _notify_of_others(home, standing, journal)
            except (HoldfastError, OSError) as error:
                if str(error) != said:  # a journal that is away ends the session by itself
                    log.event("roster-unread", error=str(error))
                said = str(error)
        ended.append(standing)
        log.event("stopping", reason=standing.text)
        stop()

    async with running_beside(lasting(watch, partial(log.failure, "roster-unread"), again_s=WATCH_S)):
        yield
    if ended:
        raise AgentElsewhere(ended[0].text, hint=ended[0].hint)


async def _notify_of_others(home: AgentHome, standing: Standing, journal: Journal) -> None:
    shared = await asyncio.to_thread(journal_at(home.journal).find_shared)
    if shared is None:
        return
    seen = await asyncio.to_thread(read_seen, shared)
    for one in seen.unknown.values():
        await journal.add_notice(unknown_instance_notice(one.host, one.who, now_ms=journal.now_ms()))
    sessions = await journal.list_sessions()
    for enrolled, newest in lost_instances(standing.view.enrolled, seen, sessions):
        if enrolled.name != standing.name:
            notice = instance_lost_notice(enrolled.name, enrolled.host, newest.session_id, now_ms=journal.now_ms())
            await journal.add_notice(notice)


def lost_instances(
    enrolled: Iterable[Enrolled], seen: Seen, sessions: Iterable[SessionRow]
) -> list[tuple[Enrolled, SessionRow]]:
    """The instances whose last worker was found dead and that have no live one, with the session of that worker."""
    found: list[tuple[Enrolled, SessionRow]] = []
    by_host: dict[str, list[SessionRow]] = {}
    for one in sessions:
        by_host.setdefault(one.host_id, []).append(one)
    for one in enrolled:
        bound = seen.bound.get(one.key)
        rows = [] if bound is None else by_host.get(bound.host, [])
        newest = max(rows, key=lambda row: row.begun_ms, default=None)
        if newest is not None and newest.died and not any(row.alive for row in rows):
            found.append((one, newest))
    return found
