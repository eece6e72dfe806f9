"""A stored log read again: its lines give the log that was stored, or the file is damaged."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import BadRecord
from holdfast.identity.log.log import NOBODY, accept, witnesses_to_ask
from holdfast.identity.log.log_state import Log
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import Digest
from holdfast.identity.records.receipt import Receipt, parse_receipt
from holdfast.identity.records.records import Record, parse_record
from holdfast.identity.records.refusal import Refusal
from holdfast.identity.records.signed import Signed

Numbered = tuple[int, bytes]


def replay(records: Iterable[Numbered], receipts: Iterable[Numbered], *, port: Signatures) -> Log | None:
    """The log of these lines, each with its number in its file; None where there is no record.

    Raises BadRecord, naming the line, where one does not stand on those before it, or a receipt
    is for none of the records. What a recovery with new witnesses needed to be asked was asked
    before it was stored.
    """
    parsed = [(number, _record(number, line)) for number, line in records]
    vouched: dict[Digest, list[Signed[Receipt]]] = {}
    for number, line in receipts:
        receipt = _receipt(number, line)
        vouched.setdefault(receipt.record.d, []).append(receipt)
    log: Log | None = None
    for number, signed in parsed:
        asked = NOBODY if log is None else witnesses_to_ask(log, signed.record)
        given = vouched.get(signed.digest, ())
        after = accept(log, signed, port=port, receipts=given, asked=asked)
        if isinstance(after, Refusal):
            raise BadRecord(f"line {number}: {after.message}")
        log = after
    if _counted(log) != sum(map(len, vouched.values())):
        raise BadRecord("a receipt that is for none of its records")
    return log


def _counted(log: Log | None) -> int:
    if log is None:
        return 0
    entries = (*log.entries(), *(item.entry for item in log.evidence))
    return sum(len(entry.receipts) for entry in entries)


def _record(number: int, line: bytes) -> Signed[Record]:
    try:
        return parse_record(line)
    except BadRecord as error:
        raise BadRecord(f"line {number}: {error.message}") from error


def _receipt(number: int, line: bytes) -> Signed[Receipt]:
    try:
        return parse_receipt(line)
    except BadRecord as error:
        raise BadRecord(f"line {number}: {error.message}") from error
