"""Which records of an agent's key event log count: the one decision, pure.

True at all times of a `Log`:

1. Every record in it was signed by keys that the record before it had committed to.
2. Generations follow each other by the recovery tier alone. A recovery beats every rotation of
   the generation before it, however many a thief has added, and nothing that a rotation says can
   touch the recovery keys.
3. A final record is never replaced. While none is final at a position the first one seen stands;
   a second one makes the log contested, and then nothing but a recovery goes on.
4. Nothing is forgotten: a validly signed record that does not stand is kept as evidence, within
   a limit for each position.

`accept` takes a log and a record and returns the new log, the same log where the record says nothing new, or
a refusal; it reads no clock, no file and no setting, so the owner, every witness and every peer come to the
same verdict. A crash between two calls leaves the caller with one of the two values.

Why the recovery tier keeps its own witnesses: a thief who holds the next keys may install
witnesses of his own by a rotation. So a recovery that names no witnesses is vouched for by those
of the recovery record before it, never by those of a rotation. A recovery that does name new
ones is vouched for by these alone, because the old ones may be dead. Where enough of the old ones
vouch for it as well it counts like any other; otherwise it is taken only from a caller who has
asked every old witness (`asked`), and it never takes the place of another recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from holdfast.errors import BadRecord
from holdfast.identity.log import rules
from holdfast.identity.log.log_state import EvidenceKind, Generation, KeyLog, LogEntry, LogEvidence, is_final
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import Digest, PublicKey
from holdfast.identity.records.records import (
    Inception,
    Keys,
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

ROTATIONS_MAX = 4096  # in one generation; a recovery opens the next
EVIDENCE_MAX = 4  # for one position; one is the proof, the others show who came after
WitnessKeys = frozenset[PublicKey]
NOBODY: WitnessKeys = frozenset()

Receipts = Iterable[Signed[Receipt]]
T = TypeVar("T")


def accept(
    log: KeyLog | None,
    signed: Signed[Record],
    *,
    port: Signatures,
    receipts: Receipts = (),
    asked: WitnessKeys = NOBODY,
) -> KeyLog | Refusal:
    """The log with the record in its place, or why it has none. Receipts that are not for this record, or do not
    verify, are left out; with enough of them the record is final at once. `asked` are the witnesses that the caller
    has asked what they hold, and whose answers, where they gave any, it has already put into the log."""
    if log is None:
        return _begun(signed, port=port, receipts=receipts)
    fault = rules.find_other_id(signed, log.id, log.generations[0].tier)
    if fault is not None:
        return fault
    known = _find_known(log, signed)
    if known is not None:
        receipts = (*known.receipts, *_new_receipts(log.id, known, receipts, port))
        if len(receipts) == len(known.receipts):
            return log
        if log.find(known.position) is known:
            return _put(log, _vouched(known, receipts))
        log = replace(log, evidence=tuple(item for item in log.evidence if item.entry is not known))
    record = signed.record
    match record:
        case Inception():
            return Refusal(Reason.OTHER_ID, "the log already has another inception")
        case Rotation():
            return _rotated(log, signed, record, port=port, receipts=receipts)
        case Recovery() | Retirement():
            return _recovered(log, signed, record, port=port, receipts=receipts, asked=asked)


def accept_line(
    log: KeyLog | None, raw: bytes, *, port: Signatures, receipts: Receipts = (), asked: WitnessKeys = NOBODY
) -> KeyLog | Refusal:
    """As `accept`, from the bytes that someone sent."""
    try:
        signed = parse_record(raw)
    except BadRecord as error:
        return Refusal(Reason.MALFORMED, error.message)
    return accept(log, signed, port=port, receipts=receipts, asked=asked)


def add_receipt(log: KeyLog, receipt: Signed[Receipt], *, port: Signatures) -> KeyLog | Refusal:
    """The log with a receipt that came apart from its record."""
    said = receipt.record
    held = log.find(said.position)
    if held is None or held.digest != said.d:
        item = log.find_evidence(said.d)
        if item is None:
            return Refusal(Reason.NOT_HELD, "the log does not have the record of this receipt")
        held = item.entry
    fault = rules.find_fault_in_receipt(receipt, held, log.id, port)
    return fault or accept(log, held.signed, port=port, receipts=(receipt,))


def witnesses_to_ask(log: KeyLog, record: Record) -> WitnessKeys:
    """Whom to ask before the record may be taken; no one unless a recovery names new witnesses."""
    if not isinstance(record, Recovery) or record.wit is None:
        return NOBODY
    before = log.generations[min(record.g, len(log.generations)) - 1]
    return frozenset((*before.tier.witnesses.members, *before.last.witnesses.members))


def _begun(signed: Signed[Record], *, port: Signatures, receipts: Receipts) -> KeyLog | Refusal:
    fault = rules.find_fault_in_inception(signed, port)
    if fault is not None:
        return fault
    record = signed.record
    if not isinstance(record, Inception):
        return Refusal(Reason.NOT_BEGUN, "a log must begin with an inception")
    id_ = id_of(signed)
    entry = _entry(LogEntry(signed=signed, needs=(record.wit,)), id_, receipts, port)
    return KeyLog(id=id_, generations=(Generation(tier=entry),))


def _rotated(
    log: KeyLog, signed: Signed[Record], record: Rotation, *, port: Signatures, receipts: Receipts
) -> KeyLog | Refusal:
    if record.g >= len(log.generations) or record.s > ROTATIONS_MAX:
        return Refusal(Reason.GAP, "the generation or rotation number of the record is too high for this log")
    generation = log.generations[record.g]
    if record.s > len(generation.rotations) + 1:
        return Refusal(Reason.GAP, "this log lacks the records before this one")
    before = generation.at(record.s - 1)
    fault = rules.find_fault_in_rotation(signed, record, before=before, tier=generation.tier, port=port)
    if fault is not None:
        return fault
    bare = LogEntry(signed=signed, needs=_needs(before.witnesses, record.wit))
    entry = _entry(bare, log.id, receipts, port)
    if log.find(entry.position) is not None:
        return _settled(log, entry)
    if record.g < len(log.generations) - 1:
        return _with_evidence(log, entry, EvidenceKind.LATE)
    if log.is_contested:
        return Refusal(Reason.CONTESTED, "the log has two records at one position: only a recovery can settle this")
    if before.changes_witnesses and not before.final:
        return Refusal(Reason.PREVIOUS_NOT_FINAL, "the record before it names new witnesses and is not final yet")
    return _appended(log, entry)


def _recovered(
    log: KeyLog,
    signed: Signed[Record],
    record: Recovery | Retirement,
    *,
    port: Signatures,
    receipts: Receipts,
    asked: WitnessKeys,
) -> KeyLog | Refusal:
    if record.g > len(log.generations):
        return Refusal(Reason.GAP, "this log lacks the recoveries before this record")
    before = log.generations[record.g - 1].tier
    fault = rules.find_fault_in_recovery(signed, record, before=before, port=port)
    if fault is not None:
        return fault
    old = None if record.wit is None else before.witnesses
    bare = LogEntry(signed=signed, needs=(record.wit or before.witnesses,), old=old)
    entry = _entry(bare, log.id, receipts, port)
    if record.g < len(log.generations):
        return _settled(log, entry)
    missing = witnesses_to_ask(log, record) - asked
    if missing and not entry.displaces:
        return Refusal(Reason.ASK_WITNESSES, f"first ask the old witnesses: {', '.join(sorted(missing))}")
    return replace(log, generations=(*log.generations, Generation(tier=entry)))


def _settled(log: KeyLog, entry: LogEntry) -> KeyLog | Refusal:
    """Two records at one position: the final one stands, or the first; the other is evidence."""
    position = entry.position
    past = position.s > 0 and position.g < len(log.generations) - 1
    if past or not entry.displaces or is_final(log, position):
        return _with_evidence(log, entry, EvidenceKind.CONFLICT)
    generation = log.generations[position.g]
    if position.s:
        displaced = generation.rotations[position.s - 1 :]
        kept = replace(generation, rotations=(*generation.rotations[: position.s - 1], entry))
    else:
        displaced = tuple(one for one in log.entries() if one.position.g >= position.g)
        kept = Generation(tier=entry)
    moved = tuple(LogEvidence(entry=one, kind=EvidenceKind.DISPLACED) for one in displaced)
    return replace(log, generations=(*log.generations[: position.g], kept), evidence=(*log.evidence, *moved))


def _with_evidence(log: KeyLog, entry: LogEntry, kind: EvidenceKind) -> KeyLog | Refusal:
    there = sum(item.entry.position == entry.position for item in log.evidence)
    if there >= EVIDENCE_MAX:
        said = f"the log already keeps {there} other records of this position; send this record with its receipts"
        return Refusal(Reason.EVIDENCE_FULL, said)
    return replace(log, evidence=(*log.evidence, LogEvidence(entry=entry, kind=kind)))


def _find_known(log: KeyLog, signed: Signed[Record]) -> LogEntry | None:
    held = log.find(signed.record.position)
    if held is not None and held.digest == signed.digest:
        return held
    item = log.find_evidence(signed.digest)
    return None if item is None else item.entry


def _put(log: KeyLog, entry: LogEntry) -> KeyLog:
    g, s = entry.position
    generation = log.generations[g]
    if s:
        rotations = generation.rotations
        generation = replace(generation, rotations=(*rotations[: s - 1], entry, *rotations[s:]))
    else:
        generation = replace(generation, tier=entry)
    return replace(log, generations=(*log.generations[:g], generation, *log.generations[g + 1 :]))


def _appended(log: KeyLog, entry: LogEntry) -> KeyLog:
    generation = log.generations[-1]
    longer = replace(generation, rotations=(*generation.rotations, entry))
    return replace(log, generations=(*log.generations[:-1], longer))


def _needs(current: Keys, named: Keys | None) -> tuple[Keys, ...]:
    return (current,) if named is None else (current, named)


def _entry(bare: LogEntry, id_: str, receipts: Receipts, port: Signatures) -> LogEntry:
    """The entry with those of the receipts that count."""
    counted = _new_receipts(id_, bare, receipts, port)
    return _vouched(bare, counted) if counted else bare


def _vouched(entry: LogEntry, receipts: Receipts) -> LogEntry:
    kept = tuple(receipts)
    return replace(entry, receipts=kept, final=rules.enough(entry.needs, kept))


def _new_receipts(id_: str, entry: LogEntry, receipts: Receipts, port: Signatures) -> tuple[Signed[Receipt], ...]:
    seen = {receipt.record.wit for receipt in entry.receipts}
    fresh: list[Signed[Receipt]] = []
    for receipt in receipts:
        if receipt.record.wit not in seen and rules.find_fault_in_receipt(receipt, entry, id_, port) is None:
            seen.add(receipt.record.wit)
            fresh.append(receipt)
    return tuple(fresh)


Numbered = tuple[int, bytes]


def replay(records: Iterable[Numbered], receipts: Iterable[Numbered], *, port: Signatures) -> KeyLog | None:
    """The log of these lines, each with its number in its file; None where there is no record. Equal lines count once.
    Raises BadRecord, naming the line, where one does not follow from those before it, or a receipt is for none of the
    records. What a recovery with new witnesses needed to be asked was asked before it was stored."""
    parsed = [(number, _read(parse_record, number, line)) for number, line in _once(records)]
    vouched: dict[Digest, list[Signed[Receipt]]] = {}
    for number, line in _once(receipts):
        receipt = _read(parse_receipt, number, line)
        vouched.setdefault(receipt.record.d, []).append(receipt)
    log: KeyLog | None = None
    for number, signed in parsed:
        asked = NOBODY if log is None else witnesses_to_ask(log, signed.record)
        given = vouched.get(signed.digest, ())
        after = accept(log, signed, port=port, receipts=given, asked=asked)
        if isinstance(after, Refusal):
            raise BadRecord(f"line {number}: {after.message}")
        log = after
    counted = 0 if log is None else sum(len(entry.receipts) for entry in log.kept())
    if counted != sum(map(len, vouched.values())):
        raise BadRecord("a receipt does not belong to any record of this key log")
    return log


def _once(lines: Iterable[Numbered]) -> list[Numbered]:
    first: dict[bytes, int] = {}
    for number, line in lines:
        first.setdefault(line, number)
    return [(number, line) for line, number in first.items()]


def _read(parse: Callable[[bytes], T], number: int, line: bytes) -> T:
    try:
        return parse(line)
    except BadRecord as error:
        raise BadRecord(f"line {number}: {error.message}") from error
