"""`holdfast instance promote` and `yield`, where each instance has a journal of its own (a file).

Hand-off, planned: the instance that acts leaves in a package, as `holdfast migrate export` does, and the roster in it
names the other one as the primary. Nothing is lost, so no task is in doubt.

Promotion, when the primary is lost: a person's command on the standby. It is a recovery from the newest verified
snapshot, with the keys that are here, and it locks out the primary of before. In this order, and what a kill leaves:

    standby.json: promoting   with the position of the key log; nobody opens this folder from here on
    the snapshot is restored  the folder of before is kept beside it; the mark is carried over, so it still waits
    the keys are rotated      THE MOMENT: the vault of the old primary does not have the new ones. Witnesses, relays and
                              places know it, and its worker stops at its next look there (app/eviction.py)
    the roster names us       alone: the vaults of other standbys do not have the new keys either
    the old one has stopped   so long we wait: a worker that runs looks at the keys every `watch_s`, and then ends its
                              calls; one that is paused is killed by the kernel when its lease is over. The snapshot
                              has its settings; what its command line said instead only a person can tell
    the marks are gone        standby.json, and moved.json of a folder that had handed over: it may act
    a first backup            with the new keys

The same command goes on after a kill: what was restored since the mark was written is not restored again, and a
rotation that was begun is finished with the same bytes, and waited for again. Before the mark is gone the old primary
may act and this folder may not. What the old one did since the snapshot is in doubt here: every step that it may have
done is looked up or parked, and what is not there then will not come later. Where it reaches no witness, relay or place
it does not stop, and where its machine was paused as a whole its clocks were too: a person switches it off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.app.eviction import LOOK_S_MAX
from holdfast.app.instances.roster_change import RosterChange
from holdfast.app.instances.standing import StandingKind, find_standing
from holdfast.backup.engine import BackupEngine
from holdfast.backup.places.published import Publisher
from holdfast.core.clock import Clock, Entropy
from holdfast.core.decoding import convert
from holdfast.core.journal_address import INSTANCE
from holdfast.errors import BadInput, KeysReplaced, NotEnrolled, NotNow
from holdfast.host.folder_swap import folders_before
from holdfast.identity.acts.log_act import act_lock, open_log_session, rotate_identity
from holdfast.identity.files.own_log import extend_own_log, read_own_log
from holdfast.identity.files.roster_file import roster_lines
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.records import LogPosition, RotationReason
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import Enrolled, join_rosters
from holdfast.identity.vault.keyset import KeySet
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.moved import (
    MOVED,
    RETURN_HINT,
    StandbyMark,
    find_mark,
    find_standby,
    has_handed_over,
    remove_mark,
    remove_standby,
    write_standby,
)
from holdfast.layout.settings import IdentitySettings, find_settings, write_identity_settings
from holdfast.recovery.carry_memory import carry_memory
from holdfast.recovery.recover_agent import RecoveredAgent, RecoveryTarget, recover_agent
from holdfast.recovery.survey import Evidence, Survey, survey_evidence

Tell = Callable[[str], None]

LOOKS = 2  # one that began just before the new keys were published, and the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteMeans:
    """What a promotion needs: both vaults open."""

    keys: KeySet
    engine: BackupEngine
    clock: Clock
    entropy: Entropy
    port: Signatures
    tell: Tell
    primary_is_off: bool = False  # a person says so
    started_with: Mapping[str, float] = field(default_factory=dict[str, float])  # the old worker, beside its settings


async def promote(home: AgentHome, means: PromoteMeans, *, places: tuple[str, ...] = ()) -> RecoveredAgent:
    """This standby takes over from the newest snapshot. Raises NotEnrolled where the folder is no standby, and all that
    `holdfast recover` raises."""
    try:
        return await _promote(home, means, places)
    except KeysReplaced as error:
        if error.hint != KeysReplaced.default_hint:
            raise
        if (mark := find_standby(home.instance)) is not None:
            write_standby(home.instance, msgspec.structs.replace(mark, replaced=True))  # every command says so
        raise KeysReplaced(f"this standby cannot take over: {error.message}", hint=RETURN_HINT) from error


async def _promote(home: AgentHome, means: PromoteMeans, places: tuple[str, ...]) -> RecoveredAgent:
    mark = get_standby(home, means.clock)
    vault = means.keys.ops
    evidence = Evidence(places=places, agent=home.name, vault=vault, witnesses=home.witnesses)
    survey = await survey_evidence(evidence, home.folder, engine=means.engine, port=means.port)
    if mark.promoting is None:
        await _check_witnesses(home, means)
        log = read_own_log(home.folder, means.port)
        mark = StandbyMark(
            primary=mark.primary,
            promoting=log.position,
            since_ms=means.clock.wall_ms(),
            identity=msgspec.to_builtins(home.settings.identity),
            name=_own_name(home, means, survey),
        )
        write_standby(home.instance, mark)
    elif mark.replaced:  # a person tries again, perhaps with another vault
        write_standby(home.instance, msgspec.structs.replace(mark, replaced=False))
    target = RecoveryTarget(
        folder=home.folder, vault=vault.folder, second=means.keys.nexts.folder, arbiter=home.settings.identity.arbiter
    )

    async def take_over(restored: AgentHome, publish: Publisher) -> KeyLog:
        return await _take_over(restored, means, publish)

    return await recover_agent(
        survey,
        evidence,
        target,
        clock=means.clock,
        entropy=means.entropy,
        port=means.port,
        tell=means.tell,
        take_over=take_over,
    )


def get_standby(home: AgentHome, clock: Clock) -> StandbyMark:
    """The mark of this standby. A folder that has handed over waits as any other standby, also when it is to get the
    agent back and the package for that is lost. Raises NotEnrolled."""
    mark = find_standby(home.instance)
    if mark is not None:
        return mark
    standing, moved = find_standing(home, clock=clock), find_mark(home.instance)
    enrolled = standing.kind in (StandingKind.STANDBY, StandingKind.PRIMARY)
    if enrolled and moved is not None and moved.state == MOVED:
        acting = (one.name for one in standing.view.enrolled if one.role is Role.PRIMARY and one.name != standing.name)
        return StandbyMark(primary=", ".join(acting))
    if standing.may_act:
        raise NotEnrolled(
            f"{home.folder} is not a standby: it acts already",
            hint="if a promotion was interrupted, only its first backup is missing: run `holdfast backup now`",
        )
    raise NotEnrolled(
        f"{home.folder} is not a standby", hint="`holdfast instance list` shows the instances and their roles"
    )


async def _check_witnesses(home: AgentHome, means: PromoteMeans) -> None:
    """Enough witnesses answer to confirm new keys; without them nothing is begun. Raises NotNow."""
    session = await open_log_session(home, port=means.port, promoting=True)
    needs = session.log.head.witnesses
    there = sum(one in session.reached.by_key for one in needs.members)
    if there < needs.needed:
        silent = "; ".join(f"{place}: {why}" for place, why in session.reached.unreachable.items())
        raise NotNow(
            f"{there} of the {needs.needed} witnesses that must confirm new keys answer here ({silent})",
            hint="nothing was changed. Make them reachable from this host; if they were lost with the primary, run "
            "`holdfast recover` with the recovery words",
        )


def _own_name(home: AgentHome, means: PromoteMeans, survey: Survey) -> str:
    """By the newest roster that is known here or at a place: this folder may have missed that it was removed."""
    change = RosterChange.at(home, means.keys.ops, clock=means.clock, entropy=means.entropy, port=means.port)
    own, key = change.own(), change.own_key()
    if own is None or key is None:
        raise NotEnrolled(f"the folder {home.folder} is not in the roster of its agent")
    view = join_rosters((*roster_lines(home.folder), *survey.rosters), survey.log, port=means.port)
    if view and view.find(key) is None:
        raise NotEnrolled(
            f"the instance {own.name} was removed from the roster: its folder is a copy, and takes nothing over",
            hint="invite it again where the agent runs. If no instance is left, run `holdfast recover` with the "
            "recovery words",
        )
    return own.name


async def _take_over(home: AgentHome, means: PromoteMeans, publish: Publisher) -> KeyLog:
    """From the restored folder to one that may act. Safe to repeat."""
    mark = find_standby(home.instance)
    if mark is None or mark.promoting is None:  # an earlier run has finished this
        return read_own_log(home.folder, means.port)
    # A run that is repeated must wait as long as the first: the old primary's own watch_s stays.
    own = msgspec.structs.replace(convert(mark.identity, IdentitySettings), watch_s=home.settings.identity.watch_s)
    if own != home.settings.identity:  # the snapshot has the paths of the old host
        write_identity_settings(home.settings_file, name=home.name, identity=own)
        home = load_home(home.folder)
    for kept in folders_before(home.folder):
        if find_standby(kept / INSTANCE) == mark:  # the folder of this standby, before the restore
            carry_memory(kept, home.folder)
    means.tell("new keys lock out the old primary")
    with act_lock(home.folder):
        session = await open_log_session(home, port=means.port, promoting=True)
        session.beside_places = publish
        if session.find_pending() is not None or session.log.position <= LogPosition(*mark.promoting):
            log = (await rotate_identity(session, means.keys, why=RotationReason.RECOVERED, entropy=means.entropy)).log
        else:
            log = extend_own_log(home.folder, session.log, means.port)
    change = RosterChange.at(home, means.keys.ops, clock=means.clock, entropy=means.entropy, port=means.port)
    change.enrol_here(mark.name, alone=True)
    if not means.primary_is_off:
        wait_s = stops_within_s(home, means.started_with)
        means.tell(f"waiting {wait_s:g} s: until then the old primary may act if it reaches a witness or place")
        await asyncio.sleep(wait_s)
    remove_mark(home.instance)  # of a folder that had handed over
    remove_standby(home.instance)
    return log


def stops_within_s(home: AgentHome, given: Mapping[str, float]) -> float:
    """How long after the new keys are published a worker with these settings may still send; `given`: what its command
    line or its own settings file said instead. Raises BadSettings."""
    worker = find_settings(home.journal)
    lease_ttl_s, grace_s = given.get("lease_ttl_s", worker.lease_ttl_s), given.get("grace_s", worker.grace_s)
    return max(lease_ttl_s, home.settings.identity.watch_s + LOOKS * LOOK_S_MAX + grace_s)


def handed_over(change: RosterChange, to: str) -> None:
    """The roster names `to` as the primary, and this folder as a standby. Safe to repeat.
    Raises NotEnrolled, BadInput."""
    own, other = change.own(), change.get_named(to)
    if own is None:
        raise NotEnrolled(f"the folder {change.home.folder} is not in the roster of its agent")
    if own.key == other.key:
        raise BadInput(f"{to} is this instance itself", hint="name the instance that takes over")
    if not has_handed_over(change.home.instance):  # else the roster may name another one by now
        change.apply(lambda listed: tuple(_with_primary(one, to) for one in listed))


def is_left_waiting(change: RosterChange) -> bool:
    """Whether this folder waits by its roster alone: the hand-off was cut short before its mark was written, or its
    cancel after the mark was removed. A standby that joined, and one that has handed over, have their marks."""
    instance, own = change.home.instance, change.own()
    waits = own is not None and own.role is Role.STANDBY and not change.hosts
    return waits and find_mark(instance) is None and find_standby(instance) is None


def taken_back(change: RosterChange) -> None:
    """After a hand-off that was cancelled: this folder is the primary again."""
    own = change.own()
    if own is not None and not change.hosts:
        change.apply(lambda listed: tuple(_with_primary(one, own.name) for one in listed))


def _with_primary(one: Enrolled, name: str) -> Enrolled:
    return replace(one, role=Role.PRIMARY if one.name == name else Role.STANDBY)
