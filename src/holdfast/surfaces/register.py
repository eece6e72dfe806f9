"""The register: every room is looked at, and what it reports is put together; the level follows from the facts.

No list is kept here: a row exists because a room found something. A room that cannot be looked at becomes a row that
says so, and hides none of the others. Looking changes nothing. Files and witnesses are looked at in a thread: a mount
that hangs blocks no worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from holdfast.app.binder import open_journal
from holdfast.backup.surfaces import cover_of, found_folder, found_places, recovered_ms, see_places
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.ports import KeyRing
from holdfast.core.surfaces import Cover, Fact, Found, Surface, Targets, Verdict, age_text, joined
from holdfast.errors import HoldfastError
from holdfast.host.private_files import is_in_memory
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.journal_keys.secret_file import SECRETS, SecretFile
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.surfaces import found_identity, found_secrets
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.journal.surfaces import found_journal, look_outside
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.settings import OwnSurface, find_settings
from holdfast.memory.surfaces import found_memory
from holdfast.relay.surfaces import found_relays
from holdfast.surfaces.level import MISSING, LevelReport, judge_level
from holdfast.surfaces.report import DrillSummary, read_reports
from holdfast.surfaces.report_marks import ReportMarks, find_missing, read_marks
from holdfast.surfaces.targets import read_targets
from holdfast.surfaces.tool_files import found_tool_files
from holdfast.views.surfaces import find_doubts, found_tasks

PASSED = ("pass", "pass with findings")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedJournal:
    journal: Journal
    keys: KeyRing


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """One look at everything."""

    at_ms: int
    targets: Targets
    surfaces: tuple[Surface, ...]
    facts: tuple[Fact, ...]
    level: LevelReport


@asynccontextmanager
async def opened_journal(home: AgentHome) -> AsyncGenerator[OpenedJournal | None]:
    """The agent's journal, where it can be opened without changing it; else None, and the rows say so."""
    address, now_ms = home.journal, SystemClock().wall_ms()
    settings = find_settings(address)
    outside = await asyncio.to_thread(_outside, home, now_ms)
    journal = keys = None
    if any(one.name == "state.resumes" and one.value for one in outside):  # one that stopped is repaired by opening it
        with contextlib.suppress(HoldfastError, OSError):  # locked, moved away: it was looked at from outside
            journal, keys = await open_journal(address, create=False, network_fs=settings.allow_network_fs)
    if journal is None or keys is None:
        yield None
        return
    try:
        yield OpenedJournal(journal=journal, keys=keys)
    finally:
        await journal.close()


async def look(home: AgentHome, opened: OpenedJournal | None, *, now_ms: int, deep: bool = True) -> Register:
    """Look at everything. Without `deep` the folder is not walked and no task is read: enough for level and alarms."""
    targets = read_targets(home)
    cover, found, outside = await asyncio.to_thread(_look_at_files, home, targets, now_ms, deep)
    parts = [found]
    journal = None if opened is None else opened.journal
    provider = find_settings(home.journal).journal_durability == "provider"
    rows = await found_journal(home.journal, outside, journal, cover, provider=provider)
    parts.append(rows)
    if journal is not None:
        parts.append(Found(facts=tuple(await find_doubts(journal))))
        if deep:
            parts.append(await found_tasks(journal, rows.surfaces[0], targets=targets, now_ms=now_ms))
    parts.append(_guarded("secrets", lambda: _secrets(home, opened, cover)))
    every = joined(parts)
    targeted = tuple(_with_targets(one, targets) for one in every.surfaces)
    report = judge_level(every.facts, now_ms=now_ms, targets=targets)
    return Register(at_ms=now_ms, targets=targets, surfaces=targeted, facts=every.facts, level=report)


async def look_now(home: AgentHome, *, deep: bool = True) -> Register:
    """The same, with the journal opened for it."""
    async with opened_journal(home) as opened:
        return await look(home, opened, now_ms=SystemClock().wall_ms(), deep=deep)


def _look_at_files(home: AgentHome, targets: Targets, now_ms: int, deep: bool) -> tuple[Cover, Found, tuple[Fact, ...]]:
    outside = _outside(home, now_ms)
    cover = Cover(verdict=Verdict.AT_RISK, why="the places could not be read", fix="holdfast doctor")

    def places() -> Found:
        nonlocal cover
        seen = see_places(home, now_ms=now_ms)
        cover = cover_of(seen, now_ms=now_ms, targets=targets)
        return found_places(home, seen, now_ms=now_ms)

    parts = [Found(facts=(*outside, *_of_the_folder(home, outside, now_ms)))]
    parts.append(_guarded("identity", lambda: asyncio.run(found_identity(home, now_ms=now_ms))))
    parts.append(_guarded("places", places))
    parts.append(_guarded("relays", lambda: asyncio.run(found_relays(home, cover, now_ms=now_ms))))
    parts.append(_guarded("memory", lambda: found_memory(home, cover, now_ms=now_ms)))
    if deep and home.name:
        parts.append(_guarded("folder", lambda: found_folder(home, cover)))
    own = home.settings.surfaces.own
    parts.append(Found(surfaces=tuple(_own(home, name, one, targets, now_ms) for name, one in own.items())))
    parts.append(_guarded("drills", lambda: _drills(home)))
    if deep:
        parts.append(_guarded("files", lambda: found_tool_files(home)))
    return cover, joined(parts), outside


def _guarded(part: str, find: Callable[[], Found]) -> Found:
    """What a look finds, or a row that says why it could not be had."""
    try:
        return find()
    except (HoldfastError, OSError) as error:
        row = Surface(
            id=part,
            kind=part,
            holds="not known",
            where="",
            verdict=Verdict.AT_RISK,
            why=f"could not be looked at: {error}",
            fix="holdfast doctor",
        )
        return Found(surfaces=(row,))


def _outside(home: AgentHome, now_ms: int) -> tuple[Fact, ...]:
    try:
        return look_outside(home.journal, journal_at(home.journal), now_ms=now_ms)
    except HoldfastError as error:  # its driver is not installed
        return (Fact(name="state.resumes", value=False, at_ms=now_ms, source=error.message),)


def _of_the_folder(home: AgentHome, outside: Iterable[Fact], now_ms: int) -> list[Fact]:
    """Whether state is on a disk, and an adopted agent has files of its own to resume from."""
    shared = any(one.name == "journal.shared" and one.value for one in outside)
    found = list[Fact]()
    if home.name or outside:
        volatile = is_in_memory(home.state) and not shared
        source = f"{home.state} is in memory: it is gone with the power" if volatile else f"{home.state} is on a disk"
        found.append(Fact(name="state.on-disk", value=not volatile, at_ms=now_ms, source=source))
    if home.name and home.state != home.folder:
        source = f"the agent's own files in {home.state}"
        found.append(Fact(name="state.resumes", value=True, at_ms=now_ms, source=source))
    return found


def _secrets(home: AgentHome, opened: OpenedJournal | None, cover: Cover) -> Found:
    path = home.folder / SECRETS
    if not os.path.lexists(path):
        return Found()
    if opened is None:
        why = "the journal's keys could not be opened, so names and dates are not known"
        row = Surface(
            id="secrets",
            kind="secret",
            holds="secrets of tools",
            where=str(path),
            protection="sealed, backup",
            verdict=Verdict.AT_RISK,
            why=why,
            fix="holdfast doctor",
        )
        return Found(surfaces=(row,))
    secrets = SecretFile(home.folder, keys=opened.keys, clock=SystemClock(), entropy=SystemEntropy()).list_secrets()
    log = find_own_log(home.folder, Sodium())
    since_ms = recovered_ms(home, 0 if log is None else log.position.g)
    return found_secrets(secrets, cover, where=path, recovered_ms=since_ms)


def _own(home: AgentHome, name: str, own: OwnSurface, targets: Targets, now_ms: int) -> Surface:
    """A surface that the project names itself. Its evidence is the age of a file, so nothing is covered by words."""
    path, rpo_s = home.path_of(own.evidence), targets.rpo_s if own.rpo_s is None else own.rpo_s
    at_ms, verdict = None, Verdict.AT_RISK if own.protection else Verdict.UNCOVERED
    try:
        at_ms = None if path is None else round(os.stat(path).st_mtime * 1000)
    except OSError:
        why = f"{path} is not there"
    else:
        why = "the settings name no file as evidence" if own.protection else "nothing protects it"
    if at_ms is not None and own.protection:
        old_ms = now_ms - at_ms
        fresh = 0 <= old_ms <= rpo_s * 1000
        verdict = Verdict.COVERED if fresh else Verdict.AT_RISK
        why = f"the newest evidence is {age_text(old_ms)} old; the target is {rpo_s:,} s"
    return Surface(
        id=f"own/{name}",
        kind="own",
        holds=own.holds,
        where=own.where,
        owner=own.owner or home.name,
        protection=own.protection,
        domain=own.domain or own.where,
        rpo_s=own.rpo_s,
        evidence="" if at_ms is None else str(path),
        evidence_ms=at_ms,
        verdict=verdict,
        why=why,
        fix="" if verdict is Verdict.COVERED else own.fix,
    )


def _drills(home: AgentHome) -> Found:
    """What reports say; and of a drill whose newest report was removed, that it proves nothing any more."""
    reports = read_reports(home)
    try:
        marks = read_marks(home)
    except ValueError:
        marks = ReportMarks()
    newest = {one.digest for one in marks.newest.values()}
    missing = [
        Fact(name="drill", about=one.drill, value=False, at_ms=one.ended_ms, source=f"{MISSING}: {one.id}")
        for one in find_missing(marks, (report.digest for report in reports))
        if one.digest in newest and one.verdict in (*PASSED, "fail")
    ]
    gone = {one.about for one in missing}
    return Found(facts=(*drill_facts(one for one in reports if one.slug not in gone), *missing))


def drill_facts(reports: Iterable[DrillSummary]) -> tuple[Fact, ...]:
    """What drills proved or failed to; one that did not apply, or could not run, says nothing. `reports` are in the
    order of their chain: a failure ends what was proven before it, also where a clock was set back between the two."""
    found = dict[str, list[Fact]]()
    for one in reports:
        if one.verdict not in (*PASSED, "fail"):
            continue
        passed = Fact(
            name="drill",
            about=one.slug,
            value=one.verdict in PASSED,
            at_ms=one.ended_ms,
            source=f"{one.verdict}: {one.path}",
        )
        facts = found.setdefault(one.slug, [])
        if facts and not (passed.value and facts[0].value):
            facts.clear()
        facts.append(passed)
        if one.rpo_items is not None:
            facts.append(msgspec.structs.replace(passed, name="drill.lost", value=one.rpo_items))
    return tuple(fact for facts in found.values() for fact in facts)


def _with_targets(surface: Surface, targets: Targets) -> Surface:
    return msgspec.structs.replace(
        surface,
        rpo_s=targets.rpo_s if surface.rpo_s is None else surface.rpo_s,
        rto_s=targets.rto_s if surface.rto_s is None else surface.rto_s,
    )
