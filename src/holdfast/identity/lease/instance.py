"""Which instance this is, and what it may ask the arbiter for: decisions over values.

An instance has a key that was made on this host and is never copied or backed up. The file that holds it also
says where it was made: the machine, the boot, the folder. Anyone who finds the file somewhere else, or after
another boot, has a copy of it or a machine that was restarted; the key is destroyed and another one made. The
folder itself is another matter: after a reboot it is still the one whose journal this agent last wrote, and
its key before is remembered with its counter. A copy of the folder is not, and neither is one that was put
back to an older day, whose counter is behind the one that the arbiter heard last.

So an incarnation is asked for only
  - where none was ever granted;
  - by the instance that has it (a renewal);
  - by the folder whose own key had it, with nothing lost since;
  - by the instance that it was yielded to;
  - by a journal that a restore has made the heir: its incarnation is above the one granted.
Everyone else waits, says that it waits, and reads. Time alone lets no copy in: a person decides,
by making it a restore.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from holdfast.identity.lease.arbiter_state import LeaseView
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.records import LogPosition
from holdfast.identity.statements.claim import ClaimBasis

BEFORE_MAX = 32  # boots in a row without a lease


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    frozen: LogPosition | None = None  # where the log stood when two copies of the key were seen
    # Keys that this folder had before, newest first, with their counters: one of them may hold the
    # lease. Forgotten once this one does.
    before: tuple[tuple[PublicKey, int], ...] = ()


class Origin(StrEnum):
    """What the kept instance is to anyone who finds it."""

    SAME = "same"
    REBOOTED = "rebooted"  # this folder, after a reboot
    COPIED = "copied"  # of another machine or folder
    OTHER = "other"  # of another agent


def origin_of(kept: Instance, site: Site, id: AgentId) -> Origin:
    if kept.id != id:
        return Origin.OTHER
    was = kept.site
    if (was.machine, was.inode) != (site.machine, site.inode):
        return Origin.COPIED
    if was.boot != site.boot:
        return Origin.REBOOTED  # the number of a device may change from one boot to the next
    return Origin.SAME if was.device == site.device else Origin.COPIED


def may_sign(kept: Instance, origin: Origin, position: LogPosition) -> bool:
    """Whether the kept key is still the one of this place. A frozen one is until the log moves on: it signs
    nothing, but neither does another key in its place."""
    return origin is Origin.SAME and (kept.frozen is None or position <= kept.frozen)


def successor(
    kept: Instance | None, origin: Origin | None, *, id: AgentId, key: PublicKey, site: Site, position: LogPosition
) -> Instance:
    """The instance of a new key in this folder; in the same folder what it was is carried over. Not from a frozen
    key: until then two copies may both have acted, and neither knows what the other did. New keys let someone act
    again, a restore says who."""
    if kept is None or origin not in (Origin.SAME, Origin.REBOOTED):
        return Instance(id=id, key=key, site=site)
    if kept.frozen is not None:
        still = kept.frozen if position <= kept.frozen else None
        return Instance(id=id, key=key, site=site, e=0, frozen=still)
    return Instance(id=id, key=key, site=site, e=kept.e, before=((kept.key, kept.counter), *kept.before)[:BEFORE_MAX])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """A claim that may be made."""

    e: int
    after_e: int
    how: ClaimBasis


class WaitReason(StrEnum):
    """Why an instance may not act."""

    ELSEWHERE = "elsewhere"  # another instance holds the lease, and this one may follow it
    COPY = "copy"  # not the folder that had the lease last
    BEHIND = "behind"  # a higher incarnation was granted than this journal has seen
    OLDER = "older"  # this folder was put back to an older day
    FROZEN = "frozen"  # two copies of the key spoke; rotate first
    SILENT = "silent"  # the log lets no one act, or other keys
    TROUBLE = "trouble"  # the arbiter, the signer or the journal cannot be used just now


def what_to_ask(
    instance: Instance, seen: LeaseView | None, *, incarnation: int, position: LogPosition
) -> LeaseRequest | WaitReason:
    """The claim that this instance may make, or why it makes none. `incarnation` is the journal's, 0 where there
    is none yet; `position` the log's."""
    if instance.frozen is not None and position <= instance.frozen:
        return WaitReason.FROZEN
    if seen is None:
        return LeaseRequest(e=max(incarnation, 1), after_e=0, how=ClaimBasis.EXPIRED)
    # A restore in this very folder has raised the journal: its lease is of the lost timeline.
    if seen.inst == instance.key and incarnation <= seen.e:
        return LeaseRequest(e=seen.e, after_e=seen.e, how=ClaimBasis.RENEW)
    if seen.frozen and position <= seen.position:
        return WaitReason.FROZEN
    how = _how(instance, seen, position)
    if incarnation > seen.e:
        return LeaseRequest(e=incarnation, after_e=seen.e, how=how)
    if seen.yielded_to == instance.key:
        return LeaseRequest(e=seen.e + 1, after_e=seen.e, how=how)
    if incarnation < seen.e and instance.e < seen.e:
        return WaitReason.BEHIND
    counter = dict(instance.before).get(seen.inst)
    if counter is None:
        return WaitReason.COPY
    if counter < seen.counter:
        return WaitReason.OLDER
    return LeaseRequest(e=seen.e + 1, after_e=seen.e, how=how)


def _how(instance: Instance, seen: LeaseView, position: LogPosition) -> ClaimBasis:
    if seen.yielded_to == instance.key:
        return ClaimBasis.YIELD
    if position.g > seen.position.g:
        return ClaimBasis.RCV
    return ClaimBasis.ROT if position > seen.position else ClaimBasis.EXPIRED


def waiting_request(seen: LeaseView | None) -> LeaseRequest:
    """The claim that asks for nothing: the holder shall know that there is another one."""
    e = max(1 if seen is None else seen.e, 1)
    return LeaseRequest(e=e, after_e=0 if seen is None else seen.e, how=ClaimBasis.WAITING)


def after_message(instance: Instance, *, counter: int, digest: Digest, e: int) -> Instance:
    return replace(instance, counter=counter, last=digest, e=max(instance.e, e))
