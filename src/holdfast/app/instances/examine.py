"""What `holdfast doctor` finds about the agent's instances."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from holdfast.app.doctor import Finding, damage, note, ok, warning
from holdfast.app.instances.presence import ALIVE, AWAY, UNSEEN, InstanceList, list_instances
from holdfast.app.instances.standing import FORK_FIX, FORKED, StandingKind, standing_at
from holdfast.core.clock import SystemClock
from holdfast.core.journal_address import JournalAddress
from holdfast.errors import HoldfastError, MovedAway, NotEnrolled
from holdfast.identity.statements.certificate import Role
from holdfast.instances.merge_state import load_state
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.moved import STANDBY, find_mark

CHECK = "instances"


async def examine_instances(home: AgentHome) -> AsyncIterator[Finding]:
    """Nothing where the agent has no roster."""
    try:
        listed = await asyncio.to_thread(list_instances, home, clock=SystemClock())
    except HoldfastError as error:
        yield warning(CHECK, f"the instances cannot be listed: {error.message}", error.hint)
        return
    for finding in (*findings_of(listed), *standby_faults(home)):
        yield finding


def standby_faults(home: AgentHome) -> list[Finding]:
    """Why a standby with a journal of its own could not take over, as far as this host shows it."""
    if not os.path.lexists(home.instance / STANDBY) or (home.second is not None and home.second.is_dir()):
        return []
    text = f"this standby cannot be promoted: the second place ({home.second or 'not set'}) is not on this host"
    return [warning(CHECK, text, "copy it here, with what opens it, and set `second` in [identity] of holdfast.toml")]


def judged_hand_over(home: AgentHome | None, finding: Finding) -> Finding:
    """The warning of a folder that has handed over ends when the other instance is seen with a new folder since: that
    of the package."""
    try:
        mark = find_mark(home.instance) if home is not None and finding.check == MovedAway.code else None
    except HoldfastError:
        return finding
    heir = None if home is None or mark is None else load_state(home.instance).peers.get(mark.instance)
    if mark is None or heir is None or not heir.life_before or heir.heard_ms <= mark.at * 1000:
        return finding
    return note(finding.check, f"this instance handed over to {mark.instance}, which has taken the agent")


async def examine_without_identity(address: JournalAddress) -> AsyncIterator[Finding]:
    """Of a folder that has the keys of a shared journal, and no agent in it."""
    with contextlib.suppress(HoldfastError):  # what is wrong with the journal is another finding
        standing = await asyncio.to_thread(standing_at, address, clock=SystemClock())
        if standing.kind is StandingKind.COPY:
            yield damage(CHECK, standing.text, standing.hint)


def findings_of(listed: InstanceList) -> list[Finding]:
    if listed.standing == StandingKind.ALONE:
        return []
    found: list[Finding] = []
    rows = listed.instances
    acting = [one for one in rows if one.role == Role.PRIMARY]
    if listed.standing == StandingKind.COPY:
        found.append(damage(CHECK, listed.text, listed.hint))
    elif listed.standing == StandingKind.STANDBY:
        found.append(note(CHECK, listed.text, "if that instance is lost: `holdfast instance promote`"))
    if listed.forked:
        found.append(warning(CHECK, FORKED, FORK_FIX))
    if not acting and rows:
        found.append(warning(CHECK, "no instance has the role primary: none acts", "`holdfast instance promote`"))
    for one in rows:
        if one.presence == UNSEEN:
            text = f"{one.name} is enrolled as {one.role}, and no host has used its key yet"
            fix = f"`holdfast instance join FILE` on its host, or `holdfast instance remove {one.name}`"
            found.append(warning(CHECK, text, fix))
        elif one.presence == AWAY and one.role == Role.PRIMARY:
            text = f"{one.name} ({one.where}) has no live worker"
            fix = f"`holdfast worker APP` there; if that host is lost for good: `holdfast instance remove {one.name}`"
            found.append(warning(CHECK, text, fix))
    machines = {one.where.partition(":")[0] for one in rows if one.where}
    if len(machines) == 1 and sum(bool(one.where) for one in rows) > 1:
        text = f"all instances that were seen are on {machines.pop()}: they fail together"
        found.append(warning(CHECK, text, "move one to another host"))
    found += [
        warning(CHECK, f"a folder that is not enrolled opened the journal, and waits: {one}", NotEnrolled.default_hint)
        for one in listed.unknown
    ]
    if not found:
        alive = sum(one.presence == ALIVE for one in rows)
        text = f"{len(rows)} enrolled" + (f", {alive} with a live worker" if alive else "")
        found.append(ok(CHECK, text))
    return found
