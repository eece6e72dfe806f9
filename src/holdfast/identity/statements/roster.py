"""The roster: which instances of an agent its owner has enrolled, signed by the operational keys.

A folder whose key is not in the roster is a copy of the agent (lease/instance.py). A roster lists for each instance a
name, its enrolment key, its role and its host. It is bound to the agent's id and to the position (g, s) whose keys
signed it. The newest (g, s, ver) wins, so the roster of an owner who evicted a thief outranks all that the thief
signed.

Two rosters of one rank with different content can only come from two hosts that changed it at the same time, or from a
thief. Neither is chosen: both are kept, and an instance counts as enrolled only where both list it alike. A person
settles it with the next version.

A roster outlives planned rotations. After a rotation for any other reason, or a recovery, it counts no more: the agent
then has the one instance that has the new keys, and its owner enrols the others again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.errors import BadRecord
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import PublicKey, key_bytes
from holdfast.identity.records.fields import LIST_MAX, Fields, choice, of, record, several, text, whole
from holdfast.identity.records.records import AtPosition
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, read_line
from holdfast.identity.statements.certificate import Role, find_inactive, find_not_signed_by, only_planned

NAME_FORM = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
HOST_FORM = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"
INSTANCES_MAX = LIST_MAX
VERSIONS_MAX = 8  # of one rank: two are proof enough

RosterRank = tuple[int, int, int]


def _role(name: str) -> Role:
    role = Role(name)
    if role not in (Role.PRIMARY, Role.STANDBY):
        raise ValueError(name)
    return role


@record
class Enrolled:
    name: str = of(text(form=NAME_FORM))
    key: PublicKey = of(Fields.key)  # signs what this instance sends to the others; made on its host, never backed up
    role: Role = of(choice(_role))  # primary or standby
    host: str = of(text(form=HOST_FORM))  # for people


@record
class Roster(AtPosition):
    KIND = "ins"
    ver: int = of(whole(least=1))
    instances: tuple[Enrolled, ...] = of(several(Enrolled))

    @property
    def rank(self) -> RosterRank:
        return (self.g, self.s, self.ver)

    def find(self, key: PublicKey) -> Enrolled | None:
        return next((one for one in self.instances if one.key == key), None)


def parse_roster(raw: bytes) -> Signed[Roster]:
    """The roster of a line; BadRecord where it is none. Its signatures are not checked yet."""
    signed = read_line(raw, Roster, "a roster")
    listed = signed.record.instances
    for what in ("name", "key"):
        if len({getattr(one, what) for one in listed}) != len(listed):
            raise BadRecord(f"{Roster.KIND}: instances: two have the same {what}")
    return signed


def find_fault_in_roster(signed: Signed[Roster], log: KeyLog, *, port: Signatures) -> Refusal | None:
    """Why the roster does not count for this agent now; None where it does. GAP: the log here is behind."""
    roster = signed.record
    if roster.id != log.id:
        return Refusal(Reason.OTHER_ID, "it is about another agent")
    fault = find_inactive(log)
    if fault is not None:
        return fault
    if roster.position > log.position:
        return Refusal(Reason.GAP, f"it was signed at {roster.position}, and the key log here is at {log.position}")
    entry = log.find(roster.position)
    if entry is None or not only_planned(roster.position, log):
        return Refusal(
            Reason.OLD_KEYS, f"the keys of {roster.position} were replaced: the key log is at {log.position}"
        )
    weak = next((one for one in roster.instances if not port.is_good_key(key_bytes(one.key))), None)
    if weak is not None:
        return Refusal(Reason.BAD_KEY, f"the key of instance {weak.name} is weak or not in canonical form")
    return find_not_signed_by(signed, Family.ROSTER, entry, port)


@dataclass(frozen=True, slots=True)
class RosterView:
    """What counts of all the rosters that were seen: the versions of the highest rank. One, or a fork."""

    versions: tuple[Signed[Roster], ...] = ()

    def __bool__(self) -> bool:
        """Whether the agent has a roster. An agent without one has one instance, as it always had."""
        return bool(self.versions)

    @property
    def rank(self) -> RosterRank:
        return self.versions[0].record.rank if self.versions else (0, 0, 0)

    @property
    def forked(self) -> bool:
        return len(self.versions) > 1

    @property
    def enrolled(self) -> tuple[Enrolled, ...]:
        """The instances that every version lists alike, in the order of the first."""
        if not self.versions:
            return ()
        first, *others = (one.record.instances for one in self.versions)
        return tuple(one for one in first if all(one in other for other in others))

    def find(self, key: PublicKey) -> Enrolled | None:
        return next((one for one in self.enrolled if one.key == key), None)

    def named(self, name: str) -> Enrolled | None:
        return next((one for one in self.enrolled if one.name == name), None)

    def lines(self) -> tuple[bytes, ...]:
        return tuple(one.line() for one in self.versions)


def join_rosters(lines: Iterable[bytes], log: KeyLog, *, port: Signatures) -> RosterView:
    """What these lines show together, in any order and however often: a line that is none, or that does not count for
    this log, is left out."""
    found: dict[str, Signed[Roster]] = {}
    for line in dict.fromkeys(lines):
        try:
            signed = parse_roster(line)
        except BadRecord:
            continue
        if find_fault_in_roster(signed, log, port=port) is None:
            found.setdefault(signed.digest, signed)
    highest = max((one.record.rank for one in found.values()), default=None)
    # By digest, so that every host keeps the same ones in the same order.
    versions = sorted((one for one in found.values() if one.record.rank == highest), key=lambda one: one.digest)
    return RosterView(tuple(versions[:VERSIONS_MAX]))


def next_rank(view: RosterView, log: KeyLog) -> int:
    """The `ver` of the roster that follows: above all others at this position."""
    g, s, ver = view.rank
    return ver + 1 if (g, s) == log.position else 1
