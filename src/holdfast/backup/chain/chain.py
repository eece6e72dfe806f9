"""What the heads of an agent say together: the newest, forks, gaps, how far a place is behind.

Pure. Heads come from several sources; each may be an older copy, have lost some, or hold those of
another agent. The agent's log alone judges a head; the newest valid one of all sources says how far
the backups had come, and each source is measured against it. So a machine that never saw a
repository finds out that it was rolled back or swapped, as long as one other source knows better.

Not visible from here: every source rolled back to the same day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head, find_fault_in_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far one source is behind the newest head."""

    generations: int  # snapshots
    steps: int | None  # records of the journal; None where the two have different journals
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Different heads with one number: the agent was alive twice, or a key is in other hands."""

    seq: int
    heads: tuple[Signed[Head], ...]

    @property
    def after_restore(self) -> bool:
        """Whether a restore explains it: each is of another incarnation."""
        return len({one.record.e for one in self.heads}) == len(self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The valid heads of all sources, oldest first."""

    heads: tuple[Signed[Head], ...]
    forks: tuple[Fork, ...]
    gaps: tuple[int, ...]  # numbers whose head is lost

    @property
    def newest(self) -> Signed[Head] | None:
        return self.heads[-1] if self.heads else None


def valid_heads(
    heads: Iterable[Signed[Head]], log: KeyLog, *, port: Signatures
) -> tuple[list[Signed[Head]], list[str]]:
    """Those that count for the agent of this log, and why the others do not."""
    good: dict[Digest, Signed[Head]] = {}
    faults: list[str] = []
    for signed in heads:
        if signed.digest in good:
            continue
        fault = find_fault_in_head(signed, log, port=port)
        if fault is None:
            good[signed.digest] = signed
        else:
            faults.append(f"head {signed.record.seq}: {fault.message}")
    return list(good.values()), faults


def is_rival_head(head: Head, log: KeyLog) -> bool:
    """Whether it may be of a second recovery of its generation: the log keeps that one as evidence, not its keys."""
    tiers = (item.entry for item in log.evidence if item.entry.final)
    return head.id == log.id and any(one.position == (head.g, 0) for one in tiers)


def joined(sources: Iterable[Sequence[Signed[Head]]]) -> Chain:
    """The chain of valid heads from all sources."""
    known = {one.digest: one for heads in sources for one in heads}
    heads = tuple(sorted(known.values(), key=lambda one: one.record.rank))
    by_seq: dict[int, list[Signed[Head]]] = {}
    for one in heads:
        by_seq.setdefault(one.record.seq, []).append(one)
    forks = tuple(Fork(seq=seq, heads=tuple(group)) for seq, group in sorted(by_seq.items()) if len(group) > 1)
    missing = {one.record.seq - 1 for one in heads if one.record.prev is not None and one.record.prev not in known}
    return Chain(heads=heads, forks=forks, gaps=tuple(sorted(missing)))


def behind(newest: Head, held: Head | None) -> Lag | None:
    """How far a source that holds this head is behind; None where it is not, nor has any."""
    if held is None or held.rank >= newest.rank:
        return None
    one, other, steps = newest.journal, held.journal, None
    if one is not None and other is not None and one.id == other.id:
        steps = max(one.sequence - other.sequence, 0)
    return Lag(generations=max(newest.seq - held.seq, 1), steps=steps, seconds=max(newest.at - held.at, 0))
