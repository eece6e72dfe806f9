"""Looking at an agent from outside: several sources are asked, and the odd one out is named.

No one is believed alone. What every source served is put into one log; final beats first, a
higher generation beats a lower one, and anyone who served less or something else is named. One honest
source is enough to see that the others are behind or lie. An observer that knew the log before
starts from what it knew, so a source that serves an old copy rolls nothing back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from holdfast.errors import BadRecord
from holdfast.identity.log.log import NOBODY, ROTATIONS_MAX, WitnessKeys, accept, add_receipt
from holdfast.identity.log.log_state import KeyLog, LogEntry, find_liars, is_final
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.records import (
    Inception,
    LogPosition,
    Receipt,
    Record,
    Recovery,
    Retirement,
    Rotation,
    id_of,
    parse_receipt,
    parse_record,
)
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.witness.witness import LogCopy

T = TypeVar("T")
OPERATORS_MIN = 2
RECORDS_MAX = 2 * ROTATIONS_MAX  # of one copy
RECEIPTS_MAX = 8 * RECORDS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAnswer:
    source: str  # a name for the report: the relay's address
    operator: str  # who runs it; two sources of one operator count as one
    copy: LogCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the sources together show, and who showed something else."""

    log: KeyLog
    final: bool  # whether the head has its receipts
    behind: tuple[str, ...]
    forked: tuple[str, ...]
    unreadable: tuple[str, ...]
    liars: dict[PublicKey, LogPosition]


def observe(
    answers: Sequence[SourceAnswer],
    *,
    id: AgentId,
    port: Signatures,
    known: KeyLog | None = None,
    asked: WitnessKeys = NOBODY,
) -> Observation | Refusal:
    """The log that these answers show together; a refusal where they cannot be trusted."""
    alone = {answer.source: merge_copies(None, (answer.copy,), id=id, port=port, asked=asked) for answer in answers}
    log = merge_copies(known, [answer.copy for answer in answers], id=id, port=port, asked=asked)
    if log is None:
        return Refusal(Reason.NOBODY_ANSWERED, "no source returned a log of this agent")
    operators = {answer.operator for answer in answers if alone[answer.source] is not None}
    if known is None and len(operators) < OPERATORS_MIN:
        return Refusal(
            Reason.ONE_OPERATOR, f"the first look at an agent needs sources of at least {OPERATORS_MIN} operators"
        )
    return _seen(log, alone)


def merge_copies(
    log: KeyLog | None, copies: Sequence[LogCopy], *, id: AgentId, port: Signatures, asked: WitnessKeys = NOBODY
) -> KeyLog | None:
    """The log with all of the copies that is valid; what is not is left out. Receipts of all copies count together.
    Recoveries that the old witnesses vouch for come before those that only a caller who asked may take, no matter
    which source served them first; and each copy is read twice: what one served may follow what a later one brought."""
    receipts: dict[Digest, list[Signed[Receipt]]] = {}
    for receipt in (one for copy in copies for one in _readable(parse_receipt, copy.receipts[:RECEIPTS_MAX])):
        receipts.setdefault(receipt.record.d, []).append(receipt)
    records = [signed for copy in copies for signed in records_of(copy) if id_of(signed) == id]
    for whom in (NOBODY, asked):
        for signed in records:
            vouched = receipts.get(signed.digest, ())
            after = accept(log, signed, port=port, receipts=vouched, asked=whom)
            log = log if isinstance(after, Refusal) else after
    return log


def with_receipts(log: KeyLog, lines: Iterable[bytes], *, port: Signatures) -> KeyLog:
    """The log with those receipts that are valid."""
    for receipt in _readable(parse_receipt, lines):
        after = add_receipt(log, receipt, port=port)
        log = log if isinstance(after, Refusal) else after
    return log


def _seen(log: KeyLog, alone: dict[str, KeyLog | None]) -> Observation:
    behind: list[str] = []
    forked: list[str] = []
    unreadable: list[str] = []
    for source, own in alone.items():
        if own is None:
            unreadable.append(source)
        elif _differs(own, log):
            forked.append(source)
        elif own.position < log.position:
            behind.append(source)
    return Observation(
        log=log,
        final=is_final(log, log.position),
        behind=tuple(behind),
        forked=tuple(forked),
        unreadable=tuple(unreadable),
        liars=find_liars(log),
    )


def _differs(own: KeyLog, log: KeyLog) -> bool:
    held = ((entry, log.find(entry.position)) for entry in own.entries())
    return any(other is not None and other.digest != entry.digest for entry, other in held)


def records_of(copy: LogCopy) -> Iterable[Signed[Record]]:
    return _readable(parse_record, copy.records[:RECORDS_MAX])


def _readable(parse: Callable[[bytes], T], lines: Iterable[bytes]) -> Iterable[T]:
    for line in dict.fromkeys(lines):
        with contextlib.suppress(BadRecord):
            yield parse(line)


class SigningPower(StrEnum):
    """Whose keys signed a strange record."""

    PAPER = "paper"
    NEXT = "next key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRecord:
    position: LogPosition
    digest: Digest
    power: SigningPower
    what: str  # in words for a person
    stands: bool  # it holds its position; otherwise it is kept as evidence


def find_foreign_records(own: KeyLog, seen: KeyLog, pending: Collection[Digest] = ()) -> tuple[ForeignRecord, ...]:
    """What `seen` (the home's log with all that its witnesses hold) has beyond `own`."""
    known = {entry.digest for entry in own.kept()} | set(pending)
    standing = {entry.digest for entry in seen.entries()}
    return tuple(_strange(entry, stands=entry.digest in standing) for entry in seen.kept() if entry.digest not in known)


def find_rivals(own: KeyLog, seen: KeyLog, pending: Collection[Digest] = ()) -> tuple[LogEntry, ...]:
    """The final records in `seen` that the owner of `own` did not choose, of its generation or a later one. Each of
    them says that somebody else speaks for the agent: its keys came after ours, or it was recovered twice at once, of
    which a copy in our own log makes nothing better. One that is not final says nothing yet, and one of a generation
    that is over never will again."""
    known = {entry.digest for entry in own.entries()} | set(pending)
    return tuple(
        entry
        for entry in seen.kept()
        if entry.digest not in known
        and entry.position.g >= own.position.g
        and (entry.final or (seen.find(entry.position) is entry and is_final(seen, entry.position)))
    )


def _strange(entry: LogEntry, *, stands: bool) -> ForeignRecord:
    match entry.record:
        case Recovery():
            power, what = SigningPower.PAPER, "a recovery"
        case Retirement():
            power, what = SigningPower.PAPER, "the retirement of the identity"
        case Rotation() | Inception():
            power, what = SigningPower.NEXT, "a rotation"
    return ForeignRecord(position=entry.position, digest=entry.digest, power=power, what=what, stands=stands)
