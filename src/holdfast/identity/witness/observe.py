"""Looking at an agent from outside: several sources are asked, and the odd one out is named.

Nobody is believed alone. What every source served is put into one log; final beats first, a
higher generation beats a lower one, and whoever served less or something else is named. One honest
source is enough to see that the others are behind or lie. An observer that knew the log before
starts from what it knew, so a source that serves an old copy rolls nothing back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import BadRecord
from holdfast.identity.log.log import NOBODY, ROTATIONS_MAX, accept, add_receipt
from holdfast.identity.log.log_state import Log, find_liars, is_final
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey
from holdfast.identity.records.receipt import Receipt, parse_receipt
from holdfast.identity.records.records import Position, Record, id_of, parse_record
from holdfast.identity.records.refusal import Reason, Refusal
from holdfast.identity.records.signed import Signed
from holdfast.identity.witness.witness import Copy

OPERATORS_MIN = 2
RECORDS_MAX = 2 * ROTATIONS_MAX  # of one copy
RECEIPTS_MAX = 8 * RECORDS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    source: str  # a name for the report: the relay's address
    operator: str  # who runs it; two sources of one operator count as one
    copy: Copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the sources together show, and who showed something else."""

    log: Log
    final: bool  # whether the head has its receipts
    behind: tuple[str, ...]
    forked: tuple[str, ...]
    unreadable: tuple[str, ...]
    liars: dict[PublicKey, Position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The least that an observer keeps of an agent it has seen."""

    position: Position
    digest: Digest


def look(
    answers: Sequence[Answer],
    *,
    id: AgentId,
    port: Signatures,
    known: Log | None = None,
    asked: frozenset[PublicKey] = NOBODY,
) -> Sight | Refusal:
    """The log that these answers show together; a refusal where they cannot be trusted."""
    alone = {answer.source: merged(None, (answer.copy,), id=id, port=port, asked=asked) for answer in answers}
    log = merged(known, [answer.copy for answer in answers], id=id, port=port, asked=asked)
    if log is None:
        return Refusal(Reason.NOBODY_ANSWERED, "no source served a log of this agent")
    operators = {answer.operator for answer in answers if alone[answer.source] is not None}
    if known is None and len(operators) < OPERATORS_MIN:
        return Refusal(Reason.ONE_OPERATOR, f"a first sight needs sources of {OPERATORS_MIN} operators")
    return _seen(log, alone)


def merged(
    log: Log | None, copies: Sequence[Copy], *, id: AgentId, port: Signatures, asked: frozenset[PublicKey] = NOBODY
) -> Log | None:
    """The log with all of the copies that is valid; what is not is left out.

    Receipts of all copies count together. Recoveries that the old witnesses vouch for come before
    those that only a caller who asked may take, whoever served them first; and each copy is read
    twice, because what one served may stand on what a later one brought.
    """
    receipts: dict[Digest, list[Signed[Receipt]]] = {}
    for receipt in (one for copy in copies for one in _receipts(copy)):
        receipts.setdefault(receipt.record.d, []).append(receipt)
    records = [signed for copy in copies for signed in _records(copy, id)]
    for whom in (NOBODY, asked):
        for signed in records:
            vouched = receipts.get(signed.digest, ())
            after = accept(log, signed, port=port, receipts=vouched, asked=whom)
            log = log if isinstance(after, Refusal) else after
    return log


def with_receipts(log: Log, lines: Iterable[bytes], *, port: Signatures) -> Log:
    """The log with those receipts that are valid."""
    for line in lines:
        try:
            after = add_receipt(log, parse_receipt(line), port=port)
        except BadRecord:
            continue
        log = log if isinstance(after, Refusal) else after
    return log


def find_roll_back(mark: Mark, log: Log) -> Refusal | None:
    """Whether the log is older than, or not the same as, what was seen before."""
    if log.position < mark.position:
        return Refusal(Reason.ROLLED_BACK, f"{tuple(log.position)} after {tuple(mark.position)} was seen")
    held = log.find(mark.position)
    if held is not None and held.digest != mark.digest and is_final(log, mark.position):
        return Refusal(Reason.FORK, f"another final record at {tuple(mark.position)}")
    return None


def _seen(log: Log, alone: dict[str, Log | None]) -> Sight:
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
    return Sight(
        log=log,
        final=is_final(log, log.position),
        behind=tuple(behind),
        forked=tuple(forked),
        unreadable=tuple(unreadable),
        liars=find_liars(log),
    )


def _differs(own: Log, log: Log) -> bool:
    for entry in own.entries():
        held = log.find(entry.position)
        if held is not None and held.digest != entry.digest:
            return True
    return False


def _records(copy: Copy, id: AgentId) -> Iterable[Signed[Record]]:
    for line in copy.records[:RECORDS_MAX]:
        try:
            signed = parse_record(line)
        except BadRecord:
            continue
        if id_of(signed) == id:
            yield signed


def _receipts(copy: Copy) -> Iterable[Signed[Receipt]]:
    for line in copy.receipts[:RECEIPTS_MAX]:
        try:
            yield parse_receipt(line)
        except BadRecord:
            continue
