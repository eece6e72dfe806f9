"""What one observer knows of one agent's log, as a value.

The log is a row of generations, each begun by a record of the recovery tier (the inception, a recovery, or
the retirement that ends it) and continued by rotations. Beside the chosen records it keeps evidence: validly
signed records that stood, or would have stood, at a position that another record holds.

A record is final when enough of its witnesses signed receipts for it. Witnesses sign for a record
only while they hold its predecessor, so a final record makes those before it in its generation
final as well; a record that names other witnesses must be final itself before anything follows it
(see `log.py`), and so the sentence holds across changes of witnesses too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.records import (
    Commitments,
    Inception,
    Keys,
    LogPosition,
    Receipt,
    Record,
    Recovery,
    Retirement,
    Rotation,
)
from holdfast.identity.records.signed import Signed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A record, the sets of witnesses that must vouch for it, and the receipts seen so far."""

    signed: Signed[Record]
    needs: tuple[Keys, ...]  # the last one is in force after the record
    receipts: tuple[Signed[Receipt], ...] = ()
    final: bool = False  # enough receipts of its own, in every set
    old: Keys | None = None  # of a recovery that names witnesses: those before, welcome to vouch

    @property
    def displaces(self) -> bool:
        """Whether it takes the place of one that is not final: the old witnesses agree."""
        if not self.final or self.old is None:
            return self.final
        signers = {receipt.record.wit for receipt in self.receipts}
        return len(signers.intersection(self.old.members)) >= self.old.needed

    @property
    def record(self) -> Record:
        return self.signed.record

    @property
    def digest(self) -> Digest:
        return self.signed.digest

    @property
    def position(self) -> LogPosition:
        return self.signed.record.position

    @property
    def witnesses(self) -> Keys:
        return self.needs[-1]

    @property
    def changes_witnesses(self) -> bool:
        record = self.signed.record
        return isinstance(record, Rotation | Recovery) and record.wit is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    tier: LogEntry
    rotations: tuple[LogEntry, ...] = ()

    @property
    def last(self) -> LogEntry:
        return self.rotations[-1] if self.rotations else self.tier

    def at(self, s: int) -> LogEntry:
        return self.rotations[s - 1] if s else self.tier

    def final_from(self, s: int) -> bool:
        """Whether the record at s, or one that stands on it, is final."""
        return any(entry.final for entry in self.rotations[max(s - 1, 0) :]) or (s == 0 and self.tier.final)


class EvidenceKind(StrEnum):
    CONFLICT = "conflict"  # another record held its position
    LATE = "late"  # of a generation that was over, at a position that nothing held
    DISPLACED = "displaced"  # was held until another record at its position became final


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvidence:
    entry: LogEntry
    kind: EvidenceKind


class LogStanding(StrEnum):
    ACTIVE = "active"
    CONTESTED = "contested"  # two records at one position, neither final: only a recovery helps
    LOCKED = "locked"  # recovered; no operational key until the next rotation
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLog:
    id: AgentId
    generations: tuple[Generation, ...]
    evidence: tuple[LogEvidence, ...] = ()

    @property
    def head(self) -> LogEntry:
        return self.generations[-1].last

    @property
    def position(self) -> LogPosition:
        return self.head.position

    @property
    def is_contested(self) -> bool:
        """Whether the head's generation has a position with two candidates and no final one."""
        return any(
            one.position.g == len(self.generations) - 1
            and follows_chosen(self, one)
            and self.find(one.position) is not None
            and not is_final(self, one.position)
            for one in (item.entry for item in self.evidence)
        )

    @property
    def standing(self) -> LogStanding:
        if self.is_contested:
            return LogStanding.CONTESTED
        match self.head.record:
            case Retirement():
                return LogStanding.RETIRED
            case Recovery():
                return LogStanding.LOCKED
            case Inception() | Rotation():
                return LogStanding.ACTIVE

    @property
    def operational(self) -> Keys | None:
        """The keys that may act now; none while locked, contested or retired."""
        record = self.head.record
        return record.op if isinstance(record, Inception | Rotation) and not self.is_contested else None

    @property
    def recovery(self) -> Commitments | None:
        record = self.generations[-1].tier.record
        return None if isinstance(record, Retirement | Rotation) else record.rec

    def find(self, position: LogPosition) -> LogEntry | None:
        """The record that this observer holds at the position."""
        if position.g >= len(self.generations):
            return None
        generation = self.generations[position.g]
        return generation.at(position.s) if position.s <= len(generation.rotations) else None

    def find_evidence(self, digest: Digest) -> LogEvidence | None:
        return next((item for item in self.evidence if item.entry.digest == digest), None)

    def entries(self) -> Iterator[LogEntry]:
        """The chosen records in order."""
        for generation in self.generations:
            yield generation.tier
            yield from generation.rotations

    def kept(self) -> list[LogEntry]:
        """The chosen records, then the evidence."""
        return [*self.entries(), *(item.entry for item in self.evidence)]


def is_final(log: KeyLog, position: LogPosition) -> bool:
    """Whether the record held at the position is final, by itself or by what stands on it."""
    generation = log.generations[position.g]
    if position.s > len(generation.rotations):
        return False
    if generation.final_from(position.s):
        return True
    # A recovery that keeps the witnesses was vouched for by those who held the one before it.
    g = position.g + 1
    if position.s or g >= len(log.generations):
        return False
    following = log.generations[g].tier
    if generation.tier.changes_witnesses or following.changes_witnesses:
        return False
    return is_final(log, following.position)


def follows_chosen(log: KeyLog, entry: LogEntry) -> bool:
    """Whether the record before this one is the one that the observer holds."""
    record = entry.record
    match record:
        case Inception():
            return False
        case Rotation():
            before = log.find(LogPosition(record.g, record.s - 1))
            return before is not None and before.digest == record.p
        case Recovery() | Retirement():
            before = log.find(LogPosition(record.g - 1, 0))
            return before is not None and before.digest == record.rp


def find_liars(log: KeyLog) -> dict[PublicKey, LogPosition]:
    """Witnesses that signed for two records at one position, with the first such position."""
    said: dict[tuple[PublicKey, LogPosition], Digest] = {}
    liars: dict[PublicKey, LogPosition] = {}
    for entry in log.kept():
        for receipt in entry.receipts:
            told = said.setdefault((receipt.record.wit, entry.position), entry.digest)
            if told != entry.digest:
                liars.setdefault(receipt.record.wit, entry.position)
    return liars
