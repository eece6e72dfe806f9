"""Backup heads: who may sign them, how long they count, and which of two is newer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cast import NOW, SODIUM, Owner, key, other_id, take

from holdfast.errors import BadRecord
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.records import RotationReason
from holdfast.identity.records.signed import Family, Reason, Signed, sealed, sealed_json
from holdfast.identity.statements.statements import (
    Head,
    JournalMark,
    find_fault_in_head,
    follows,
    parse_head,
    sign_head,
)

OWNER = Owner()
LOG = OWNER.begun()
FIRST = Head(
    id=LOG.id,
    g=0,
    s=0,
    e=1,
    seq=1,
    at=NOW,
    manifest=digest_of(b"manifest"),
    archive="ada-1-1-20270115T080000Z",
    bytes=5_800_000,
    files=200,
    journal=JournalMark(id="0123456789abcdef", sequence=42, incarnation=1),
)


def fault(signed: Signed[Head], log: KeyLog = LOG) -> Reason | None:
    found = find_fault_in_head(signed, log, port=SODIUM)
    return None if found is None else found.reason


def after(before: Signed[Head], **changes: object) -> Head:
    one = before.record
    return replace(one, seq=one.seq + 1, prev=before.digest, **changes)


def test_a_head_reads_back_as_it_was_signed() -> None:
    signed = sign_head(FIRST, OWNER.op(0))
    assert parse_head(signed.line()) == signed
    second = sign_head(after(signed, journal=None), OWNER.op(0))
    assert parse_head(second.line()) == second
    assert fault(signed) is None
    assert fault(second) is None


def test_every_changed_byte_of_a_head_is_refused() -> None:
    line = sign_head(FIRST, OWNER.op(0)).line()
    for at in range(len(line)):
        changed = line[:at] + bytes((line[at] ^ 1,)) + line[at + 1 :]
        try:
            assert fault(parse_head(changed)) is not None, at
        except BadRecord:
            continue


def test_a_head_counts_after_rotations_and_while_the_identity_is_locked() -> None:
    signed = sign_head(FIRST, OWNER.op(0))
    log = OWNER.rotated(LOG, 1)
    assert fault(signed, log) is None
    locked = take(log, OWNER.recovery(log))
    assert fault(signed, locked) is None
    assert fault(signed, OWNER.back(log)) is None


def test_nobody_else_signs_a_head() -> None:
    assert fault(sign_head(FIRST, key("a stranger"))) is Reason.BAD_SIGNATURE
    assert fault(sign_head(FIRST, OWNER.next(1))) is Reason.BAD_SIGNATURE
    assert fault(sign_head(FIRST)) is Reason.TOO_FEW_SIGNATURES
    assert fault(sealed(FIRST, Family.CERT, (OWNER.op(0),))) is (Reason.BAD_SIGNATURE)
    assert fault(sign_head(replace(FIRST, id=other_id()), OWNER.op(0))) is Reason.OTHER_ID
    assert fault(sign_head(replace(FIRST, s=1), OWNER.op(1))) is Reason.OLD_KEYS


def test_a_recovery_record_has_no_key_that_signs_heads() -> None:
    locked = take(LOG, OWNER.recovery(LOG))
    signed = sign_head(replace(FIRST, g=1), OWNER.paper_next(1))
    assert fault(signed, locked) is Reason.LOCKED


def test_one_head_after_the_eviction_outranks_all_that_a_thief_can_sign() -> None:
    """He still has the old operational key, and takes the highest numbers there are."""
    stolen = sign_head(replace(FIRST, seq=2**53 - 1, e=2**53 - 1, prev=digest_of(b"x")), OWNER.op(0))
    log = take(LOG, OWNER.rotation(LOG, 1, why=RotationReason.STOLEN))
    mine = sign_head(after(sign_head(FIRST, OWNER.op(0)), s=1), OWNER.op(1))
    assert fault(stolen, log) is None
    assert fault(mine, log) is None
    assert mine.record.rank > stolen.record.rank


def test_the_chain_names_the_head_before() -> None:
    first = sign_head(FIRST, OWNER.op(0))
    second = sign_head(after(first), OWNER.op(0))
    assert follows(first, None)
    assert follows(second, first)
    assert not follows(second, None)
    assert not follows(first, first)
    assert not follows(sign_head(after(second), OWNER.op(0)), first)
    back = sign_head(after(sign_head(replace(FIRST, e=2), OWNER.op(0)), e=1), OWNER.op(0))
    assert not follows(back, sign_head(replace(FIRST, e=2), OWNER.op(0)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq": 0},
        {"seq": 2},
        {"prev": digest_of(b"x")},
        {"archive": ""},
        {"archive": "../x"},
        {"archive": "-rf"},
        {"archive": "a b"},
        {"archive": "a" * 201},
        {"bytes": -1},
        {"files": -1},
        {"at": -1},
        {"journal": JournalMark(id="../x", sequence=1, incarnation=1)},
        {"journal": JournalMark(id="x", sequence=-1, incarnation=1)},
    ],
)
def test_what_no_head_can_say_is_refused(wrong: dict[str, object]) -> None:
    signed = sign_head(replace(FIRST, **wrong), OWNER.op(0))
    with pytest.raises(BadRecord):
        parse_head(signed.line())


def test_another_record_is_no_head() -> None:
    with pytest.raises(BadRecord, match="not a backup head"):
        parse_head(OWNER.inception().line())
    body = {**cast("dict[str, object]", FIRST.to_json()), "more": 1}
    with pytest.raises(BadRecord, match="more"):
        parse_head(sealed_json(FIRST, body, Family.HEAD, (OWNER.op(0),)).line())
