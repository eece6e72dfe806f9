"""Which instance this is, and what it may ask the arbiter for: decisions over values.

An instance has a key that was made on this host and is never copied or backed up. The file that
holds it also says where it was made: the machine, the boot, the folder. Whoever finds the file
somewhere else, or after another boot, has a copy of it or a machine that was started anew; the key
is destroyed and another one made. The folder itself is another matter: after a reboot it is still
the one whose journal this agent last wrote, and its key before is remembered with its counter. A
copy of the folder is not, and neither is one that was put back to an older day, whose counter is
behind the one that the arbiter heard last.

So an incarnation is asked for only
  - where none was ever granted;
  - by the instance that has it (a renewal);
  - by the folder whose own key had it, with nothing lost since;
  - by the instance that it was yielded to;
  - by a journal that a restore has made the heir: its incarnation is above the one granted.
Everybody else waits, says that it waits, and reads. Time alone lets no copy in: a person decides,
by making it a restore.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.identity.lease.arbiter_state import Seen
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.records import Position
from holdfast.identity.statements.claim import How

BEFORE_MAX = 32  # boots in a row without a lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where an instance is: this machine, this boot, this folder."""

    machine: Digest
    boot: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What is kept of an instance, beside its secret."""

    id: AgentId
    key: PublicKey
    site: Site
    e: int = 0  # the highest incarnation that was asked for
    counter: int = 0  # of the last message; written before it is sent
    last: Digest | None = None  # of that message
    frozen: Position | None = None  # where the log stood when two copies of the key were seen
    # Keys that this folder had before, newest first, with their counters: one of them may hold the
    # lease. Forgotten once this one does.
    before: tuple[tuple[PublicKey, int], ...] = ()


class Kin(StrEnum):
    """What the kept instance is to whoever finds it."""

    SAME = "same"
    REBOOTED = "rebooted"  # this folder, started anew
    COPIED = "copied"  # of another machine or folder
    OTHER = "other"  # of another agent


def kin_of(kept: Instance, site: Site, id: AgentId) -> Kin:
    if kept.id != id:
        return Kin.OTHER
    was = kept.site
    if (was.machine, was.inode) != (site.machine, site.inode):
        return Kin.COPIED
    if was.boot != site.boot:
        return Kin.REBOOTED  # the number of a device may change from one boot to the next
    return Kin.SAME if was.device == site.device else Kin.COPIED


def may_speak(kept: Instance, kin: Kin, position: Position) -> bool:
    """Whether the kept key is still the one of this place. A frozen one is, until the log moves
    on: it says nothing, but neither does another key in its stead."""
    return kin is Kin.SAME and (kept.frozen is None or position <= kept.frozen)


def successor(
    kept: Instance | None, kin: Kin | None, *, id: AgentId, key: PublicKey, site: Site, position: Position
) -> Instance:
    """The instance of a new key in this folder; what the folder was is carried over, where it is
    the same folder.

    Not from a frozen key: until it was frozen two copies may both have acted, and neither knows
    what the other did. New keys let somebody act again, a restore says who.
    """
    if kept is None or kin not in (Kin.SAME, Kin.REBOOTED):
        return Instance(id=id, key=key, site=site)
    if kept.frozen is not None:
        still = kept.frozen if position <= kept.frozen else None
        return Instance(id=id, key=key, site=site, e=0, frozen=still)
    return Instance(id=id, key=key, site=site, e=kept.e, before=((kept.key, kept.counter), *kept.before)[:BEFORE_MAX])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A claim that may be made."""

    e: int
    after_e: int
    how: How


class Why(StrEnum):
    """Why an instance may not act."""

    ELSEWHERE = "elsewhere"  # another instance holds the lease, and this one may follow it
    COPY = "copy"  # not the folder that had the lease last
    BEHIND = "behind"  # a higher incarnation was granted than this journal has seen
    OLDER = "older"  # this folder was put back to an older day
    FROZEN = "frozen"  # two copies of the key spoke; rotate first
    SILENT = "silent"  # the log lets nobody act, or other keys
    TROUBLE = "trouble"  # the arbiter, the signer or the journal cannot be used just now


def what_to_ask(instance: Instance, seen: Seen | None, *, incarnation: int, position: Position) -> Ask | Why:
    """The claim that this instance may make, or why it makes none.

    `incarnation` is the journal's, 0 where there is none yet; `position` the log's.
    """
    if instance.frozen is not None and position <= instance.frozen:
        return Why.FROZEN
    if seen is None:
        return Ask(e=max(incarnation, 1), after_e=0, how=How.EXPIRED)
    # A restore in this very folder has raised the journal: its lease is of the lost timeline.
    if seen.inst == instance.key and incarnation <= seen.e:
        return Ask(e=seen.e, after_e=seen.e, how=How.RENEW)
    if seen.frozen and position <= seen.position:
        return Why.FROZEN
    how = _how(instance, seen, position)
    if incarnation > seen.e:
        return Ask(e=incarnation, after_e=seen.e, how=how)
    if seen.yielded_to == instance.key:
        return Ask(e=seen.e + 1, after_e=seen.e, how=how)
    if incarnation < seen.e and instance.e < seen.e:
        return Why.BEHIND
    counter = dict(instance.before).get(seen.inst)
    if counter is None:
        return Why.COPY
    if counter < seen.counter:
        return Why.OLDER
    return Ask(e=seen.e + 1, after_e=seen.e, how=how)


def _how(instance: Instance, seen: Seen, position: Position) -> How:
    if seen.yielded_to == instance.key:
        return How.YIELD
    if position.g > seen.position.g:
        return How.RCV
    return How.ROT if position > seen.position else How.EXPIRED


def waiting(seen: Seen | None) -> Ask:
    """The claim that asks for nothing: the holder shall know that there is another one."""
    e = max(1 if seen is None else seen.e, 1)
    return Ask(e=e, after_e=0 if seen is None else seen.e, how=How.WAITING)


def holding(instance: Instance) -> Instance:
    """After a grant: the keys before this one hold nothing any more."""
    return replace(instance, before=()) if instance.before else instance


def spoke(instance: Instance, *, counter: int, digest: Digest, e: int) -> Instance:
    return replace(instance, counter=counter, last=digest, e=max(instance.e, e))
