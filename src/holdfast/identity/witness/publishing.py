"""Bring a record to all witnesses and gather their receipts.

Nothing here decides whether the record is good: the caller has put it into its log already, and
every witness judges for itself. Everything may be repeated: a witness answers the same record with
the same receipt. Rounds go on while there is something that a witness has not been told: one that
only the new record names signs after it has seen the receipts of the old ones, and at the end each
of them holds all receipts, so that anyone who asks one of them sees that the record is final.

A witness that lacks earlier records is given them first. One that holds another record instead is
asked for its copy, which goes into the log: so the owner learns that someone else was there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import HoldfastError
from holdfast.identity.log.log import NOBODY
from holdfast.identity.log.log_state import KeyLog, is_final
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import Reason, Record, Refusal
from holdfast.identity.records.signed import Signed
from holdfast.identity.witness.observe import merge_copies, with_receipts
from holdfast.identity.witness.witness import LogCopy, Witness

ROUNDS_MAX = 4
ANSWER_S_MAX = 30.0  # a witness may itself have to ask others, ten seconds for each
_BEHIND = (Reason.GAP, Reason.NOT_BEGUN, Reason.PREVIOUS_NOT_FINAL, Reason.WRONG_PREVIOUS)
T = TypeVar("T")

Witnesses = Mapping[PublicKey, Witness]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What came of it. `refused` says of each witness without a receipt why."""

    log: KeyLog
    final: bool  # the record stands, and enough witnesses vouch for it
    receipts: int
    refused: dict[PublicKey, str]


async def ask_witnesses(
    known: KeyLog | None, id: AgentId, witnesses: Witnesses, *, port: Signatures, asked: frozenset[PublicKey] = NOBODY
) -> tuple[KeyLog | None, dict[PublicKey, str]]:
    """The log with all that these witnesses hold, and who did not answer, with the reason."""
    answers = await asyncio.gather(*(_answer(one.fetch(id)) for one in witnesses.values()))
    copies = [answer for answer in answers if isinstance(answer, LogCopy)]
    silent = {
        key: answer.message for key, answer in zip(witnesses, answers, strict=True) if isinstance(answer, Refusal)
    }
    return merge_copies(known, copies, id=id, port=port, asked=asked), silent


async def publish(log: KeyLog, signed: Signed[Record], witnesses: Witnesses, *, port: Signatures) -> Published:
    """Send a record of this log to all of the witnesses, and all receipts to each."""
    told: dict[PublicKey, set[bytes]] = {}
    refused: dict[PublicKey, str] = {}
    for _ in range(ROUNDS_MAX):
        lines = _receipts(log, signed)
        waiting = [key for key in witnesses if told.get(key) != set(lines)]
        if not waiting:
            break
        answers = await asyncio.gather(*(_submitted(witnesses[key], log, signed, lines) for key in waiting))
        for key, answer in zip(waiting, answers, strict=True):
            refused.pop(key, None)
            if isinstance(answer, bytes):
                log = with_receipts(log, (answer,), port=port)
                told[key] = {*lines, answer}
                continue
            refused[key] = answer.message
            told[key] = set(lines)
            if answer.reason is Reason.NOBODY_ANSWERED:
                witnesses = {one: witnesses[one] for one in witnesses if one != key}
                continue
            copy = await _answer(witnesses[key].fetch(log.id))
            if isinstance(copy, LogCopy):
                log = merge_copies(log, [copy], id=log.id, port=port) or log
    if not is_settled(log, signed):  # an earlier try may have left receipts of one that is now down
        log = (await ask_witnesses(log, log.id, witnesses, port=port))[0] or log
    return Published(log=log, final=is_settled(log, signed), receipts=len(_receipts(log, signed)), refused=refused)


def is_settled(log: KeyLog, signed: Signed[Record]) -> bool:
    """Whether this record holds its position and is final."""
    position = signed.record.position
    held = log.find(position)
    return held is not None and held.digest == signed.digest and is_final(log, position)


async def _submitted(
    witness: Witness, log: KeyLog, signed: Signed[Record], receipts: tuple[bytes, ...]
) -> bytes | Refusal:
    answer = await _answer(witness.submit(signed.line(), receipts))
    if isinstance(answer, Refusal) and answer.reason in _BEHIND:
        for entry in log.entries():
            if entry.digest == signed.digest:
                break
            known = [receipt.line() for receipt in entry.receipts]
            await _answer(witness.submit(entry.signed.line(), known))
        answer = await _answer(witness.submit(signed.line(), receipts))
    return answer


def _receipts(log: KeyLog, signed: Signed[Record]) -> tuple[bytes, ...]:
    held = log.find(signed.record.position)
    if held is None or held.digest != signed.digest:
        item = log.find_evidence(signed.digest)
        held = None if item is None else item.entry
    return () if held is None else tuple(receipt.line() for receipt in held.receipts)


async def _answer(asking: Awaitable[T]) -> T | Refusal:
    try:
        return await asyncio.wait_for(asking, ANSWER_S_MAX)
    except (HoldfastError, OSError, TimeoutError) as error:
        said = str(error) or type(error).__name__
        return Refusal(Reason.NOBODY_ANSWERED, f"no answer: {said}")
