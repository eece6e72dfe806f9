"""Borders of the identity log: lines that anybody may send, of every kind of record."""

from __future__ import annotations

import contextlib

from holdfast.errors import BadRecord
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept, accept_line
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.records import (
    Keys,
    Receipt,
    Record,
    RotationReason,
    parse_receipt,
    parse_record,
    sign_receipt,
)
from holdfast.identity.records.signed import Refusal, Signed
from holdfast.identity.statements.certificate import Role, parse_certificate
from holdfast.identity.statements.claim import parse_claim, parse_yield
from holdfast.identity.statements.roster import Enrolled, Roster, join_rosters, parse_roster
from holdfast.identity.statements.statements import parse_answer, parse_profile
from holdfast_proofs.fuzz.feed import law
from holdfast_proofs.identity_schedules.fake import PORT, sign_roster, signer

_OTHERS = (parse_receipt, parse_certificate, parse_profile, parse_claim, parse_yield, parse_answer, parse_roster)


def _log() -> tuple[KeyLog, tuple[Signed[Record], ...]]:
    op, nxt, paper, wit = (signer(name) for name in ("op", "next", "paper", "witness"))
    first = drafts.inception(
        op=(op,),
        nxt=drafts.committed((nxt.public,)),
        rec=drafts.committed((paper.public,)),
        wit=Keys((wit.public,), 1),
        nonce="fuzz-fuzz-fuzz-fuzz",
    )
    log = accept(None, first, port=PORT)
    if isinstance(log, Refusal):
        raise BadRecord(log.message)
    later = drafts.committed((signer("later").public,))
    rotation = drafts.rotation(log, by=(nxt,), op=(signer("op 1"),), nxt=later, why=RotationReason.STOLEN)
    more = drafts.committed((signer("more").public,))
    recovery = drafts.recovery(id=log.id, g=1, rp=first.digest, by=(paper,), nxt=later, rec=more, wit=None)
    retired = drafts.retirement(id=log.id, g=1, rp=first.digest, by=(paper,), heir=log.id)
    return log, (first, rotation, recovery, retired)


LOG, _RECORDS = _log()
_RECEIPT = sign_receipt(
    Receipt(id=LOG.id, g=0, s=0, d=LOG.head.digest, wit=signer("witness").public, at=1), signer("witness")
)
_NORTH = Enrolled(name="north", key=signer("north").public, role=Role.PRIMARY, host="north.example")
_ROSTER = sign_roster(Roster(id=LOG.id, g=0, s=0, ver=1, instances=(_NORTH,)), signer("op")).line()
LINES = (*(one.line() for one in _RECORDS), _RECEIPT.line(), _ROSTER)
WORDS = (
    b'"v":1',
    b'"t":"rot"',
    b'"t":"rcv"',
    b'"rec":{',
    b'"wit":{"k":[],"m":0}',
    b'"kt":0',
    b'"g":',
    b'"s":1.0',
    b'"id":"HF1',
    b'"sig":[]',
    b"null",
    b"-0",
    b"9007199254740993",
    b"\\u0061",
    b"[" * 9,
    b'"heir":',
    b'"by":[]',
    b"\xcc\x81",
    b"\xed\xa0\x80",
)


def line(raw: bytes) -> None:
    """Whoever reads a line writes the same bytes again; the log takes it or says why not."""
    verdict = accept_line(LOG, raw, port=PORT)
    law(isinstance(verdict, Refusal) or verdict.id == LOG.id, "a log that changed its id")
    law(isinstance(verdict, Refusal) or verdict.head.receipts == (), "a receipt from nowhere")
    enrolled = join_rosters((_ROSTER, raw), LOG, port=PORT).enrolled
    law(enrolled == (_NORTH,), "an instance that the agent's keys did not enrol, or removed one")
    for parse in _OTHERS:
        with contextlib.suppress(BadRecord):
            law(parse(raw).line() == raw, "a line with two spellings")
            return
    law(parse_record(raw).line() == raw, "a line with two spellings")
