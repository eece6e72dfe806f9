"""A witness: signs a receipt for the first valid record that it sees at a position, and only one.

True at all times: for each agent and position a witness has signed for at most one digest, over
restarts too. It knows what it signed from the receipts in its own copy of the log, where every
record that it ever held is kept, so there is no second list that could disagree.

Order of acts, and why: decide (`judge`, pure); sign; write record and receipt durably; answer. A crash before
the write forgets a receipt that no one got; a crash after it answers the same receipt when asked again.

A witness that only the new record names signs after the old witnesses have vouched for it. One
that is told of too many rotations or recoveries refuses for a while: ten rotations an hour,
thirty a day, five recoveries a day for each agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.identity.log import rules
from holdfast.identity.log.log import NOBODY, Receipts, WitnessKeys, accept
from holdfast.identity.log.log_state import KeyLog, LogEntry
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import LogPosition, Receipt, Record, Rotation
from holdfast.identity.records.signed import Reason, Refusal, Signed

HOUR_S = 3600
DAY_S = 86_400
ROTATIONS_AN_HOUR = 10
ROTATIONS_A_DAY = 30
RECOVERIES_A_DAY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCopy:
    """A log as it is handed on: lines of records, the chosen ones first, and of receipts."""

    records: tuple[bytes, ...]
    receipts: tuple[bytes, ...]


_RECEIPT = b'{"b":{"at":'  # how the canonical line of a receipt begins, and no record of a log does


def is_receipt(line: bytes) -> bool:
    """Of two kinds of lines that are stored and sent together."""
    return len(line) <= LINE_BYTES_MAX and line.startswith(_RECEIPT)


class Witness(Protocol):
    """Keeps logs and vouches for what it saw first. Both verbs may be called again at any time."""

    @property
    def key(self) -> PublicKey: ...

    async def submit(self, line: bytes, receipts: Sequence[bytes] = ()) -> bytes | Refusal:
        """The witness's receipt for this record, durable before it is returned. The same record again gives the same
        receipt. One that is kept without a receipt (evidence, or not its to vouch for) is refused with the reason."""
        ...

    async def fetch(self, id: AgentId) -> LogCopy | None:
        """All that it holds of this agent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessVerdict:
    """What the witness keeps, and its answer: an old receipt, a new one to sign, or a refusal."""

    log: KeyLog
    answer: Signed[Receipt] | Receipt | Refusal


def judge_record(
    log: KeyLog | None,
    signed: Signed[Record],
    *,
    key: PublicKey,
    port: Signatures,
    now: int,
    receipts: Receipts = (),
    asked: WitnessKeys = NOBODY,
) -> WitnessVerdict | Refusal:
    """The witness's decision; a bare refusal means that nothing changed."""
    if log is not None and find_own_receipt(log, signed.record.position, key) is None:
        fault = _find_too_many(log, signed, key, now)
        if fault is not None:
            return fault
    after = accept(log, signed, port=port, receipts=receipts, asked=asked)
    if isinstance(after, Refusal):
        return after
    return WitnessVerdict(log=after, answer=_answer(after, signed, key, now))


def find_own_receipt(log: KeyLog, position: LogPosition, key: PublicKey) -> Signed[Receipt] | None:
    """The receipt that this witness signed at the position, for whichever record."""
    entries = (log.find(position), *(item.entry for item in log.evidence if item.entry.position == position))
    found = (one for entry in entries if entry for one in entry.receipts if one.record.wit == key)
    return next(found, None)


def copy_of(log: KeyLog) -> LogCopy:
    entries = log.kept()
    return LogCopy(
        records=tuple(entry.signed.line() for entry in entries),
        receipts=tuple(receipt.line() for entry in entries for receipt in entry.receipts),
    )


def _answer(log: KeyLog, signed: Signed[Record], key: PublicKey, now: int) -> Signed[Receipt] | Receipt | Refusal:
    position = signed.record.position
    held = log.find(position)
    own = find_own_receipt(log, position, key)
    if own is not None and own.record.d == signed.digest:
        return own
    if held is None or held.digest != signed.digest:
        return Refusal(Reason.CONTESTED, "the witness saw another record at this position first")
    if own is not None:
        return Refusal(Reason.CONTESTED, "this witness signed for another record at this position")
    if position.g < log.position.g:
        return Refusal(Reason.OLD_KEYS, "a recovery has replaced the generation of this record")
    return _vouch(log, held, key, now)


def _vouch(log: KeyLog, held: LogEntry, key: PublicKey, now: int) -> Receipt | Refusal:
    if not rules.may_vouch(held, key):
        return Refusal(Reason.NOT_A_WITNESS, "the witness keeps the record, but the record does not name this witness")
    first = held.needs[:-1]  # of a rotation that names witnesses: those before it
    if first and key not in first[0].members and not rules.enough(first, held.receipts):
        return Refusal(Reason.PREVIOUS_NOT_FINAL, "the old witnesses must sign their receipts first")
    g, s = held.position
    return Receipt(id=log.id, g=g, s=s, d=held.digest, wit=key, at=now)


def _find_too_many(log: KeyLog, signed: Signed[Record], key: PublicKey, now: int) -> Refusal | None:
    if isinstance(signed.record, Rotation):
        limits = ((ROTATIONS_AN_HOUR, HOUR_S), (ROTATIONS_A_DAY, DAY_S))
        entries = log.generations[-1].rotations[-ROTATIONS_A_DAY - 1 :]
    else:
        limits = ((RECOVERIES_A_DAY, DAY_S),)
        entries = tuple(one.tier for one in log.generations[1:][-RECOVERIES_A_DAY - 1 :])
    times = [receipt.record.at for entry in entries for receipt in entry.receipts if receipt.record.wit == key]
    for most, span_s in limits:
        if sum(at > now - span_s for at in times) >= most:
            what = "rotations" if isinstance(signed.record, Rotation) else "recoveries"
            return Refusal(Reason.TOO_MANY, f"the witness accepts at most {most} {what} in {span_s} s")
    return None
