"""The attack table: one named test for each row that the log alone must withstand.

The table itself is in docs/formats/attack-table.md; its rows link to these names.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from cast import (
    NOW,
    SODIUM,
    MemoryLogStore,
    Owner,
    certificate,
    cut,
    key,
    other_id,
    receipt,
    refuse,
    refused,
    take,
    taken,
    vouched,
    witnesses,
)

from holdfast.errors import BadRecord
from holdfast.identity.log import drafts
from holdfast.identity.log.log import EVIDENCE_MAX, accept, accept_line, add_receipt
from holdfast.identity.log.log_state import EvidenceKind, KeyLog, LogStanding, find_liars, is_final
from holdfast.identity.records.canonical import encode
from holdfast.identity.records.encodings import digest_of, key_text
from holdfast.identity.records.records import (
    Keys,
    LogPosition,
    Receipt,
    Record,
    Rotation,
    RotationReason,
    parse_record,
    sign_receipt,
)
from holdfast.identity.records.signed import Family, Reason, Refusal, Signed, sealed, sealed_json
from holdfast.identity.statements.certificate import ObserverState, find_fault_in_certificate
from holdfast.identity.statements.claim import MessageChain, follow_chain, new_chain
from holdfast.identity.statements.statements import Profile, judge_profile
from holdfast.identity.witness.observe import Observation, SourceAnswer, observe
from holdfast.identity.witness.witness import LogCopy, copy_of
from holdfast.identity.witness.witness_folder import WitnessService

OWNER = Owner()
THIEF = Owner(name="thief")
INCEPTION = OWNER.inception().line()
MOMENT = ObserverState(now=NOW, head_seen_at=NOW)


def resigned(signed: Signed[Record], *names: str, **changes: Any) -> bytes:
    """The line with fields of its body changed, signed again by these keys."""
    body = {**json.loads(signed.body), **changes}
    body = {name: value for name, value in body.items() if value is not None}
    return sealed_json(None, body, Family.KEL, tuple(map(key, names))).line()


def test_row_01_a_stolen_operational_key_cannot_rotate_and_its_certificates_die() -> None:
    log = OWNER.begun()
    by_op = drafts.rotation(
        log,
        by=(OWNER.op(0),),
        op=(THIEF.op(1),),
        nxt=drafts.committed((THIEF.next(2).public,)),
        why=RotationReason.PLANNED,
    )
    assert refuse(log, by_op) is Reason.NOT_COMMITTED
    rogue = certificate(log, OWNER.op(0), inst=key("rogue").public)
    assert find_fault_in_certificate(rogue, log, MOMENT, port=SODIUM) is None
    after = take(log, OWNER.rotation(log, 1, why=RotationReason.STOLEN))
    fault = find_fault_in_certificate(rogue, after, MOMENT, port=SODIUM)
    assert refused(fault) is Reason.OLD_KEYS
    again = certificate(after, OWNER.op(0), inst=key("rogue").public)
    assert refused(find_fault_in_certificate(again, after, MOMENT, port=SODIUM)) is (Reason.BAD_SIGNATURE)


def stolen(log: KeyLog, rotations: int) -> KeyLog:
    """The log after a thief with operational and next key rotated first, many times."""
    signed = THIEF.rotation(log, 1, by=OWNER.next(1))
    log = vouched(take(log, signed), signed, "w1", "w2")
    for number in range(2, rotations + 1):
        log = THIEF.rotated(log, number)
    return log


def test_row_02_one_recovery_beats_fifty_rotations_of_a_thief() -> None:
    log = stolen(OWNER.begun(), 50)
    assert log.position == (0, 50)
    late = THIEF.rotation(log, 51)
    log = take(log, OWNER.recovery(log))
    assert log.position == (1, 0)
    assert log.standing is LogStanding.LOCKED
    after = take(log, late)  # kept as evidence, moves nothing
    assert after.position == (1, 0)
    assert after.evidence[-1].kind is EvidenceKind.LATE
    next_record = drafts.rotation(
        log,
        by=(THIEF.next(51),),
        op=(THIEF.op(60),),
        nxt=drafts.committed((THIEF.next(60).public,)),
        why=RotationReason.PLANNED,
    )
    assert refuse(log, next_record) is Reason.NOT_COMMITTED
    assert OWNER.back(stolen(OWNER.begun(), 3)).standing is LogStanding.ACTIVE


def test_row_03_no_rotation_can_touch_the_recovery_keys() -> None:
    log = OWNER.begun()
    rotation = THIEF.rotation(log, 1, by=OWNER.next(1))
    own = {"n": [digest_of(b"mine")], "nt": 1}
    line = resigned(rotation, "owner next 1", "thief op 1", rec=own)
    assert refused(accept_line(log, line, port=SODIUM)) is Reason.MALFORMED
    before = log.recovery
    assert take(log, rotation).recovery == before
    sneaky = drafts.rotation(  # the recovery key as the next one, to burn it
        log,
        by=(OWNER.next(1),),
        op=(THIEF.op(1),),
        nxt=drafts.committed((OWNER.paper(1).public,)),
        why=RotationReason.PLANNED,
    )
    assert refuse(log, sneaky) is Reason.KEY_IN_TWO_CLASSES
    daily = drafts.rotation(  # or as an operational one
        log,
        by=(OWNER.next(1),),
        op=(OWNER.paper(1),),
        nxt=drafts.committed((THIEF.next(2).public,)),
        why=RotationReason.PLANNED,
    )
    assert refuse(log, daily) is Reason.KEY_IN_TWO_CLASSES


def test_row_04_there_is_no_window_that_closes_while_the_owner_is_away() -> None:
    """Nothing in the log's verdict depends on a clock: years of receipts change nothing."""
    log = stolen(OWNER.begun(), 5)
    head = log.head.signed
    for days, name in ((90, "w1"), (900, "w2"), (9000, "w3")):
        g, s = head.record.position
        late = Receipt(id=log.id, g=g, s=s, d=head.digest, wit=key(name).public, at=NOW + days * 86_400)
        log = taken(add_receipt(log, sign_receipt(late, key(name)), port=SODIUM))
    assert is_final(log, log.position)
    assert OWNER.back(log).operational == Keys((OWNER.op(50).public,), 1)


def test_row_05_a_recovery_key_signs_nothing_but_recoveries() -> None:
    log = OWNER.begun()
    paper = OWNER.paper(1)
    by_paper = certificate(log, paper)
    fault = find_fault_in_certificate(by_paper, log, MOMENT, port=SODIUM)
    assert refused(fault) is Reason.BAD_SIGNATURE
    profile = Profile(id=log.id, g=0, s=0, ver=1, relays=(), handles=(), enc=(), policy=(), exp=NOW + 60)
    signed = sealed(profile, Family.PROF, (paper,))
    verdict = judge_profile(signed, None, log, now=NOW, port=SODIUM)
    assert refused(verdict) is Reason.BAD_SIGNATURE
    rotation = drafts.rotation(
        log, by=(paper,), op=(OWNER.op(1),), nxt=drafts.committed((OWNER.next(2).public,)), why=RotationReason.PLANNED
    )
    assert refuse(log, rotation) is Reason.NOT_COMMITTED


def test_row_06_a_recovery_run_twice_gives_the_same_bytes() -> None:
    log = stolen(OWNER.begun(), 2)
    elsewhere = take(OWNER.begun(), OWNER.rotation(OWNER.begun(), 1))  # another view of the log
    first, second = OWNER.recovery(log), OWNER.recovery(elsewhere)
    assert first.line() == second.line()
    once = take(log, first)
    assert accept(once, second, port=SODIUM) is once
    assert not once.evidence


def test_row_07_spent_keys_fork_nothing() -> None:
    log = OWNER.begun()
    rotation = OWNER.rotation(log, 1)
    log = vouched(take(log, rotation), rotation, "w1", "w2")
    recovery = OWNER.recovery(log)
    log = vouched(take(log, recovery), recovery, "w2", "w3")
    start_of_fork = cut(log, LogPosition(0, 1))
    forged = THIEF.rotation(start_of_fork, 1, by=OWNER.next(1))
    longer = take(start_of_fork, forged)
    chain = [forged]
    for number in range(2, 5):
        signed = THIEF.rotation(longer, number)
        longer = take(longer, signed)
        chain.append(signed)
    spent = Owner(name="thief")
    forged_recovery = drafts.recovery(
        id=log.id,
        g=1,
        rp=log.generations[0].tier.digest,
        by=(OWNER.paper(1),),
        nxt=drafts.committed((spent.next(1).public,)),
        rec=drafts.committed((spent.paper(2).public,)),
    )
    on_it = drafts.recovery(
        id=log.id,
        g=2,
        rp=forged_recovery.digest,
        by=(spent.paper(2),),
        nxt=drafts.committed((spent.next(2).public,)),
        rec=drafts.committed((spent.paper(3).public,)),
    )
    for signed in (*chain, forged_recovery, on_it):
        after = accept(log, signed, port=SODIUM)
        log = log if isinstance(after, Refusal) else after
        assert log.head.digest == recovery.digest
        assert log.standing is LogStanding.LOCKED
    assert [item.kind for item in log.evidence] == [EvidenceKind.CONFLICT] * 2


def test_row_08_two_records_at_one_position_lock_and_a_recovery_clears_it() -> None:
    log = OWNER.begun()
    mine, his = OWNER.rotation(log, 1), THIEF.rotation(log, 1, by=OWNER.next(1))
    log = vouched(take(take(log, mine), his), mine, "w1")
    assert log.standing is LogStanding.CONTESTED
    assert log.operational is None
    assert refuse(log, OWNER.rotation(log, 2)) is Reason.CONTESTED
    fault = find_fault_in_certificate(certificate(log, OWNER.op(1)), log, MOMENT, port=SODIUM)
    assert refused(fault) is Reason.CONTESTED
    settled = vouched(log, mine, "w3")
    assert settled.standing is LogStanding.ACTIVE
    other = vouched(log, his, "w2", "w3")  # the other half saw his first: then his stands
    assert other.head.digest == his.digest
    assert other.standing is LogStanding.ACTIVE
    assert OWNER.back(log).standing is LogStanding.ACTIVE
    assert OWNER.back(other).standing is LogStanding.ACTIVE


def test_row_09_a_lying_relay_is_outvoted_and_named() -> None:
    log = OWNER.begun()
    mine, his = OWNER.rotation(log, 1), THIEF.rotation(log, 1, by=OWNER.next(1))
    true = vouched(take(log, mine), mine, "w1", "w2")
    forked = vouched(take(log, his), his, "w2")
    answers = [
        SourceAnswer(source="one", operator="a", copy=copy_of(true)),
        SourceAnswer(source="two", operator="b", copy=copy_of(forked)),
        SourceAnswer(source="three", operator="c", copy=copy_of(log)),
    ]
    seen = observe(answers, id=log.id, port=SODIUM)
    assert isinstance(seen, Observation)
    assert seen.log.head.digest == mine.digest
    assert seen.final
    assert (seen.forked, seen.behind) == (("two",), ("three",))
    assert seen.liars == {key("w2").public: LogPosition(0, 1)}
    assert find_liars(true) == {}
    liar_first = observe(answers[::-1], id=log.id, port=SODIUM)
    assert isinstance(liar_first, Observation)
    assert liar_first.log.head.digest == mine.digest
    known = observe(answers[2:], id=log.id, port=SODIUM, known=true)
    assert isinstance(known, Observation)
    assert known.log.position == true.position


def test_row_10_one_honest_source_is_enough_to_notice() -> None:
    log = stolen(OWNER.begun(), 3)
    true = OWNER.back(log)
    eclipse = SourceAnswer(source="false", operator="x", copy=copy_of(log))
    honest = SourceAnswer(source="true", operator="y", copy=copy_of(true))
    for answers in ([eclipse, honest], [honest, eclipse]):
        seen = observe(answers, id=log.id, port=SODIUM)
        assert isinstance(seen, Observation)
        assert seen.log.head.digest == true.head.digest
        assert seen.behind == ("false",)
    alone = observe([eclipse, replace(eclipse, source="again")], id=log.id, port=SODIUM)
    assert refused(alone) is Reason.ONE_OPERATOR
    nothing = SourceAnswer(source="none", operator="z", copy=LogCopy(records=(b"{}",), receipts=(b"",)))
    assert refused(observe([nothing], id=log.id, port=SODIUM)) is Reason.NOBODY_ANSWERED


def test_row_12_two_copies_of_one_instance_key_freeze() -> None:
    first = new_chain(digest_of(b"certificate"))
    one = follow_chain(first, counter=1, before=first.seen[0][1], digest=digest_of(b"a"))
    assert isinstance(one, MessageChain)
    assert follow_chain(one, counter=1, before=first.seen[0][1], digest=digest_of(b"a")) is one
    fork = follow_chain(one, counter=1, before=first.seen[0][1], digest=digest_of(b"b"))
    assert isinstance(fork, MessageChain)
    assert fork.frozen
    ahead = follow_chain(one, counter=2, before=digest_of(b"other"), digest=digest_of(b"c"))
    assert isinstance(ahead, MessageChain)
    assert ahead.frozen
    for counter in (1, 2, 3):
        verdict = follow_chain(fork, counter=counter, before=digest_of(b"a"), digest=digest_of(b"x"))
        assert refused(verdict) is Reason.FROZEN


@pytest.mark.parametrize("shift", [-86_400, 86_400])
def test_row_14_a_clock_that_jumps_changes_no_verdict_of_the_log(shift: int) -> None:
    """The log reads no clock; a certificate is refused, never wrongly taken for longer."""

    async def verdicts(now: int) -> list[object]:
        one = WitnessService(MemoryLogStore(), key("w1"), port=SODIUM, clock=lambda: now)
        log = OWNER.begun()
        signed = OWNER.rotation(log, 1)
        lines = [OWNER.inception(), signed, THIEF.rotation(log, 1, by=OWNER.next(1))]
        said = [await one.submit(line.line()) for line in lines]
        return [answer.reason if isinstance(answer, Refusal) else "receipt" for answer in said]

    assert asyncio.run(verdicts(NOW)) == asyncio.run(verdicts(NOW + shift))
    log = OWNER.begun()
    shown = certificate(log, OWNER.op(0))
    moved = replace(MOMENT, now=NOW + shift)
    assert find_fault_in_certificate(shown, log, moved, port=SODIUM) is not None


def test_row_17_keys_of_small_order_cannot_enter_a_log() -> None:
    """Suites of signatures are in test_ed25519.py; here such a key tries to be installed."""
    low = key_text(bytes([1]) + bytes(31))
    mixed = key_text(bytes.fromhex("10eb7c3acfb2bed3e0d6ab89bf5a3d6afddd1176ce4812e38d9fd485058fdb1f"))
    for bad in (low, mixed, key_text(b"\xff" * 32)):
        for changes in ({"op": {"k": [bad], "kt": 1}}, {"wit": {"k": [bad], "m": 1}}):
            line = resigned(OWNER.inception(), "owner op 0", **changes)
            assert refused(accept_line(None, line, port=SODIUM)) is Reason.BAD_KEY
        log, own, wit = OWNER.begun(), {"k": [bad], "kt": 1}, {"k": [bad], "m": 1}
        for changes in ({"op": own}, {"wit": wit}, {"by": [bad]}):
            line = resigned(OWNER.rotation(log, 1), "owner next 1", "owner op 1", **changes)
            wanted = Reason.NOT_COMMITTED if "by" in changes else Reason.BAD_KEY
            assert refused(accept_line(log, line, port=SODIUM)) is wanted
        line = resigned(OWNER.recovery(log), "owner paper 1", wit=wit)
        assert refused(accept_line(log, line, port=SODIUM)) is Reason.BAD_KEY
        shown = certificate(OWNER.begun(), OWNER.op(0), inst=bad)
        fault = find_fault_in_certificate(shown, OWNER.begun(), MOMENT, port=SODIUM)
        assert refused(fault) is Reason.BAD_KEY


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"v":1', b'"v":1.0'),
        (b'"v":1', b'"v":1,"v":1'),
        (b'"kt":1', b'"kt": 1'),
        (b'"kt":1', b'"kt":1e0'),
        (b'"t":"icp"', b'"t":"\\u0069cp"'),
        (b'"v":1', b'"v":9007199254740993'),
        (b'"t":"icp"', '"t":"icp","ü":1'.encode()),
        (b'"]]}', b'"]]}\n'),
        (b'"]]}', b'"]]'),
        (b'{"b"', b'\xef\xbb\xbf{"b"'),
    ],
)
def test_row_18_other_spellings_of_a_record_are_refused(old: bytes, new: bytes) -> None:
    assert isinstance(accept_line(None, INCEPTION, port=SODIUM), KeyLog)
    changed = INCEPTION.replace(old, new, 1)
    assert changed != INCEPTION
    assert refused(accept_line(None, changed, port=SODIUM)) is Reason.MALFORMED


@settings(max_examples=300)
@given(st.data())
def test_row_18_every_changed_byte_of_a_line_is_refused(data: st.DataObject) -> None:
    line = bytearray(INCEPTION)
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[place]))
    assert isinstance(accept_line(None, bytes(line), port=SODIUM), Refusal)


def test_row_19_a_signature_means_nothing_elsewhere() -> None:
    log = OWNER.begun()
    rotation = OWNER.rotation(log, 1)
    body = json.loads(rotation.body)
    for family in Family:
        if family is Family.KEL:
            continue
        line = sealed_json(None, body, family, (OWNER.next(1), OWNER.op(1))).line()
        assert refused(accept_line(log, line, port=SODIUM)) is Reason.BAD_SIGNATURE
    signatures = json.loads(rotation.line())["sig"]
    for changes in ({"id": other_id()}, {"s": 2}, {"g": 1}, {"why": "stolen"}):
        line = encode({"b": {**body, **changes}, "sig": signatures}, bytes_max=8192)
        assert isinstance(accept_line(log, line, port=SODIUM), Refusal)
    held = take(log, rotation)
    good = receipt(held, rotation, "w1")
    for changes in ({"id": other_id()}, {"s": 0}, {"g": 1}, {"d": digest_of(b"")}, {"wit": key("w2").public}):
        said = replace(good.record, **changes)
        moved = replace(good, record=said, body=encode(said.to_json()))
        assert isinstance(add_receipt(held, moved, port=SODIUM), Refusal)
    for changes in ({"id": other_id()}, {"s": 0}, {"g": 1}):  # the witness did sign these
        said = sign_receipt(replace(good.record, **changes), key("w1"))
        assert isinstance(add_receipt(held, said, port=SODIUM), Refusal)
        assert not take(log, rotation, (said,)).head.receipts
    elsewhere = Owner(name="other")
    theirs = elsewhere.begun()
    theirs = take(theirs, elsewhere.rotation(theirs, 1))
    assert refused(add_receipt(theirs, good, port=SODIUM)) in (Reason.NOT_HELD, Reason.OTHER_ID)


def test_row_20_huge_and_many_records_are_refused_with_flat_memory() -> None:
    log = OWNER.begun()
    huge = b'{"b":{"v":1,"x":"' + b"a" * 1_000_000 + b'"},"sig":[]}'
    assert refused(accept_line(log, huge, port=SODIUM)) is Reason.MALFORMED
    store = MemoryLogStore()
    witness = WitnessService(store, key("w1"), port=SODIUM, clock=lambda: NOW)

    async def flood() -> list[object]:
        view = log
        await witness.submit(OWNER.inception().line())
        said: list[object] = []
        for number in range(1, 13):
            signed = OWNER.rotation(view, number)
            said.append(await witness.submit(signed.line()))
            view = take(view, signed)
        last = OWNER.rotation(view, 13).line()
        tracemalloc.start()
        for _ in range(500):
            await witness.submit(last)
            await witness.submit(huge)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 200_000
        return said

    said = asyncio.run(flood())
    assert all(isinstance(one, bytes) for one in said[:10])
    assert [refused(one) for one in said[10:]] == [Reason.TOO_MANY, Reason.TOO_MANY]
    forged = log
    for number in range(EVIDENCE_MAX + 4):  # one spent key signs as many forks as it likes
        signed = THIEF.rotation(log, number + 1, by=OWNER.next(1))
        after = accept(forged, signed, port=SODIUM)
        forged = forged if isinstance(after, Refusal) else after
    assert len(forged.evidence) == EVIDENCE_MAX


def test_row_27_all_witnesses_gone_new_ones_are_named_by_the_recovery() -> None:
    log = stolen(OWNER.begun(), 2)
    fresh = witnesses("n1", "n2", "n3", needed=2)
    signed = OWNER.recovery(log, wit=fresh)
    assert refuse(log, signed) is Reason.ASK_WITNESSES
    old = frozenset(OWNER.wit.members)
    log = take(log, signed, asked=old)
    rotation = OWNER.rotation(log, 60, by=OWNER.paper_next(1), why=RotationReason.RECOVERED)
    assert refuse(log, rotation) is Reason.PREVIOUS_NOT_FINAL
    log = take(vouched(log, signed, "n1", "n3"), rotation)
    log = vouched(log, rotation, "n2", "n3")
    assert log.id == OWNER.begun().id
    assert log.standing is LogStanding.ACTIVE
    assert is_final(log, log.position)


def test_the_table_links_to_tests_that_exist() -> None:
    """Every named test is in some file, and every test of a row is named."""
    project = Path(__file__).parents[2]
    page = (project / "docs" / "formats" / "attack-table.md").read_text()
    named = set(re.findall(r"`(test_row_\w+)`", page))
    defined = re.compile(r"^(?:async )?def (test_row_\w+)", re.M)
    there = {name for file in (project / "tests").rglob("test_*.py") for name in defined.findall(file.read_text())}
    assert named == there


def test_a_line_of_another_kind_is_no_record() -> None:
    with pytest.raises(BadRecord):
        parse_record(certificate(OWNER.begun(), OWNER.op(0)).line())
    record = OWNER.rotation(OWNER.begun(), 1).record
    assert isinstance(record, Rotation)
