"""Records about an agent that its own home did not make: the owner's alarm.

Whatever a witness holds and the home does not, nor is about to publish, was signed by somebody
else who has the keys for it. A recovery means that the paper is in other hands (or that the owner
recovered on another machine); a rotation means the next key. Nothing here can tell a thief from
the owner elsewhere: it says what was seen, and a person judges.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from holdfast.identity.log.log_state import Entry, Log
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.records import Inception, Position, Recovery, Retirement, Rotation


class Power(StrEnum):
    """Whose keys signed a strange record."""

    PAPER = "paper"
    NEXT = "next key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strange:
    position: Position
    digest: Digest
    power: Power
    what: str  # in words for a person
    stands: bool  # it holds its position; otherwise it is kept as evidence


def find_strange(own: Log, seen: Log, pending: Collection[Digest] = ()) -> tuple[Strange, ...]:
    """What `seen` (the home's log with all that its witnesses hold) has beyond `own`."""
    known = {entry.digest for entry in _all(own)} | set(pending)
    standing = {entry.digest for entry in seen.entries()}
    return tuple(_strange(entry, stands=entry.digest in standing) for entry in _all(seen) if entry.digest not in known)


def _strange(entry: Entry, *, stands: bool) -> Strange:
    match entry.record:
        case Recovery():
            power, what = Power.PAPER, "a recovery"
        case Retirement():
            power, what = Power.PAPER, "the retirement of the identity"
        case Rotation() | Inception():
            power, what = Power.NEXT, "a rotation"
    return Strange(position=entry.position, digest=entry.digest, power=power, what=what, stands=stands)


def _all(log: Log) -> list[Entry]:
    return [*log.entries(), *(item.entry for item in log.evidence)]
