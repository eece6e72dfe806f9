"""The enrolled instances as people see them: role, host, whether a worker of theirs lives, how far their memory is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from holdfast.app.binder import open_journal
from holdfast.app.eviction import check_not_evicted
from holdfast.app.instances.roster_change import NONE_ACTS, NONE_ACTS_HINT
from holdfast.app.instances.standing import Seen, StandingKind, find_standing, read_seen
from holdfast.core.clock import Clock, SystemClock
from holdfast.errors import IsStandby, KeysReplaced
from holdfast.host.machine import host_id
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.lease.enrolment import find_own_key
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.encodings import PublicKey
from holdfast.identity.statements.roster import Enrolled
from holdfast.instances.merge_state import PeerState, load_state
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import RemarkMark, SessionRow
from holdfast.layout.agent_home import AgentHome

ALIVE, AWAY, UNSEEN = "alive", "away", "unseen"


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: str
    host: str
    key: str
    here: bool  # it is this folder
    presence: str = ""  # alive, away, unseen; empty: not known
    where: str = ""  # host and folder that use its key, as they said
    workers: int = 0  # that are alive
    tasks: int = 0  # that they hold
    lag: int | None = None  # remarks that its memory files lack; None: not known
    unconfirmed: int | None = None  # memory files whose changes on this host it has not confirmed; None: not known
    behind_ms: int = 0  # since when; 0: it has all
    waits: str = ""  # what of it this host waits for


class InstanceList(msgspec.Struct, frozen=True, kw_only=True):
    standing: str  # of this folder: alone, primary, standby, copy
    text: str
    version: tuple[int, int, int]  # of the roster: g, s, ver
    forked: bool
    instances: tuple[InstanceRow, ...]
    unknown: tuple[str, ...]  # folders that opened the shared journal and are not enrolled
    hint: str = ""  # what helps a folder that is a copy
    waits: str = ""  # why this folder merges its memory with none, or sends nothing


def list_instances(home: AgentHome, *, clock: Clock) -> InstanceList:
    """Blocks; asks the shared journal where there is one."""
    standing = find_standing(home, clock=clock)
    try:
        check_not_evicted(home)
    except KeysReplaced as error:
        if standing.kind is not StandingKind.COPY:
            standing = replace(standing, kind=StandingKind.COPY, text=error.message, fix=error.hint)
    shared = journal_at(home.journal).find_shared() if standing.view else None
    seen, sessions, marks = Seen(), list[SessionRow](), list[RemarkMark]()
    if shared is not None:
        seen = read_seen(shared)
        sessions, marks = asyncio.run(_looked(home))
    log = find_own_log(home.folder, Sodium())
    own = None if log is None else find_own_key(home.instance, id=log.id, clock=clock)
    rows = rows_of(standing.view.enrolled, seen, sessions, _lags(marks), own=own, shared=shared is not None)
    state = load_state(home.instance)
    return InstanceList(
        standing=standing.kind.value,
        text=standing.text,
        hint=standing.hint if standing.kind is StandingKind.COPY else "",
        version=standing.view.rank,
        forked=standing.view.forked,
        instances=tuple(_merged(row, state.peers) for row in rows),
        unknown=tuple(one.who for one in seen.unknown.values()),
        waits=state.trouble if len(standing.view.enrolled) > 1 else "",  # of one that is alone, it is of before
    )


def _merged(row: InstanceRow, peers: Mapping[str, PeerState]) -> InstanceRow:
    known = peers.get(row.name)
    if known is None:
        return row
    return msgspec.structs.replace(row, unconfirmed=known.files, behind_ms=known.behind_ms, waits=known.waits)


def rows_of(
    enrolled: Iterable[Enrolled],
    seen: Seen,
    sessions: Iterable[SessionRow],
    lags: Mapping[str, int],
    *,
    own: PublicKey | None,
    shared: bool,
) -> list[InstanceRow]:
    """`lags` by the folder's name in the journal, which is its host id."""
    alive: dict[str, list[SessionRow]] = {}
    for one in sessions:
        if one.alive:
            alive.setdefault(one.host_id, []).append(one)
    rows: list[InstanceRow] = []
    for one in enrolled:
        bound = seen.bound.get(one.key)
        live = [] if bound is None else alive.get(bound.host, [])
        presence = UNSEEN if bound is None else ALIVE if live else AWAY
        row = InstanceRow(
            name=one.name,
            role=one.role.value,
            host=one.host,
            key=one.key,
            here=one.key == own,
            presence=presence if shared else "",
            where="" if bound is None else bound.who,
            workers=len(live),
            tasks=sum(session.tasks for session in live),
            lag=None if bound is None else lags.get(bound.host),
        )
        rows.append(row)
    return rows


def check_another_acts(home: AgentHome, name: str, *, alive: bool) -> None:
    """Hosts that share a journal: another instance than this one acts; `alive`: it has a worker now. A look, before a
    person is asked; the act judges the roster again. Raises IsStandby."""
    rows = [one for one in list_instances(home, clock=SystemClock()).instances if one.name != name]
    acting = [one for one in rows if one.role == "primary"]
    if not acting:
        raise IsStandby(NONE_ACTS, hint=NONE_ACTS_HINT)
    if alive and not any(one.presence == ALIVE for one in acting):
        names = ", ".join(one.name for one in acting)
        raise IsStandby(f"{NONE_ACTS}: {names} has no live worker", hint="start a worker there first")


def other_live_hosts(home: AgentHome) -> list[str]:
    """The workers of other hosts that share the journal and are alive."""
    admin = journal_at(home.journal)
    if not admin.hosts or not admin.exists():
        return []
    here = host_id(home.instance)
    sessions, _ = asyncio.run(_looked(home))
    return sorted({one.worker for one in sessions if one.alive and one.host_id != here})


async def _looked(home: AgentHome) -> tuple[list[SessionRow], list[RemarkMark]]:
    journal, _ = await open_journal(home.journal, create=False)
    try:
        return await journal.list_sessions(), await journal.remark_marks()
    finally:
        await journal.close()


def _lags(marks: Iterable[RemarkMark]) -> dict[str, int]:
    found = list(marks)
    newest = max((one.number for one in found), default=0)
    return {one.folder: newest - one.number for one in found}
